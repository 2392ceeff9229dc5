"""What clients' own heads say of the images of other clients (``judges``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedvlm.evaluation.references.heads import HeadClient, Heads


class Others:
    """Right answers of each client's own heads on the images by which it is judged.

    Args:
        unit, raw: clients with features of unit length, and as the tower gives them.
        folds: of each client's images.
        names: logits of the class names for each client's images; None without.
        rows: of each client, which images of all judge it, one client after the other.
    """

    def __init__(
        self, unit: Sequence[HeadClient], raw: Sequence[HeadClient], folds: Sequence[Tensor],
        names: Sequence[Tensor] | None, rows: Sequence[Tensor],
    ) -> None:
        self.rows = rows
        self.unit, self.raw = (torch.cat([c.x for c in some]) for some in (unit, raw))
        self.y, self.folds = torch.cat([c.y for c in unit]), torch.cat(list(folds))
        self.names = None if names is None else torch.cat(list(names))
        ends = torch.tensor([0, *map(len, unit)]).cumsum(0)
        self.own = [(at >= a) & (at < b)
                    for at, a, b in zip(rows, ends[:-1], ends[1:], strict=True)]
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
            for i, setting in enumerate(settings):
                self.hits[name][k][i, some] = self._right(setting.one(p), at, raw)

    def chosen(self, name: str, best: Sequence[int]) -> list[Tensor]:
        """Return what the settings say that are best, fold by fold."""
        of = torch.tensor(best)
        return [hits[of[self.folds[at]], torch.arange(len(at))].double()
                for at, hits in zip(self.rows, self.hits[name], strict=True)]

    def alone(
        self, heads: Sequence[Heads], there: Sequence[int], own: Sequence[Tensor],
        named: bool = False,
    ) -> list[Tensor]:
        """Return what clients alone say that train on all they have; of own images, held out.

        Args:
            heads: for each client that is there, heads among which is its own.
            own: what is said of each client's own images, held out ``[n]``.
            named: whether scores of class names are added.
        """
        out = self.of_all(own)
        for p, k in enumerate(there):
            away = ~self.own[k]
            out[k][away] = self._right(heads[p].one(p), self.rows[k][away], named=named).double()
        return out

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
                one[k][away] = (classes == self.y[at[away]]).double()
        return out

    def _right(self, head: Heads, at: Tensor, raw: bool = False, named: bool = False) -> Tensor:
        logits = head.logits((self.raw if raw else self.unit)[at])[0]
        if named and self.names is not None:
            logits = logits + self.names[at].to(logits)
        return logits.argmax(1) == self.y[at]
