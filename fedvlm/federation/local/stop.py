"""``FED.EARLY_STOP``: who goes on training, by the loss on the client's own validation images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fedvlm.core.trees import Tree

ScoreClients = Callable[[Tree, Sequence[int]], list[float]]


class Patience:
    """Counts epochs without a better validation loss, client by client.

    The host is read once after each local epoch (of several clients together where their epochs
    end at the same step). A client that stops keeps its **last** tensors, not the best: what it
    sends is what its steps made, so that control variates, momentum and counters belong to it.

    Args:
        epochs: so many in a row without a lower loss, and a client stops.
        lengths: steps of one epoch, by place in the loop's order.
        totals: steps of the whole fit: after the last one there is nothing to ask.
        score: the losses of some of the clients at their tensors ``[K', ...]``, by place.
    """

    def __init__(
        self, epochs: int, lengths: Sequence[int], totals: Sequence[int], score: ScoreClients
    ) -> None:
        self._epochs, self._lengths, self._totals = epochs, lengths, totals
        self._score = score
        self._best: dict[int, float] = {}
        self._waited: dict[int, int] = {}

    def leaving(self, params: Tree, places: Sequence[int], step: int) -> list[int]:
        """Return which of the rows of ``params`` stop after 1-based ``step``, ascending.

        Args:
            places: whose they are, by place in the loop's order.
        """
        due = [i for i, place in enumerate(places)
               if step % self._lengths[place] == 0 and step < self._totals[place]]
        if not due:
            return []
        some = {n: v if len(due) == len(places) else v[due] for n, v in params.items()}
        losses = self._score(some, [places[i] for i in due])
        gone = []
        for i, loss in zip(due, losses, strict=True):
            place = places[i]
            better = loss < self._best.get(place, math.inf)
            self._best[place] = loss if better else self._best.get(place, math.inf)
            self._waited[place] = 0 if better else self._waited.get(place, 0) + 1
            if self._waited[place] >= self._epochs:
                gone.append(i)
        return gone
