"""The references of a run (``evaluation.references``): made once for all methods and model seeds.

They depend on images, partition and backbone alone, so they are kept as JSON beside the feature
store, under a digest of all that they are made of, their code included. A file that does not hold
what its digest says is made again.

Run and baselines are compared image by image: the results say on how many images of each client
two models differ that the answer compares (``runs.bits``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedvlm.core import files
from fedvlm.core.errors import DataError
from fedvlm.core.progress import Progress
from fedvlm.evaluation import Panel
from fedvlm.evaluation.references.suite import (
    Asked,
    of_class_names,
    order,
    references,
    template_reference,
)
from fedvlm.evaluation.scores import Right, take_right
from fedvlm.federation.batches import NO_WEIGHTS
from fedvlm.job.build import Built
from fedvlm.job.sources import features_of, store_dir
from fedvlm.models.features.code import PACKAGE
from fedvlm.models.features.decode import Throughput
from fedvlm.models.features.sources import FeatureSource, JoinedSource, SampleSource
from fedvlm.models.features.store import default_dir
from fedvlm.runs.bits import (
    BITS,
    GROUP,
    IMAGE,
    LAST,
    PAIRED,
    encode_bits,
    freedom,
    margin_of,
    pair_name,
)
from fedvlm.runs.verify.answer import HEAD, best_alone, sends_anything

FOLDER = "references"
STREAM = "features"


def reference_rows(
    built: Built, panel: Panel, zero_shot: Mapping[str, Any] | None,
    progress: Progress | None = None, afresh: bool = False,
) -> dict[str, dict[str, Any]]:
    """Return the references of a run, by name in the order in which they are shown.

    Args:
        panel: whose test images are judged, and whose training images count.
        zero_shot: the template's metrics (``evaluation.zero_shot``); None: no text tower.
        progress: called where images are encoded, for methods that stream something else.
        afresh: take nothing that is kept, and keep nothing: for a replay, which believes no file.

    Raises:
        DataError: an image changed meanwhile, or the feature store cannot be written.
    """
    members, model, own = built.federation.roster.present, built.model, built.data.client_templates

    @cache
    def asked() -> Asked:
        return Asked(
            features_source(built, panel, members, progress), built.data, panel.clients, members,
            len(built.data.classnames), built.cfg.OPTIM.CLASS_WEIGHTS,
        )

    def kept(
        make: Callable[[Asked], dict[str, dict[str, Any]]], *texts: Any
    ) -> dict[str, dict[str, Any]]:
        path = _path(built, panel, members, *texts)
        found = None if afresh else _read(path)
        if found is None:
            found = make(asked())
            if not afresh:
                _keep(path, found)
        return found

    plain = kept(_made)
    if zero_shot is not None:
        plain = plain | template_reference(zero_shot["clients"], bool(own)) | kept(
            lambda one: of_class_names(one, model), model.classnames, model.templates,
            sorted(own.items()), model.packed, model.bf16_text)
    return order(plain)


def _made(asked: Asked) -> dict[str, dict[str, Any]]:
    if asked.captioned:
        return {}  # no baseline is trained on captions
    if asked.sets is None:
        return references(asked)
    from fedvlm.evaluation.references import by_label  # start-up: for sets of labels only

    return by_label.label_references(asked)


def with_template(
    found: dict[str, dict[str, Any]] | None, zero_shot: Mapping[str, Any] | None
) -> dict[str, dict[str, Any]] | None:
    """Return what sites told of their clients with ``zero_shot``; None where they told nothing."""
    if found is None or zero_shot is None:
        return found
    return order(template_reference(zero_shot["clients"]) | found)


def features_source(
    built: Built, panel: Panel, members: Sequence[int], progress: Progress | None
) -> SampleSource:
    """Return the plain features of the clients' images; those that the run has, or the store's."""
    test = built.test
    parts = test.parts if isinstance(test, JoinedSource) else (test,)
    for part in parts:
        if STREAM in getattr(part, "streams", ()):
            return part
    clients = [built.data.clients[c] for c in sorted({*members, *panel.clients})]
    every = np.unique(np.concatenate([
        np.asarray(part) for c in clients for part in (c.train, c.val, c.test)
    ]))
    features = features_of(
        built.cfg, built.backbone, built.loader, progress, Throughput(), built.notes,
        every.tolist(), None,
    )
    labels = torch.from_numpy(built.data.labels.copy())
    return FeatureSource.of(features[None], torch.from_numpy(every), labels)


def _path(built: Built, panel: Panel, members: Sequence[int], *texts: Any) -> Path:
    """Return where the references that need no text tower are kept, or those of ``texts``."""
    backbone, identity = built.backbone, built.identity
    code = hashlib.sha256()
    of_sums = PACKAGE / "federation" / "toolbox" / "moments.py"  # what the ridge's are made by
    for file in [*sorted((PACKAGE / "evaluation").rglob("*.py")), of_sums]:
        code.update(str(file.relative_to(PACKAGE)).encode() + b"\0" + file.read_bytes())
    key = hashlib.sha256(json.dumps([
        code.hexdigest(), identity["data"], identity["images"], identity["backbone"],
        identity["transform"], identity["device"], backbone.numerics, list(panel.clients),
        list(members), torch.get_num_threads(),
        *([] if built.cfg.OPTIM.CLASS_WEIGHTS == NO_WEIGHTS else [built.cfg.OPTIM.CLASS_WEIGHTS]),
        *([] if built.data.groups is None else [hashlib.sha256(built.data.groups.tobytes())
                                                .hexdigest()]),
        *texts,
    ]).encode()).hexdigest()
    return (store_dir(built.cfg) or default_dir()) / FOLDER / f"{key}.json"


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read(path: Path) -> dict[str, dict[str, Any]] | None:
    """Return what is kept at ``path``; None where there is nothing, or something damaged."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        found, sound = said["references"], said["sha256"] == _digest(said["references"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return found if sound and isinstance(found, dict) else None


def _keep(path: Path, found: Mapping[str, Any]) -> None:
    """Write references; a folder that cannot be written keeps none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(path, {"references": found, "sha256": _digest(found)})
    except (OSError, DataError):
        return


# ---- image by image ---------------------------------------------------------------------------
def paired_sections(
    built: Built, right: Right, numbers: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the section ``paired``; with ``TEST.PER_IMAGE`` the baselines get their bits.

    Args:
        right: see ``pair_images``.
        numbers: the sections ``last``, ``references`` and ``spent``.
    """
    data = built.data
    tests = {c: np.asarray(data.clients[c].test) for c in right[LAST]}
    groups = data.groups
    found = pair_images(
        numbers, right, tests if groups is None else {c: groups[t] for c, t in tests.items()},
        IMAGE if groups is None else GROUP,
    )
    out: dict[str, Any] = {PAIRED: found} if found else {}
    if built.cfg.TEST.PER_IMAGE:
        out["references"] = {
            name: {**one, BITS: row_bits(right[name])} if right.get(name) else one
            for name, one in numbers["references"].items()
        }
    return out


def row_bits(right: Mapping[int, np.ndarray]) -> dict[str, Any]:
    """Return ``image_bits`` of a model's clients."""
    return {"personal": {str(c): encode_bits(one.tolist()) for c, one in right.items()}}


def take_baselines(
    found: Mapping[str, dict[str, Any]] | None, template: Mapping[str, Any] | None
) -> Right:
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
    wanted = [(LAST, best), (HEAD, best), *([] if sends_anything(results) else [(HEAD, LAST)])]
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
