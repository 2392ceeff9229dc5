"""Alignment of a model's stages with class prototypes: cosine early, squared error deep.

Hierarchical directional alignment of HEART-PFL (``heart_thorki_fedas.md`` 1.2). Prototypes are in
``batch.const["proto"]``: ``stage.<j> [K, C, width]`` and ``has [K, C]``, 1 where a class has one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.federation.batches import Batch
from fedvlm.federation.prototypes import membership, of_labels
from fedvlm.federation.trees import Tree

STAGES, EARLY = 4, 2


def hda(
    features: Sequence[Tensor], targets: Sequence[Tensor], has: Tensor, early: int = EARLY
) -> Tensor:
    """Return the mean over stages and samples of 1 - cos (first ``early``) or MSE, ``[K]``.

    Args:
        features, targets: per stage ``[K, B, width]``.
        has: 1 for a sample whose class has a prototype, ``[K, B]``.
    """
    total = torch.zeros_like(has[:, 0])
    for j, (f, p) in enumerate(zip(features, targets, strict=True)):
        each = 1 - F.cosine_similarity(f, p, -1) if j < early else (f - p).square().mean(-1)
        total = total + (each * has).sum(1)
    return total / (len(features) * has.sum(1)).clamp_min(1)


def cached(b: Batch) -> list[Tensor]:
    """Return the cached prototype of each sample's class, per stage ``[K, B, width]``."""
    return [of_labels(b.const["proto"][f"stage.{j}"], b.y) for j in range(STAGES)]


def known(b: Batch) -> Tensor:
    """Return ``has`` of ``hda``: not padding, and a class with a prototype."""
    return of_labels(b.const["proto"]["has"], b.y) * b.w


def through(own: Sequence[Tensor], b: Batch) -> list[Tensor]:
    """Return cached prototypes whose gradient goes through the batch's class means."""
    member = membership(b, b.const["proto"]["has"].shape[1])  # [K, B, C]
    count = member.sum(1).clamp_min(1)[..., None]
    found = []
    for f, p in zip(own, cached(b), strict=True):
        mean = of_labels(member.mT @ f / count, b.y)
        found.append(p + (mean - mean.detach()))
    return found


def squared_distance(p: Tree, home: Tree) -> Tensor:
    """Return |p - home|^2 over the tensors of ``home``, ``[K]``."""
    parts = [(p[n] - h).square().flatten(1).sum(1) for n, h in home.items()]
    return torch.stack(parts).sum(0)
