"""A loop of steps over stacked clients, of which those with no step left drop out, exactly."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import torch

from fedvlm.core.trees import State
from fedvlm.federation.batches import Batch, Step
from fedvlm.federation.local.effort import Trace, Work
from fedvlm.federation.local.ledger import Means
from fedvlm.federation.local.parts import cut_slots, inverse, join_slots, take_slots
from fedvlm.federation.local.stop import Patience

Body = Callable[[State, tuple[Batch, ...], Step], State]


def run_loop(
    slots: State, body: Body, work: Work, steps: Iterator[Step], means: Means,
    counters: Counter[str], patience: Patience | None = None, added: bool = False,
) -> tuple[State, Trace]:
    """Run ``body`` once per step and return the final slots, and of every step who took it.

    Args:
        slots: of the clients in their context's order; so is what is returned.
        work: the order of the loop.
        steps: of the clients in the loop's order.
        means: is told whose numbers come from now on.
        counters: of steps and samples.
        patience: ends clients' work early.
        added: the slots that the body adds are given back, too.
    """
    names, finished = tuple(slots), list[tuple[list[int], State]]()
    places = list(range(len(work.totals)))  # whose rows the slots hold, in the loop's order
    order, trace = work.order, list[tuple[Sequence[int], tuple[int, ...]]]()
    if order is not None:
        slots = take_slots(slots, order)
    for step in steps:
        left = bisect_left(places, step.active)
        if left < len(places):
            finished.append((places[left:], cut_slots(slots, left, len(places))))
            slots, places = cut_slots(slots, 0, left), places[:left]
        if not places:
            break
        if left < step.active:  # somebody before them has stopped
            step = step.take(places)
            means.places = tuple(places)
        slots = body(slots, step.batches, step)
        trace.append((places, step.epochs))
        counters["steps"] += left
        counters["samples"] += step.samples
        gone = patience.leaving(slots["p"], places, step.index) if patience else []
        if gone:
            stay = [i for i in range(left) if i not in gone]
            finished.append(([places[i] for i in gone], take_slots(slots, torch.tensor(gone))))
            slots = take_slots(slots, torch.tensor(stay, dtype=torch.int64))
            places = [places[i] for i in stay]
    parts = [(places, slots), *reversed(finished)]
    out = join_slots([part for _, part in parts], tuple(slots) if added else names, added)
    back = inverse([place for whose, _ in parts for place in whose], order)
    if back is not None:
        out = take_slots(out, back)
    if order is not None:
        at = order.tolist()
        trace = [([at[place] for place in whose], epochs) for whose, epochs in trace]
    return out, trace
