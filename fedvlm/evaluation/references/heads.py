"""Linear heads of clients at the end of their training: alone, one shared, personal, ridge.

Pure functions on arrays: nobody walks rounds here. What a federated method reaches with enough
rounds of small steps is the solution of a convex problem, and that is computed:

* ``alone_heads``: each client's logistic regression, in its own scale, of its own classes.
* ``shared_heads``: one head with the least mean loss over the images of all. It is what FedAvg
  (McMahan et al. 2017) tends to, and what one place with all images would fit.
* ``personal_heads``: a client's loss plus ``pull / 2`` times the squared distance from the shared
  head (Li et al., Ditto, ICML 2021, equation 2).
* ``ridge_head``: ridge regression from sums of all clients, one round (AFL); its strength by
  generalised cross-validation of the same sums.
* ``add_shares``: any head plus the log of each client's class shares.

A head is affine: its scores are ``x W' + b``. Features are ``[n, d]`` as given: of unit length for
the regressions as ``logistic`` has them, as the tower gives them for AFL's ridge. Images of one
group (a patient) count once together, ``1 / size of the group`` each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedvlm.evaluation.references.logistic import FeatureScale, side_by_side, start_of
from fedvlm.evaluation.references.softmax import GRID, Problems, path
from fedvlm.federation.toolbox import moments

KNOWN = 2.0  # times chance that class names alone have to reach for shared heads to start there
PULLS = (10.0, 1.0, 1e-1, 1e-2, 1e-3, 1e-4)  # of personal heads, from strong to weak


@dataclass(frozen=True)
class HeadClient:
    """The images of a client, as features.

    Attributes:
        x: ``[n, d]``, float64 or float32; n above 0.
        y: classes ``[n]`` int64.
        groups: numbers ``[n]`` int64, one for all images of a group; None: each its own.
        times: further weights ``[n]``; None: 1.
    """

    x: Tensor
    y: Tensor
    groups: Tensor | None = None
    times: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def w(self) -> Tensor:
        """How much each image counts, ``[n]``: a group counts once, ``times`` as often."""
        out = torch.ones(len(self.y), dtype=self.x.dtype, device=self.x.device)
        if self.groups is not None:
            _, at, sizes = self.groups.unique(return_inverse=True, return_counts=True)
            out = 1.0 / sizes[at].to(self.x)
        return out if self.times is None else out * self.times.to(out)

    @property
    def size(self) -> float:
        """Number of groups (of images where there are none)."""
        return float(self.w.sum())

    def take(self, rows: Tensor) -> HeadClient:
        """Return the client with some of its images only: indices, or a mask ``[n]``."""
        groups = None if self.groups is None else self.groups[rows]
        times = None if self.times is None else self.times[rows]
        return HeadClient(self.x[rows], self.y[rows], groups, times)

    def hold_out(self, rows: Tensor) -> HeadClient:
        """Return the client without some of its images (mask ``[n]``), in the same class shares.

        What is left of a class counts as much as all of it did: to leave out one image of three
        would else make the very class that is asked for rarer than it is.
        """
        whole, rest = self.w, self.take(~rows)
        had, left = (torch.zeros(int(self.y.max()) + 1).to(whole).index_add_(0, y, w)
                     for y, w in ((self.y, whole), (rest.y, rest.w)))
        times = (had / left.clamp_min(torch.finfo(left.dtype).tiny))[rest.y]
        return HeadClient(rest.x, rest.y, rest.groups,
                          times if rest.times is None else times * rest.times)

    def counts(self, classes: int) -> Tensor:
        """Return how many groups it has of each class ``[C]``."""
        out = torch.zeros(classes, dtype=self.x.dtype, device=self.x.device)
        return out.index_add_(0, self.y, self.w)

    def shares(self, classes: int, smooth: float = 0.0) -> Tensor:
        """Return its class shares ``[C]``, each count ``smooth`` higher."""
        counts = self.counts(classes) + smooth
        return counts / counts.sum()


@dataclass(frozen=True)
class Heads:
    """Heads of P clients, or one head (P = 1) of all.

    Attributes:
        weights: ``[P, C, d + 1]``, the constant last.
        seen: classes that a head may answer, ``[P, C]`` bool.
    """

    weights: Tensor
    seen: Tensor

    def __len__(self) -> int:
        return len(self.weights)

    def logits(self, x: Tensor) -> Tensor:
        """Return ``[P, m, C]`` of the same images ``[m, d]`` by every head; -inf: not seen.

        Of images ``[P, m, d]`` each head gets its own.
        """
        scores = x @ self.weights[..., :-1].mT + self.weights[:, None, :, -1]
        return scores.masked_fill(~self.seen.unsqueeze(1), -torch.inf)

    def one(self, k: int) -> Heads:
        """Return the head of client k (the one head where there is one)."""
        k = k if len(self) > 1 else 0
        return Heads(self.weights[k : k + 1], self.seen[k : k + 1])


def head_of_names(rows: Tensor) -> Heads:
    """Return the one head, P = 1, that class names are: scores ``x rows'``, no constant.

    Args:
        rows: ``[C, d]``.
    """
    return Heads(F.pad(rows, (0, 1)).unsqueeze(0), torch.ones(1, len(rows), dtype=torch.bool))


def common_scale(clients: Sequence[HeadClient]) -> FeatureScale:
    """Return the scale of the features of all: mean and size, which sums of clients give."""
    return FeatureScale.of(torch.cat([c.x for c in clients]), torch.cat([c.w for c in clients]))


def alone_heads(
    clients: Sequence[HeadClient], classes: int, grid: Sequence[float] = GRID,
    starts: Sequence[Tensor] | None = None,
) -> list[Heads]:
    """Return for each l2 of a falling ``grid`` the clients' own logistic regressions.

    Features are scaled by the client's own images; a class that it has not seen is never answered.

    Args:
        starts: logits ``[n, C]`` of each client's images from which its regression starts: what is
            returned is to be added to them. All classes are answered then; those that the client
            has not seen share one weight vector.
    """
    width = clients[0].x.shape[1]
    places = [one.y.unique() for one in clients]
    found = [torch.zeros(len(clients), classes, width + 1, dtype=clients[0].x.dtype)
             for _ in grid]
    seen = torch.zeros(len(clients), classes, dtype=torch.bool)
    for k, own in enumerate(places):
        seen[k, own] = True
    rest = ~seen
    for rows in _chunks(clients, classes):
        some, most = [clients[k] for k in rows], max(len(places[k]) for k in rows)
        scales = [FeatureScale.of(one.x, one.w) for one in some]
        local = [torch.searchsorted(places[k], one.y) for k, one in zip(rows, some, strict=True)]
        there = torch.tensor([len(places[k]) for k in rows]).unsqueeze(1) > torch.arange(most)
        base = None
        if starts is not None:
            there = torch.cat([there, rest[rows].any(1, keepdim=True)], 1)
            base = _pad([start_of(starts[k], places[k], most) for k in rows]).to(some[0].x)
        problems = _problems(some, scales, local, there, base)
        for i, (_, solution) in enumerate(path(problems, grid)):
            for p, k in enumerate(rows):
                weights = _unscaled(solution.weights[p], scales[p])
                found[i][k, places[k]] = weights[: len(places[k])]
                if starts is not None:
                    found[i][k, rest[k]] = weights[-1]
    return [Heads(weights, seen if starts is None else torch.ones_like(seen)) for weights in found]


def shared_heads(
    clients: Sequence[HeadClient], classes: int, scale: FeatureScale,
    grid: Sequence[float] = GRID,
) -> list[Heads]:
    """Return for each l2 of a falling ``grid`` the one head of all clients, each P = 1.

    Args:
        scale: of the features, ``common_scale``.
    """
    x, w = scale(torch.cat([c.x for c in clients])), torch.cat([c.w for c in clients])
    y, seen = torch.cat([c.y for c in clients]), torch.zeros(1, classes, dtype=torch.bool)
    seen[0, y] = True
    problem = Problems(x.unsqueeze(0), y.unsqueeze(0), w.unsqueeze(0), seen)
    return [Heads(_unscaled(solution.weights, scale), seen) for _, solution in path(problem, grid)]


def personal_heads(
    clients: Sequence[HeadClient], shared: Heads, scale: FeatureScale,
    pulls: Sequence[float] = PULLS,
) -> list[Heads]:
    """Return for each of falling ``pulls`` the clients' heads around one shared head."""
    classes = shared.weights.shape[1]
    found = [shared.weights.repeat(len(clients), 1, 1) for _ in pulls]
    for rows in _chunks(clients, classes):
        some = [clients[k] for k in rows]
        base = _pad([one.x @ shared.weights[0, :, :-1].mT + shared.weights[0, :, -1]
                     for one in some])
        problems = _problems(
            some, [scale] * len(some), [one.y for one in some],
            shared.seen.expand(len(some), -1), base,
        )
        for i, (_, solution) in enumerate(path(problems, pulls)):
            found[i][rows] += _unscaled(solution.weights, scale)
    return [Heads(weights, shared.seen.expand(len(clients), -1)) for weights in found]


