"""Two sides of the same run, round by round in turn: what each costs, how far they are apart.

CPU time of this process is what is compared, on one thread unless asked otherwise: other work on
the machine takes wall time from both sides, and of their CPU time only what it costs them in
caches. The sides take turns within every pair, and every second pair begins with the other one, so
that what drifts (clock, caches, load) drifts for both. The median of the pairs' ratios counts, and
their extremes stand beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from evidence.bench import machine
from evidence.bench.machine import Cost, Measurements, measure
from evidence.bench.ways import ways
from fedvlm.federation.rounds import Federation, RoundFinished

Losses = dict[tuple[int, int, str], float]  # (round, client, name) -> mean of the round
SIDES = ("fast", "plain")


@dataclass(frozen=True)
class Played:
    """Some rounds from the start: what was lost, sent, counted and spent.

    Attributes:
        losses: of every client and round, by name.
        bytes: sent and received, of all rounds.
        client_rounds: how often a client worked.
        work: counters of all rounds.
        cost: of the rounds; its memory is what they added at their peak, not the whole process.
    """

    losses: Losses
    bytes: int
    client_rounds: int
    work: Counter[str]
    cost: Cost


def hear(fed: Federation) -> list[RoundFinished]:
    """Return the list that the rounds to come are entered in; nobody else hears of them."""
    events: list[RoundFinished] = []
    fed.subscribers[:] = [lambda e: events.append(e) if isinstance(e, RoundFinished) else None]
    return events


def losses_of(events: Sequence[RoundFinished]) -> Losses:
    """Return the losses of every client and round, by name."""
    return {(e.round, client, name): value
            for e in events if e.updates is not None for client in e.updates.clients
            for name, value in e.updates.of(client).items() if "loss" in name}


def play(fed: Federation, rounds: int, *, memory: bool = True) -> Played:
    """Run the first rounds from the start.

    Args:
        memory: whether the peak is wanted, for which freed memory is given back before.
    """
    events = hear(fed)

    def work() -> None:
        state = fed.start()
        for round_ in range(1, rounds + 1):
            state = fed.round(state, round_)

    before = machine.settle() if memory else 0
    _, spent = measure(work)
    sent = sum(
        n for e in events for way in (e.bytes_up, e.bytes_down) for one in way.values()
        for n in one.values()
    )
    counted: Counter[str] = Counter()
    for event in events:
        counted.update(event.counters)
    return Played(
        losses_of(events), sent, sum(len(e.updates or ()) for e in events), counted,
        replace(spent, rss=max(0, spent.rss - before) if memory else 0),
    )


def compare(fast: Federation, plain: Federation, rounds: int, repeats: int) -> Measurements:
    """Return what a client-round costs on both sides, and how far their losses are apart.

    The first round of each side warms up and is not timed. ``ways`` is empty where the fast side
    has no other way than the plain one; there is no ``ratio`` then.
    """
    sides = (fast, plain)
    first = [play(side, rounds, memory=False) for side in sides]
    pairs: list[tuple[Cost, ...]] = []
    for number in range(repeats):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        spent = {i: play(sides[i], rounds, memory=number == 0).cost for i in order}
        pairs.append((spent[0], spent[1]))
    taken = ways(fast, plain, first[0].work, first[1].work)
    out: Measurements = {"ways": list(taken)}
    for i, name in enumerate(SIDES):
        work = max(1, first[i].client_rounds)
        out[name] = {
            "cpu": median(pair[i].cpu for pair in pairs) / work,
            "wall": median(pair[i].wall for pair in pairs) / work,
            "memory": max(pair[i].rss for pair in pairs),
            "work": {n: v for n, v in sorted(first[i].work.items()) if v},
        }
    ratios = [pair[1].cpu / max(pair[0].cpu, 1e-9) for pair in pairs]
    if taken:
        out |= {"ratio": median(ratios), "lowest": min(ratios), "highest": max(ratios)}
    return out | {
        "bytes_per_round": first[0].bytes / rounds,
        "loss_difference": difference(first[0].losses, first[1].losses),
        "losses": len(first[0].losses),
    }


def difference(fast: Losses, plain: Losses) -> float | None:
    """Return the largest difference of a client's loss, relative to it or to 1; None without any.

    Losses that one side lacks count as infinitely far.
    """
    if fast.keys() != plain.keys():
        return float("inf")
    gaps = [abs(fast[k] - plain[k]) / max(abs(plain[k]), 1.0) for k in fast]
    return max(gaps, default=None)
