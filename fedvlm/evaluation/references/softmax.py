"""Logistic regression of several clients at once, on frozen features, to the end of its training.

A problem is one client's: ``mean over its samples of the cross-entropy + (l2 / 2) |W|^2``, convex,
with one solution. P problems of any sizes are solved side by side: ``x [P, n, d]``, padded.

Three steps make it cheap. The solution lies in the span of the samples, so that few samples need
few coordinates (``reduce``). Böhning's bound (1992, Multinomial logistic regression algorithm) says
that the curvature is nowhere above ``x'x / 2n``: in coordinates in which that bound is the identity
the problem is round, however correlated the features are. L-BFGS (Nocedal 1980) does the rest, each
problem with steps of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

GRID = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)  # of l2, from strong to weak
MEMORY, HALVINGS, MOST = 10, 20, 200
TOLERANCE = 3e-3  # at a tenth of it no accuracy was another one beyond noise
ARMIJO = 1e-4  # share of the promised descent that a step must bring


@dataclass(frozen=True)
class Problems:
    """P regressions.

    Attributes:
        x: ``[P, n, d]``, float64 or float32; rows of padding are zero.
        y: classes ``[P, n]`` int64; in padding any that the problem has.
        w: how much a sample counts (1, or its share), 0 for padding, ``[P, n]``.
        classes: which classes a problem has, ``[P, C]`` bool; the others get no weight at all.
        base: logits ``[P, n, C]`` that stand before anything is learnt; zero by default.
    """

    x: Tensor
    y: Tensor
    w: Tensor
    classes: Tensor
    base: Tensor | None = None


@dataclass(frozen=True)
class Solution:
    """Weights, and how they came about.

    Attributes:
        weights: ``[P, C, d]``; zero for classes that a problem does not have.
        steps: of the slowest problem.
        done: problems whose gradient got below the tolerance, ``[P]`` bool.
    """

    weights: Tensor
    steps: int
    done: Tensor

    def logits(self, x: Tensor) -> Tensor:
        """Return ``[P, m, C]`` of samples ``[P, m, d]``."""
        return x @ self.weights.mT


def reduce(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return coordinates ``[P, n, r]`` of samples in their own span, and its basis ``[P, d, r]``.

    Where there are at least as many samples as dimensions: the samples, and None.
    """
    if x.shape[1] >= x.shape[2]:
        return x, None
    basis, triangle = torch.linalg.qr(x.mT)
    return triangle.mT.contiguous(), basis


def path(
    problems: Problems, grid: Sequence[float] = GRID, *, tolerance: float = TOLERANCE
) -> Iterator[tuple[float, Solution]]:
    """Yield each l2 of ``grid`` with its solution, each begun where the one before ended.

    Args:
        grid: falling.
        tolerance: where to stop: length of the gradient, in the round coordinates.
    """
    start, span = None, _Span(problems)
    for l2 in grid:
        solution = _solve(problems, span, l2, start, tolerance, MOST)
        start = solution.weights
        yield l2, solution


def solve(
    problems: Problems, l2: float | Tensor, start: Tensor | None = None, *,
    tolerance: float = TOLERANCE, most: int = MOST,
) -> Solution:
    """Return the solutions of all problems.

    Args:
        l2: above 0; one for all, or ``[P]``.
        start: weights ``[P, C, d]`` to begin with; zero by default.
        tolerance: as of ``path``.
        most: steps at most.
    """
    return _solve(problems, _Span(problems), l2, start, tolerance, most)


class _Span:
    """What is the same for each l2: samples in their own span ``x``, its ``basis``, the bound."""

    def __init__(self, problems: Problems) -> None:
        self.x, self.basis = reduce(problems.x)
        self.w = (problems.w / problems.w.sum(1, keepdim=True).clamp(min=1)).unsqueeze(-1)
        self.bound = (self.x * self.w).mT @ self.x / 2


def _solve(
    problems: Problems, span: _Span, l2: float | Tensor, start: Tensor | None, tolerance: float,
    most: int,
) -> Solution:
    x, basis = span.x, span.basis
    strength = torch.as_tensor(l2, dtype=x.dtype, device=x.device).expand(len(x))
    bowl = _Bowl(problems, span, strength)
    begin = None if start is None else bowl.inside(start if basis is None else start @ basis)
    inside, steps, done = _minimise(bowl, begin, tolerance, most)
    weights = bowl.outside(inside)
    return Solution(weights if basis is None else weights @ basis.mT, steps, done)


