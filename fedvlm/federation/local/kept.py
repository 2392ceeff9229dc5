"""Optimisers' states that go on from round to round (``OPTIM.KEEP_STATE``): slots ``optim/...``."""

from __future__ import annotations

import torch
from torch import Tensor

from fedvlm.core.trees import State, to_device

KEPT, COUNT = "optim/", "steps"  # slots of a kept optimiser's state; steps that are behind it


def drop_kept(state: State) -> State:
    """Return a client's state as methods see it: without the optimisers'."""
    return {slot: tree for slot, tree in state.items() if not slot.startswith(KEPT)}


def resume_optimiser(kept: State, tag: str, k: int, device: torch.device) -> State:
    """Return the optimiser's state that fit ``tag`` goes on from, with the steps behind it."""
    prefix = f"{KEPT}{tag}/"
    old = {s.removeprefix(prefix): t for s, t in kept.items() if s.startswith(prefix)}
    none = torch.zeros(k, dtype=torch.float64, device=device)
    return {COUNT: {COUNT: none}} | old


def keep_optimiser(kept: State, tag: str, slots: State, steps: Tensor) -> None:
    """Put the optimiser's state that fit ``tag`` ended with into ``kept``.

    Args:
        slots: of the fit; slot ``p`` is its parameters.
        steps: that each client took, ``[K]``.
    """
    for slot, tree in slots.items():
        if slot == COUNT:
            count = tree[COUNT]
            tree = {COUNT: count + to_device(steps, count.device)}
        if slot != "p":
            name = f"{KEPT}{tag}/{slot}"
            kept[name] = kept.get(name, {}) | tree