@dataclass(frozen=True)
class Sums:
    """What a client sends for the ridge: ``x' x [d, d]``, ``x' y [d, C]``, and how many."""

    gram: Tensor
    cross: Tensor
    count: Tensor

    @classmethod
    def of(cls, client: HeadClient, classes: int) -> Sums:
        """Return a client's sums, float64."""
        x, w = client.x.double(), client.w.double()
        hot = F.one_hot(client.y, classes).to(x) * w.unsqueeze(1)
        return cls((x * w.unsqueeze(1)).mT @ x, x.mT @ hot, w.sum())

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.gram + other.gram, self.cross + other.cross, self.count + other.count)


def ridge_head(sums: Sums, strength: float | None = None) -> Heads:
    """Return the ridge regression of sums, P = 1, without a constant.

    Args:
        strength: of the ridge; by default the best by generalised cross-validation of the sums.
    """
    if strength is None:
        strength = float(moments.best_ridge(sums.gram, sums.cross, sums.count))
    weights = moments.ridge(sums.gram, sums.cross, strength).mT
    return Heads(F.pad(weights, (0, 1)).unsqueeze(0), (sums.cross != 0).any(0).unsqueeze(0))


def ridge_heads(sums: Sums, grid: Sequence[float]) -> list[Heads]:
    """Return ``ridge_head`` for each strength of ``grid``, in traces of the sums' ``gram``."""
    values, axes = torch.linalg.eigh(sums.gram)
    values, turned = values.clamp_min(0), axes.mT @ sums.cross
    seen = (sums.cross != 0).any(0).unsqueeze(0)
    weights = ((axes @ (turned / (values + part * values.sum()).unsqueeze(1))).mT for part in grid)
    return [Heads(F.pad(one, (0, 1)).unsqueeze(0), seen) for one in weights]


