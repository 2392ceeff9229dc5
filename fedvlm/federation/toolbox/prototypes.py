"""Class prototypes, the mean feature of each class, and a model's alignment with them.

``class_means`` takes one pass over a client's training split, without gradient. A class without a
sample has count 0 and a mean of zeros; nothing may be read into it.

``hda`` is the hierarchical directional alignment of HEART-PFL (``trainers/heart_pfl.py``). Its
prototypes are a tree ``proto``: ``stage.<j> [K, C, width]`` and ``has [K, C]``, 1 where a class has
one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.core.trees import Tree, in_double
from fedvlm.federation.batches import Batch
from fedvlm.federation.context import Context

Features = Callable[[Tree, Mapping[str, Tensor]], Tensor]
TAG = "prototypes"  # one shuffle for every caller: sums run in the same order, whoever asks
STAGES, EARLY = 4, 2  # of hda: stages in all, and those that are aligned by cosine


@dataclass(frozen=True)
class Prototypes:
    """Class means of K clients.

    Attributes:
        mean: ``[K, C, d]``; zeros where a client has no sample of the class.
        count: samples per class, ``[K, C]``, in the type of ``mean``.
    """

    mean: Tensor
    count: Tensor


def class_means(
    ctx: Context, features: Features, params: Tree, classes: int, width: int
) -> Prototypes:
    """Return the class means of ``features(params, x)`` over each client's training split.

    Args:
        ctx: the chunk of clients.
        features: ``(params, x) -> [K, B, width]``; several layers may come joined along the last
            axis.
        params: leaves ``[K, ...]``, as they are (nothing is trained).
        classes, width: C and d.
    """
    device, dtype = ctx.model.device, ctx.model.dtype
    total = in_double(torch.zeros(ctx.k, classes, width, device=device))
    count = in_double(torch.zeros(ctx.k, classes, device=device))
    with torch.no_grad():
        for batch in ctx.batches(TAG):
            member = in_double(membership(batch, classes))
            z = in_double(features(batch.cut(params), batch.x))
            at = slice(len(z)) if batch.rows is None else batch.rows.to(total.device)
            total[at] += member.mT @ z
            count[at] += member.sum(1)
            ctx.counters["prototype_samples"] += batch.samples
    mean = total / count.clamp_min(1)[..., None]
    return Prototypes(mean.to(device, dtype), count.to(device, dtype))


def membership(batch: Batch, classes: int) -> Tensor:
    """Return ``[K, B, C]``: the weight of each sample in its class, 0 for padding."""
    return F.one_hot(batch.y, classes).to(batch.w.dtype) * batch.w[..., None]


def select_by_label(values: Tensor, labels: Tensor) -> Tensor:
    """Return ``values [K, C, ...]`` at ``labels [K, B]``: ``[K, B, ...]``."""
    clients = torch.arange(len(labels), device=labels.device)[:, None]
    return values[clients, labels]


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


def targets(b: Batch, proto: Tree) -> list[Tensor]:
    """Return the cached prototype of each sample's class, per stage ``[K, B, width]``."""
    return [select_by_label(proto[f"stage.{j}"], b.y) for j in range(STAGES)]


def presence(b: Batch, proto: Tree) -> Tensor:
    """Return ``has`` of ``hda``: not padding, and a class with a prototype."""
    return select_by_label(proto["has"], b.y) * b.w


def batch_targets(features: Sequence[Tensor], b: Batch, proto: Tree) -> list[Tensor]:
    """Return ``targets`` with the gradient of the batch's own class means of ``features``."""
    member = membership(b, proto["has"].shape[1])  # [K, B, C]
    count = member.sum(1).clamp_min(1)[..., None]
    out = []
    for f, p in zip(features, targets(b, proto), strict=True):
        mean = select_by_label(member.mT @ f / count, b.y)
        out.append(p + (mean - mean.detach()))
    return out


def squared_distance(p: Tree, home: Tree) -> Tensor:
    """Return |p - home|^2 over the tensors of ``home``, ``[K]``."""
    parts = [(p[n] - h).square().flatten(1).sum(1) for n, h in home.items()]
    return torch.stack(parts).sum(0)
