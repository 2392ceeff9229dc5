"""By which images a client is judged, and how sure that is.

Clients that the data name are judged by their own held-out images. Where a simulation deals
images by their class alone, an image of a class is like any other of it, whoever got it. So each
client answers the images of others too, and a class counts as its share of the client's test
images. Its heads need not lose an image for that: an image of another client trained none of them.
Held out at the client, an image would leave one fewer of its class to learn from, which of one to
three is much less. The client's own images judge where it has more of a class than all others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvlm.evaluation.references.heads import HeadClient

WORK = 2e10  # clients x images x features x classes; beyond it fewer images of others judge


@dataclass(frozen=True)
class Dealt:
    """How a simulation deals images to clients by their class.

    Attributes:
        shares: of each client, the class shares of its test images ``[K, C]``.
        kin: of each client, of which domain its images are; those of one domain are dealt alike.
    """

    shares: NDArray[np.float64]
    kin: Sequence[str]


@dataclass(frozen=True)
class Judges:
    """The images by which a client is judged.

    Attributes:
        y: their classes ``[n]``.
        w: how much each counts ``[n]``, float64; the sum is 1.
        groups: numbers ``[n]`` of what they belong to, the same at every client.
        strata: numbers ``[n]``; means of these are weighed, so what varies is within them.
    """

    y: Tensor
    w: Tensor
    groups: Tensor
    strata: Tensor

    @property
    def size(self) -> float:
        """Number of groups, each counting alike, that judge as surely (Kish 1965)."""
        return float(1 / self._groups[2].square().sum())

    def mean(self, values: Tensor) -> float:
        """Return the mean of values ``[n]``."""
        return float(self.w @ values)

    def balanced(self, values: Tensor, classes: int) -> float:
        """Return the mean over classes of the means of values ``[n]``."""
        total, size = _sums(self.y, torch.stack([self.w * values, self.w]), classes)
        return float((total[size > 0] / size[size > 0]).mean())

    def errors(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return numbers of groups, and what each adds to the error of the mean of values.

        The variance of the mean is the sum of their squares. A group that is alone in its stratum
        has no other to differ from; its distance is that from the mean of all.
        """
        ids, at, _, strata = self._groups
        total, size = _sums(self.strata, torch.stack([self.w * values, self.w]))
        n = strata.bincount(minlength=len(size))
        means = torch.where(n > 1, total / size, self.mean(values))
        pulls = _sums(at, (self.w * (values - means[self.strata])).unsqueeze(0), len(ids))[0]
        of = n[strata].double()
        return ids, pulls * torch.where(of > 1, of / (of - 1), 1.0).sqrt()

    @cached_property
    def _groups(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Numbers of groups, which is whose, their weights, and strata."""
        ids, at = self.groups.unique(return_inverse=True)
        strata = torch.zeros(len(ids), dtype=torch.int64)
        strata[at] = self.strata
        return ids, at, _sums(at, self.w.unsqueeze(0), len(ids))[0], strata


def _sums(at: Tensor, values: Tensor, count: int | None = None) -> Tensor:
    """Return sums of rows of values ``[r, n]`` by number ``[n]``: ``[r, count]``."""
    count = int(at.max()) + 1 if count is None else count
    return torch.zeros(len(values), count, dtype=torch.float64).index_add_(1, at, values)


def own_judges(clients: Sequence[HeadClient]) -> list[Judges]:
    """Return clients that are judged by their own images, of which a group counts once."""
    out = []
    for c, groups in zip(clients, _groups(clients), strict=True):
        w = c.w.double()
        out.append(Judges(c.y, w / w.sum(), groups, torch.zeros_like(c.y)))
    return out


def all_judges(
    clients: Sequence[HeadClient], dealt: Dealt
) -> tuple[list[Judges], list[Tensor]]:
    """Return clients that are judged by the images of all.

    Others' images judge, unless the client has one of their group, to train on or to choose by. Of
    a class of which a client has more images itself its own judge, held out. A client of whose
    classes nobody has an image has no judges.

    Returns:
        The judges, and of each client their numbers among the images of all, one client after
        the other.
    """
    own_groups = _groups(clients)
    y, groups = torch.cat([c.y for c in clients]), torch.cat(own_groups)
    owner = torch.repeat_interleave(torch.tensor([len(c) for c in clients]))
    kin = np.array(dealt.kin)
    classes = dealt.shares.shape[1]
    pairs = WORK / (len(clients) * clients[0].x.shape[1] * classes)
    thin = torch.arange(len(y)) % max(1, math.ceil(len(y) / pairs)) == 0
    judges, rows = [], []
    for k, own_ids in enumerate(own_groups):
        mine = owner == k
        free = thin & ~torch.isin(groups, own_ids)
        free &= torch.from_numpy(kin == kin[k])[owner]
        others, own = (_sizes(y, groups, some, classes) for some in (free, mine))
        at = torch.where((others >= own)[y], free, mine).nonzero().flatten()
        w = HeadClient(torch.empty(len(at), 0, dtype=torch.float64), y[at], groups[at]).w
        share = torch.from_numpy(dealt.shares[k])[y[at]] * w / _sums(
            y[at], w.unsqueeze(0), classes)[0][y[at]]
        some = share > 0
        at, share = at[some], share[some]
        judges.append(Judges(y[at], share / share.sum(), groups[at], y[at]))
        rows.append(at)
    return judges, rows


def _groups(clients: Sequence[HeadClient]) -> list[Tensor]:
    """Return the groups of each client's images, each image its own where there are none."""
    ends = np.cumsum([0, *map(len, clients)])
    return [torch.arange(int(a), int(b)) if c.groups is None else c.groups
            for c, a, b in zip(clients, ends[:-1], ends[1:], strict=True)]


def _sizes(y: Tensor, groups: Tensor, rows: Tensor, classes: int) -> Tensor:
    """Return how many groups of each class some images are ``[C]``."""
    pairs = torch.stack([y[rows], groups[rows]]).unique(dim=1)
    return pairs[0].bincount(minlength=classes)
