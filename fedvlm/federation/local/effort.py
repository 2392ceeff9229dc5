"""How long a client trains in a round: epochs, epochs drawn for each client, or so many steps.

All of it is known on the host before the first step, and a function of config, seed, round and
client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from fedvlm.core import rng
from fedvlm.federation.reliability.unreliable import Unreliable

STREAM = "epochs"
Trace = Sequence[tuple[Sequence[int], tuple[int, ...]]]  # of every step: who, at which epochs


@dataclass(frozen=True)
class Effort:
    """What ``FED.LOCAL_EPOCHS``, ``FED.LOCAL_STEPS`` and ``FED.EPOCHS_RANGE`` say.

    Attributes:
        epochs: local epochs; also by how many epochs a round moves the schedule's clock.
        steps: every client makes exactly so many steps instead, on and on through its samples,
            shuffled anew for every pass; 0: whole epochs.
        span: fewest and most epochs, drawn for each client and round; (): ``epochs`` for all.
        seed: of the draws.
        unreliable: may end a client's work before that.
    """

    epochs: int = 1
    steps: int = 0
    span: tuple[int, ...] = ()
    seed: int = 1
    unreliable: Unreliable = field(default_factory=Unreliable)

    def drawn(self, round_: int, clients: Sequence[int]) -> list[int]:
        """Return the local epochs of each client in a round."""
        if not self.span:
            return [self.epochs] * len(clients)
        low, high = self.span
        return [
            int(torch.randint(
                low, high + 1, (), generator=rng.stream(self.seed, STREAM, round_, client)
            ))
            for client in clients
        ]

    def totals(self, round_: int, clients: Sequence[int], lengths: Sequence[int]) -> list[int]:
        """Return the steps of each client in a round, those before a deadline.

        Args:
            lengths: steps of one epoch of each; 0: it has no samples and takes none.
        """
        return self.cut(round_, clients, lengths, lengths)

    def whole(self, round_: int, clients: Sequence[int], lengths: Sequence[int]) -> list[int]:
        """Return the steps of each client in a round if it has all the time it needs."""
        if self.steps:
            return [self.steps if n else 0 for n in lengths]
        return [e * n for e, n in zip(self.drawn(round_, clients), lengths, strict=True)]

    def cut(
        self, round_: int, clients: Sequence[int], lengths: Sequence[int], plain: Sequence[int]
    ) -> list[int]:
        """Return ``totals`` of a fit whose epoch is not a plain one's.

        Args:
            plain: steps of one epoch of all samples, batch by batch.
        """
        totals = self.whole(round_, clients, lengths)
        if not self.unreliable.cuts:
            return totals
        whole = self.whole(round_, clients, plain)
        return self.unreliable.part(round_, clients, totals, whole)


class Worked(NamedTuple):
    """What a client has done in a run, as far as it is public.

    Attributes:
        steps: of each round in which it was drawn (of each fit of a round, where it makes
            several); an upper bound where deadlines end its work.
        per_pass: steps of one pass through its samples.
        size, batch: its training samples, and those of its largest batch.
        spread: in how many batches of a pass the images that are hidden together may be.
    """

    steps: tuple[int, ...]
    per_pass: int
    size: int
    batch: int
    spread: int = 1

    @property
    def passes(self) -> int:
        """In how many batches a sample may have been; a pass that has begun counts.

        Of samples that are hidden together: in how many batches any of them may have been.
        """
        each = (divmod(steps, self.per_pass) for steps in self.steps if self.per_pass)
        return sum(whole * self.spread + min(rest, self.spread) for whole, rest in each)


class Work(NamedTuple):
    """How long the clients of a chunk train, in the order of the loop: by falling totals.

    Attributes:
        lengths: steps of one epoch.
        totals: steps.
        epochs: local epochs: of all, or one number each.
        limit: so many steps of each client instead; 0: epochs count.
        most: at most so many steps of each; (): any.
        after: epochs of the round that are behind.
        order: their places in the context; None: the same.
    """

    lengths: list[int]
    totals: list[int]
    epochs: int | list[int]
    limit: int
    after: int
    order: Tensor | None
    most: tuple[int, ...] = ()


def samples_of(steps: int, slices: Sequence[Sequence[tuple[int, int]]]) -> int:
    """Return the samples that ``steps`` steps train on, where ``slices`` make up an epoch."""
    if not slices:
        return 0
    sizes = [sum(b - a for a, b in step) for step in slices]
    passes, rest = divmod(steps, len(sizes))
    return passes * sum(sizes) + sum(sizes[:rest])


def way_of(trace: Trace, k: int, rate: Callable[[int], float]) -> Tensor:
    """Return the sum of the rates of each client's steps, ``[K]`` float64 on the CPU."""
    counts = [Counter[int]() for _ in range(k)]
    for whose, epochs in trace:
        for client, epoch in zip(whose, epochs, strict=True):
            counts[client][epoch] += 1
    return torch.tensor([_way(c, rate) for c in counts], dtype=torch.float64)


def _way(counts: Counter[int], rate: Callable[[int], float]) -> float:
    """Return the sum of rates; over whole epochs as steps times the mean of their rates."""
    each = [rate(epoch) for epoch in sorted(counts)]
    if len(set(counts.values())) <= 1:
        return counts.total() * sum(each) / max(len(each), 1)
    return sum(counts[epoch] * value for epoch, value in zip(sorted(counts), each, strict=True))