class _Bowl:
    """The objectives in round coordinates: ``V = W L`` with ``L L' = x'x / 2n + l2``."""

    def __init__(self, problems: Problems, span: _Span, l2: Tensor) -> None:
        x, self.w = span.x, span.w
        self.y, self.l2 = problems.y.unsqueeze(-1), l2.view(-1, 1, 1)
        self.absent, self.base = ~problems.classes.unsqueeze(1), problems.base
        eye = torch.eye(x.shape[2], dtype=x.dtype, device=x.device)
        self.factor = torch.linalg.cholesky(span.bound + self.l2 * eye)
        self.inverse = torch.linalg.solve_triangular(self.factor, eye, upper=False)
        self.metric = self.inverse @ self.inverse.mT  # |W|^2 = tr(V metric V')
        self.x = x @ self.inverse.mT
        self.shape = (len(x), problems.classes.shape[1], x.shape[2])

    def inside(self, weights: Tensor) -> Tensor:
        return weights @ self.factor

    def outside(self, inside: Tensor) -> Tensor:
        return inside @ self.inverse

    def __call__(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return values ``[P]`` and gradients ``[P, C, r]``."""
        logs = self.x @ v.mT
        logs = logs if self.base is None else logs + self.base
        logs = logs.masked_fill(self.absent, -torch.inf).log_softmax(-1)
        pull = v @ self.metric * self.l2
        value = -(logs.gather(-1, self.y) * self.w).sum((1, 2)) + (v * pull).sum((1, 2)) / 2
        slope = logs.exp()
        slope.scatter_add_(-1, self.y, -torch.ones_like(self.w))
        return value, (slope * self.w).mT @ self.x + pull


def _minimise(
    bowl: _Bowl, start: Tensor | None, tolerance: float, most: int
) -> tuple[Tensor, int, Tensor]:
    """Return where each objective is least, the steps taken, and who arrived."""
    v = bowl.metric.new_zeros(bowl.shape) if start is None else start
    value, slope = bowl(v)
    steps = bends = v.new_zeros(len(v), 0, v[0].numel())
    alive = torch.ones_like(value, dtype=torch.bool)
    step = 0
    for step in range(most):  # noqa: B007 (told at the end)
        alive = alive & (_length(slope) > tolerance)
        if not alive.any():
            break
        way = -_turned(slope, steps, bends)
        fall = _dot(way, slope)
        size = torch.ones_like(value)
        for _ in range(HALVINGS):
            there = v + size.view(-1, 1, 1) * way
            new, bent = bowl(there)
            good = (new <= value + ARMIJO * size * fall) | ~alive
            if good.all():
                break
            size = torch.where(good, size, size / 2)
        alive = alive & good  # the others are as low as numbers go
        moved = alive.view(-1, 1, 1)
        s, y = torch.where(moved, there - v, 0.0), torch.where(moved, bent - slope, 0.0)
        v, slope, value = v + s, slope + y, torch.where(alive, new, value)
        steps, bends = (
            torch.cat([past[:, 1 - MEMORY :], now.flatten(1).unsqueeze(1)], 1)
            for past, now in ((steps, s), (bends, y))
        )
    return v, step, _length(slope) <= tolerance


def _turned(slope: Tensor, steps: Tensor, bends: Tensor) -> Tensor:
    """Return the inverse curvature that past steps show, applied to a gradient ``[P, C, r]``.

    The compact form of L-BFGS (Byrd, Nocedal, Schnabel 1994, equation 3.1), since its usual loop
    is many small products.

    Args:
        steps, bends: differences of points and of gradients, ``[P, m, C r]``, the oldest first;
            zero where a problem stood still.
    """
    if not steps.shape[1]:
        return slope
    g = slope.flatten(1).unsqueeze(-1)
    both, bent = steps @ bends.mT, bends @ bends.mT
    last, size = both[:, -1, -1], bent[:, -1, -1]
    scale = torch.where(size > 0, last / torch.where(size > 0, size, 1.0), 1.0).view(-1, 1, 1)
    diagonal = both.diagonal(dim1=1, dim2=2)
    upper = both.triu() + torch.diag_embed((diagonal == 0).to(both.dtype))
    u = torch.linalg.solve_triangular(upper, steps @ g, upper=True)
    inner = diagonal.unsqueeze(-1) * u + scale * (bent @ u - bends @ g)
    inner = torch.linalg.solve_triangular(upper.mT, inner, upper=False)
    return (scale * g + steps.mT @ inner - scale * (bends.mT @ u)).view_as(slope)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((1, 2))


def _length(a: Tensor) -> Tensor:
    return _dot(a, a).sqrt()
