"""Federated ridge regression in one round: the closed form of AFL.

AFL (He et al. 2025, AFL: a single-round analytic approach for federated learning with pre-trained
models): on frozen features the least-squares classifier of all clients together follows exactly
from what each computes once, ``x'x`` and ``x'y``, however the samples are split. The paper sends
each client's own solution with its regularised ``x'x``, and takes the regularisers off again (its
absolute aggregation law and RI process); the sums below are that result without the detour.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

GRID = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # of l2, from strong to weak


@dataclass(frozen=True)
class Statistics:
    """What a client sends, once.

    Attributes:
        gram: ``x'x [d, d]``.
        cross: ``x'y [d, C]``, y one-hot.
        n: samples.
    """

    gram: Tensor
    cross: Tensor
    n: int

    @property
    def bytes(self) -> int:
        """Of both matrices."""
        return sum(t.numel() * t.element_size() for t in (self.gram, self.cross))


def statistics(x: Tensor, y: Tensor, classes: int) -> Statistics:
    """Return a client's statistics.

    Args:
        x: features ``[n, d]``.
        y: classes ``[n]`` int64.
        classes: C.
    """
    return Statistics(x.mT @ x, x.mT @ F.one_hot(y, classes).to(x.dtype), len(x))


def together(parts: Iterable[Statistics]) -> Statistics:
    """Return the statistics of all samples: those of the clients, summed in their order."""
    first, *others = parts
    gram, cross, n = first.gram.clone(), first.cross.clone(), first.n
    for part in others:
        gram += part.gram
        cross += part.cross
        n += part.n
    return Statistics(gram, cross, n)


class Ridge:
    """``W = (x'x + n l2)^-1 x'y`` for any l2, from one decomposition.

    Args:
        whole: statistics of all samples.
    """

    def __init__(self, whole: Statistics) -> None:
        self.n = whole.n
        values, self.axes = torch.linalg.eigh(whole.gram)
        self.values = values.clamp(min=0)
        self._cross = self.axes.mT @ whole.cross

    def weights(self, l2: float) -> Tensor:
        """Return ``[d, C]``; ``l2`` (above 0) is that of the mean loss."""
        return self.axes @ (self._cross / (self.values + self.n * l2).unsqueeze(1))

    def left_out(self, x: Tensor, y: Tensor, classes: int, l2: float) -> Tensor:
        """Return the scores ``[n, C]`` of samples by the solution without the sample itself.

        Exact, and computed where the samples are: with the leverage ``h = x (x'x + n l2)^-1 x'``,
        ``(score - h y) / (1 - h)``. Samples must be among those of ``whole``.
        """
        inside = x @ self.axes
        h = (inside.square() / (self.values + self.n * l2)).sum(1, keepdim=True)
        scores = x @ self.weights(l2)
        return (scores - h * F.one_hot(y, classes).to(x.dtype)) / (1 - h).clamp(min=1e-12)


def best(counts: Sequence[int], grid: Sequence[float] = GRID) -> float:
    """Return the l2 with the most right answers; of equals the strongest."""
    return grid[max(range(len(grid)), key=lambda i: (counts[i], -i))]
