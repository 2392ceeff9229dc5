"""Slots of trees, cut to the clients at work and joined again when all have finished."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedvlm.core.trees import State, cat, slice_clients


def cut_slots(state: State, start: int, stop: int) -> State:
    """Return rows ``start`` to ``stop`` of every leaf (views)."""
    return {slot: slice_clients(tree, start, stop) for slot, tree in state.items()}


def take_slots(state: State, at: Tensor) -> State:
    """Return the rows ``at`` of every leaf."""
    return {s: {n: v[at.to(v.device)] for n, v in t.items()} for s, t in state.items()}


def join_slots(parts: Sequence[State], names: Sequence[str], fill: bool = False) -> State:
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


def inverse(places: Sequence[int], order: Tensor | None) -> Tensor | None:
    """Return which rows, joined by ``places`` in a loop's order, are the context's in turn.

    None where they lie as they should.
    """
    if order is None and list(places) == sorted(places):
        return None
    there = torch.tensor(places, dtype=torch.int64)
    return (there if order is None else order[there]).argsort()
