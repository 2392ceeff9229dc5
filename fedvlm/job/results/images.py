"""Which test images were classified right: bits of kept logits, and what models are apart by.

``TEST.PER_IMAGE`` writes the bits (``runs.bits``); by default a run's results say only on how many
images of each client the models differ that its answer compares (``runs.verify.margin``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvlm.evaluation.scores import take_right
from fedvlm.runs.bits import encode_bits
from fedvlm.runs.verify.answer import HEAD, best_alone, shares
from fedvlm.runs.verify.margin import LAST, freedom, margin_of, pair_name

PERSONAL = "personal|"
Right = Mapping[str, Mapping[int, np.ndarray]]  # model -> client -> its images [n], bool


def image_bits(logits: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return a bit for each test image, of the personal models and of the shared one.

    Args:
        logits: ``personal|<client>`` and ``global`` ``[n, C]`` with true labels ``[n]`` under
            ``true|<name>``; logits that are not finite are never right.

    Returns:
        ``personal``: client's number -> bits; ``shared``: bits. What has no logits, because a site
        keeps them, is absent.
    """
    bits = {
        name: encode_bits(_right(logits[name], logits[f"true|{name}"]).tolist())
        for name in logits if f"true|{name}" in logits
    }
    clients = sorted(int(name.removeprefix(PERSONAL)) for name in bits if PERSONAL in name)
    personal = {str(c): bits[f"{PERSONAL}{c}"] for c in clients}
    shared = {"shared": bits["global"]} if "global" in bits else {}
    return {**({"personal": personal} if personal else {}), **shared}


def _right(logits: Tensor, true: Tensor) -> Tensor:
    return (logits.argmax(-1) == true) & torch.isfinite(logits).all(-1)


def row_bits(right: Mapping[int, np.ndarray]) -> dict[str, Any]:
    """Return ``image_bits`` of a model's clients."""
    return {"personal": {str(c): encode_bits(one.tolist()) for c, one in right.items()}}


def take_baselines(
    found: Mapping[str, dict[str, Any]] | None, template: Mapping[str, Any] | None
) -> dict[str, Mapping[int, np.ndarray]]:
    """Take ``scores.right_row`` out of baselines' lines, and of the template's; return the bits."""
    if template is not None:
        take_right(template["clients"])
    return {name: take_right(one["clients"]) for name, one in (found or {}).items()}


def pair_images(
    results: Mapping[str, Any], right: Right, tests: Mapping[int, np.ndarray], by: str
) -> dict[str, Any]:
    """Return the section ``paired`` of a run's results: the models that its answer compares.

    Args:
        results: with ``last``, ``references`` and ``spent``.
        right: ``last`` and names of baselines -> client -> ``[n]`` bool. What is absent is left
            out, as is a pair of other clients.
        tests: client -> what its images are draws of ``[n]``: themselves, or groups.
        by: ``image`` or ``group``.

    Returns:
        By ``pair_name``: ``differ``, client -> its images on which exactly one of the two is right;
        where a draw is of several images or clients, ``by`` and the ``margin`` in points.
    """
    best, out = best_alone(results["references"]), dict[str, Any]()
    every = [keys for client, keys in tests.items() if len(keys)]
    several = sum(map(len, every)) > len(np.unique(np.concatenate(every))) if every else False
    wanted = [(LAST, best), (HEAD, best), *([] if shares(results) else [(HEAD, LAST)])]
    for one, other in wanted:
        mine, theirs = right.get(one), right.get(other)
        if not mine or not theirs or mine.keys() != theirs.keys():
            continue
        gaps = {c: mine[c].astype(int) - theirs[c] for c in mine if len(mine[c])}
        out[pair_name(one, other)] = {"differ": {str(c): int(np.abs(g).sum())
                                                 for c, g in gaps.items()}} | (
            {"by": by, "margin": clustered_margin(gaps, tests)} if several else {})
    return out


def clustered_margin(gaps: Mapping[int, np.ndarray], draws: Mapping[int, np.ndarray]) -> float:
    """Return ``paired_margin`` of images that are not draws of their own.

    A draw may be of several images of a client, and of several clients; its difference is the sum
    over them. Where each image is one draw, it is ``paired_margin``.

    Args:
        gaps: client -> differences of its images ``[n]``, 1, 0 or -1; n > 0.
        draws: client -> what each image is a draw of ``[n]``.
    """
    clients = list(gaps)
    at = np.unique(np.concatenate([draws[c] for c in clients]), return_inverse=True)[1]
    owner = np.repeat(np.arange(len(clients)), [len(gaps[c]) for c in clients])
    gap = np.concatenate([gaps[c] for c in clients]).astype(float)
    weight = 1 / (len(clients) * np.bincount(owner))[owner]
    cells, cell = np.unique(np.stack([owner, at]), axis=1, return_inverse=True)
    drawn = np.bincount(cells[0])  # draws of each client
    means = np.bincount(owner, gap) / np.bincount(owner)
    centre = np.where(drawn > 1, means, means.mean())[owner]
    scale = np.sqrt(np.where(drawn > 1, drawn / np.maximum(drawn - 1, 1), 1.0))[owner]
    sums = np.bincount(at, weight * scale * (gap - centre))
    shares_of = np.bincount(cells[0], np.bincount(cell.reshape(-1), weight) ** 2)
    df = freedom(shares_of.tolist(), drawn.tolist(), len(sums))
    return margin_of(float((sums**2).sum()), float((np.bincount(at, weight) ** 3).sum()), df)