def add_shares(heads: Heads, shares: Tensor, temper: float) -> Heads:
    """Return the heads plus ``temper`` times the log of class shares ``[K, C]``.

    Args:
        heads: P = 1, or K heads.
        shares: above 0 (``HeadClient.shares`` with ``suite.SMOOTH``).
        temper: 1 where scores are log probabilities; less for a ridge, whose scores are shares.
    """
    weights = heads.weights.repeat(len(shares) // len(heads), 1, 1)
    weights[..., -1] += temper * shares.log().to(weights)
    return Heads(weights, heads.seen.expand(len(shares), -1))


def _chunks(clients: Sequence[HeadClient], classes: int) -> Iterator[list[int]]:
    """Yield places of clients that are solved side by side, large ones first."""
    def size(k: int) -> int:
        n = len(clients[k])
        return 8 * n * (min(n, clients[0].x.shape[1] + 1) + 4 * classes)

    order = sorted(range(len(clients)), key=lambda k: (-len(clients[k]), k))
    return side_by_side(order, size, lambda first, k: 2 * len(clients[k]) >= len(clients[first]))


def _problems(
    clients: Sequence[HeadClient], scales: Sequence[FeatureScale], labels: Sequence[Tensor],
    classes: Tensor, base: Tensor | None = None,
) -> Problems:
    x = _pad([scale(one.x) for scale, one in zip(scales, clients, strict=True)])
    return Problems(x, _pad(labels), _pad([one.w for one in clients]), classes, base)


def _pad(each: Sequence[Tensor]) -> Tensor:
    """Return ``[P, n, ...]``, zeros after the shorter ones."""
    return pad_sequence(list(each), batch_first=True)


def _unscaled(weights: Tensor, scale: FeatureScale) -> Tensor:
    """Return weights ``[..., d + 1]`` on features as given, of weights on scaled ones."""
    slope = weights[..., :-1] / scale.size
    return torch.cat([slope, weights[..., -1:] - (slope @ scale.mean).unsqueeze(-1)], -1)
