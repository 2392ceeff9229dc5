"""A loop of steps over stacked clients, of which those with no step left drop out, exactly."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from fedvlm.core.trees import State, cat, slice_clients
from fedvlm.federation.batches import Batch, Step
from fedvlm.federation.local.effort import Trace, Work
from fedvlm.federation.local.ledger import Means
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
        slots = _take_slots(slots, order)
    for step in steps:
        left = bisect_left(places, step.active)
        if left < len(places):
            finished.append((places[left:], _cut_slots(slots, left, len(places))))
            slots, places = _cut_slots(slots, 0, left), places[:left]
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
            finished.append(([places[i] for i in gone], _take_slots(slots, torch.tensor(gone))))
            slots = _take_slots(slots, torch.tensor(stay, dtype=torch.int64))
            places = [places[i] for i in stay]
    parts = [(places, slots), *reversed(finished)]
    out = _join_slots([part for _, part in parts], tuple(slots) if added else names, added)
    back = _inverse([place for whose, _ in parts for place in whose], order)
    if back is not None:
        out = _take_slots(out, back)
    if order is not None:
        at = order.tolist()
        trace = [([at[place] for place in whose], epochs) for whose, epochs in trace]
    return out, trace


def _cut_slots(state: State, start: int, stop: int) -> State:
    """Return rows ``start`` to ``stop`` of every leaf (views)."""
    return {slot: slice_clients(tree, start, stop) for slot, tree in state.items()}


def _take_slots(state: State, at: Tensor) -> State:
    """Return the rows ``at`` of every leaf."""
    return {s: {n: v[at.to(v.device)] for n, v in t.items()} for s, t in state.items()}


def _join_slots(parts: Sequence[State], names: Sequence[str], fill: bool = False) -> State:
    """Return the slots ``names`` of all parts, one after the other.

    Args:
        fill: zeros stand for what a part does not have: a client that took no step has no state
            of an optimiser. Its rows are counted by slot ``p``.
    """
    out: State = {}
    for slot in names:
        if not fill:
            out[slot] = cat([part[slot] for part in parts])
            continue
        like, trees = parts[0][slot], []
        for part in parts:
            own, k = part.get(slot, {}), len(next(iter(part["p"].values())))
            trees.append({n: own[n] if n in own else v.new_zeros(k, *v.shape[1:])
                          for n, v in like.items()})
        out[slot] = cat(trees)
    return out


def _inverse(places: Sequence[int], order: Tensor | None) -> Tensor | None:
    """Return which rows, joined by ``places`` in a loop's order, are the context's in turn.

    None where they lie as they should.
    """
    if order is None and list(places) == sorted(places):
        return None
    there = torch.tensor(places, dtype=torch.int64)
    return (there if order is None else order[there]).argsort()
