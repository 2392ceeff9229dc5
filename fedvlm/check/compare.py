"""What the invariants compare with: trees and states, and the sentence when they differ."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvlm.core.trees import State, Tree, clone
from fedvlm.federation.rounds import WholeState


class Broken(Exception):
    """An invariant that does not hold: one sentence that names the client and the tensor."""


def demand(holds: bool, sentence: str) -> None:
    """Raise ``Broken(sentence)`` unless ``holds``."""
    if not holds:
        raise Broken(sentence)


def gap(x: Tensor, y: Tensor) -> float:
    """Return the largest difference, relative to the larger tensor where that is above 1.

    Infinite where shapes differ or one side alone is not a number.
    """
    if x.shape != y.shape:
        return float("inf")
    if not x.numel() or torch.equal(x, y):
        return 0.0
    a, b = x.double(), y.double()
    largest = float((a - b).abs().max())
    return largest / max(1.0, float(b.abs().max())) if largest == largest else float("inf")


def same_tree(ours: Tree, theirs: Tree, what: str, tolerance: float = 0.0) -> None:
    """Demand equal names, and leaves equal within ``tolerance`` (0: bit for bit).

    Raises:
        Broken: names ``what``, the tensor and the difference.
    """
    odd = sorted(set(ours) ^ set(theirs))
    demand(not odd, f"{what}: tensor '{odd[0] if odd else ''}' is missing on one side")
    for name, value in ours.items():
        distance = gap(value, theirs[name])
        demand(distance <= tolerance, f"{what}: '{name}' differs by {distance:.1e}")


def same_state(ours: State, theirs: State, what: str, tolerance: float = 0.0) -> None:
    """Demand equal slots of equal trees (see ``same_tree``)."""
    odd = sorted(set(ours) ^ set(theirs))
    demand(not odd, f"{what}: slot '{odd[0] if odd else ''}' is missing on one side")
    for slot, tree in ours.items():
        same_tree(tree, theirs[slot], f"{what}, slot '{slot}'", tolerance)


def same_fed(ours: WholeState, theirs: WholeState, what: str, tolerance: float = 0.0) -> None:
    """Demand the same round, server state and client states (see ``same_tree``)."""
    demand(ours.round == theirs.round, f"{what}: round {ours.round} instead of {theirs.round}")
    same_state(ours.server, theirs.server, f"{what}: server", tolerance)
    for client, state in theirs.clients.items():
        same_state(ours.clients[client], state, f"{what}: client {client}", tolerance)
    for client, state in theirs.held.items():
        held = ours.held.get(client, {})
        same_state(held, state, f"{what}: held for client {client}", tolerance)
    demand(ours.worked == theirs.worked, f"{what}: different clients or rounds are recorded as "
                                         "trained")


def differs(ours: State, theirs: State) -> bool:
    """Return whether any tensor of equal slot and name differs."""
    return any(
        gap(value, theirs[slot][name]) > 0
        for slot, tree in ours.items() if slot in theirs
        for name, value in tree.items() if name in theirs[slot]
    )


def copy_state(state: State) -> State:
    """Return a copy that shares no memory, so that a later write in place shows."""
    return {slot: clone(tree) for slot, tree in state.items()}


def copy_fed(state: WholeState) -> WholeState:
    """Return a copy of a whole federation's state that shares no memory."""
    clients = {c: copy_state(s) for c, s in state.clients.items()}
    held = {c: copy_state(s) for c, s in state.held.items()}
    return WholeState(state.round, copy_state(state.server), clients, held, dict(state.worked))


def to_plain(value: Any) -> Any:
    """Return nested mappings and sequences with tensors as lists, comparable with ``==``."""
    if isinstance(value, (Tensor, np.ndarray)):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: to_plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    return value


def global_generators() -> list[Any]:
    """Return the state of the global generators of random, numpy and torch."""
    return [random.getstate(), to_plain(np.random.get_state()), torch.get_rng_state().tolist()]
