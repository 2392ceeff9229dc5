"""What clients' own heads say of the images of other clients (``judges``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedvlm.data.datum import IntArray
from fedvlm.evaluation.references.heads import HeadClient, Heads
from fedvlm.evaluation.references.logistic import Frozen, regressions
from fedvlm.federation.batches import IndexSplit

SIDE_BYTES = 256 << 20  # of the images that clients answer side by side


class Others:
    """Right answers of each client's own heads on the images by which it is judged.

    Args:
        unit, raw: clients with features of unit length, and as the tower gives them.
        folds: of each client's images.
        names: logits of the class names for each client's images; None without.
        rows: of each client, which images of all judge it, one client after the other.
        groups: of the images of all, as a run's baselines know them; None without.
    """

    def __init__(
        self, unit: Sequence[HeadClient], raw: Sequence[HeadClient], folds: Sequence[Tensor],
        names: Sequence[Tensor] | None, rows: Sequence[Tensor], groups: IntArray | None = None,
    ) -> None:
        self.rows, self.groups = rows, groups
        self.unit, self.raw = (torch.cat([c.x for c in some]) for some in (unit, raw))
        self.labels, self.folds = torch.cat([c.y for c in unit]), torch.cat(list(folds))
        self.names = None if names is None else torch.cat(list(names))
        self.ends = np.cumsum([0, *map(len, unit)])
        self.own = [(at >= int(a)) & (at < int(b))
                    for at, a, b in zip(rows, self.ends[:-1], self.ends[1:], strict=True)]
        self.hits: dict[str, list[Tensor]] = {}  # bool [settings, n] for each client

    def of_all(self, right: Sequence[Tensor]) -> list[Tensor]:
        """Return what is said of a client's judges by heads that are the same at all clients.

        Args:
            right: of each client's own images.
        """
        every = torch.cat(list(right))
        return [every[at] for at in self.rows]

    def answer(
        self, name: str, settings: Sequence[Heads], there: Sequence[int], fold: int,
        raw: bool = False,
    ) -> None:
        """Note what heads of clients that are there, trained without a fold, say of its images."""
        if name not in self.hits:
            self.hits[name] = [torch.zeros(len(settings), len(at), dtype=torch.bool)
                               for at in self.rows]
        for p, k in enumerate(there):
            some = (self.folds[self.rows[k]] == fold).nonzero().flatten()
            at = self.rows[k][some]
            x, y = (self.raw if raw else self.unit)[at], self.labels[at]
            for i, setting in enumerate(settings):
                self.hits[name][k][i, some] = setting.one(p).logits(x)[0].argmax(1) == y

    def chosen(self, name: str, best: Sequence[int]) -> list[Tensor]:
        """Return what the settings say that are best, fold by fold."""
        of = torch.tensor(best)
        return [hits[of[self.folds[at]], torch.arange(len(at))].double()
                for at, hits in zip(self.rows, self.hits[name], strict=True)]

    def alone(
        self, trains: Sequence[Tensor], vals: Sequence[Tensor], own: Sequence[Tensor],
        named: bool = False,
    ) -> list[Tensor]:
        """Return what a run's logistic regressions of clients alone say; of own images, held out.

        Args:
            trains, vals: of each client, which of its images train it, and choose its L2.
            own: what is said of each client's own images, held out ``[n]``.
            named: whether they start from the class names.
        """
        out, names = self.of_all(own), self.names if named else None
        frozen = Frozen(self, self.labels.numpy(), self.groups,
                        names=None if names is None else lambda at: names[torch.from_numpy(at)])
        splits = {
            k: IndexSplit(*(part.numpy() for part in (first + train, first + val, at[~own_images])))
            for k, (first, train, val, at, own_images) in enumerate(zip(
                map(int, self.ends), trains, vals, self.rows, self.own, strict=False))
            if len(train) and not bool(own_images.all())}
        most = max(map(len, self.rows)) * self.raw.shape[1] * self.raw.element_size()
        several = max(1, SIDE_BYTES // max(most, 1))
        for i in range(0, len(splits), several):
            some = list(splits)[i : i + several]
            each = regressions(frozen, [splits[k] for k in some])
            for k, one in zip(some, each, strict=True):
                said = torch.from_numpy(one.labels == frozen.labels[splits[k].test])
                out[k][~self.own[k]] = said.double()
        return out

    def fetch(self, indices: Tensor, view: int) -> dict[str, Tensor]:
        """Return the features of some of the images of all; a run's baselines ask so."""
        return {"features": self.raw[indices]}

    def untrained(
        self, guess: Callable[[Tensor | None, Tensor, int], Sequence[Tensor]],
        counts: Sequence[Tensor], own: Sequence[Sequence[Tensor]],
    ) -> list[list[Tensor]]:
        """Return what needs no more than a client's counts of classes, by kind of answer.

        Args:
            guess: from logits of the class names, counts and how many images to classes by kind.
            counts: of all its training images ``[C]``.
            own: by kind as of ``alone``.
        """
        out = [self.of_all(one) for one in own]
        for k, at in enumerate(self.rows):
            away = ~self.own[k]
            said = None if self.names is None else self.names[at[away]]
            for one, classes in zip(out, guess(said, counts[k], int(away.sum())), strict=True):
                one[k][away] = (classes == self.labels[at[away]]).double()
        return out
