"""Class prototypes: the mean feature of each class over all of a client's training samples.

One pass over the training split, without gradient. A class without a sample has count 0 and a mean
of zeros; nothing may be read into it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.federation.batches import Batch
from fedvlm.federation.context import Context
from fedvlm.federation.trees import Tree, rows

Features = Callable[[Tree, Mapping[str, Tensor]], Tensor]
TAG = "prototypes"  # one shuffle for every caller: sums run in the same order, whoever asks


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
    ctx: Context, features: Features, p: Tree, classes: int, width: int
) -> Prototypes:
    """Return the class means of ``features(p, x)`` over each client's training split.

    Args:
        ctx: the chunk of clients.
        features: ``(p, x) -> [K, B, width]``; several layers may come joined along the last axis.
        p: leaves ``[K, ...]``, as they are (nothing is trained).
        classes, width: C and d.
    """
    total = torch.zeros(ctx.k, classes, width, dtype=torch.float64)  # on the CPU: mps has none
    count = torch.zeros(ctx.k, classes, dtype=torch.float64)
    with torch.no_grad():
        for step in ctx.batcher.steps(ctx.clients, ctx.round, 1, 1, TAG):
            batch = step.batches[0]
            member = membership(batch, classes).cpu().double()
            z = features(rows(p, 0, step.active), batch.x).cpu().double()
            total[: step.active] += member.mT @ z
            count[: step.active] += member.sum(1)
            ctx.counters["prototype_samples"] += step.samples
    mean = total / count.clamp_min(1)[..., None]
    like = {"device": ctx.model.device, "dtype": ctx.model.dtype}
    return Prototypes(mean.to(**like), count.to(**like))


def membership(batch: Batch, classes: int) -> Tensor:
    """Return ``[K, B, C]``: the weight of each sample in its class, 0 for padding."""
    return F.one_hot(batch.y, classes).to(batch.w.dtype) * batch.w[..., None]


def of_labels(values: Tensor, labels: Tensor) -> Tensor:
    """Return ``values [K, C, ...]`` at ``labels [K, B]``: ``[K, B, ...]``."""
    clients = torch.arange(len(labels), device=labels.device)[:, None]
    return values[clients, labels]
