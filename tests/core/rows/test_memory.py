"""Rows in memory: versions, forms, room that is used again."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvlm.core.errors import FedvlmError
from fedvlm.core.rows.memory import MemoryStore
from fedvlm.core.trees import State, stack_states


def row(client: int, version: int, width: int = 2) -> State:
    """One client's state, different from every other's."""
    value = torch.tensor([client * 1000.0 + version] * width, dtype=torch.float64)
    return {"v": {"a": value, "n": torch.tensor(version)}, "empty": {}}


def rows(ids: list[int], version: int, width: int = 2) -> State:
    return stack_states([row(c, version, width) for c in ids])


def number(store: MemoryStore, client: int, version: int) -> float:
    ((_, state),) = store.get([client], [version])
    assert list(state) == ["v", "empty"] and int(state["v"]["n"][0]) == version
    return float(state["v"]["a"][0, 0])


def test_rows_come_back_in_the_order_asked_for_by_form() -> None:
    store = MemoryStore()
    store.put(1, [4, 0, 2], rows([4, 0, 2], 1))
    store.put(1, [3], rows([3], 1, width=5))
    store.put(2, [0], rows([0], 2))
    (two, small), (three, wide) = store.get([2, 0, 3, 4], [1, 2, 1, 1])
    assert two == [2, 0, 4] and three == [3]
    assert small["v"]["a"][:, 0].tolist() == [2001.0, 2.0, 4001.0]
    assert wide["v"]["a"].shape == (1, 5)
    assert small["v"]["a"].dtype == torch.float64 and small["v"]["n"].dtype == torch.int64
    assert small["v"]["a"].is_contiguous()
    small["v"]["a"].zero_()  # a copy
    assert number(store, 2, 1) == 2001.0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sets(st.integers(0, 9), min_size=1), st.sampled_from("pbs")),
                min_size=1, max_size=12))
def test_against_a_dictionary(work: list[tuple[set[int], str]]) -> None:
    """Puts, failed rounds and settlements in any order: every row that is due is there."""
    store, want, accepted = MemoryStore(), dict[tuple[int, int], State](), dict[int, int]()
    for round_, (chosen, what) in enumerate(work, 1):
        ids = sorted(chosen)
        store.begin({c: accepted.get(c, 0) for c in ids})
        want = {(c, v): s for (c, v), s in want.items()
                if c not in chosen or v <= accepted.get(c, 0)}
        store.put(round_, ids, rows(ids, round_))
        if what == "b":
            continue  # the round failed: nothing of it counts
        accepted |= dict.fromkeys(ids, round_)
        want |= {(c, round_): row(c, round_) for c in ids}
        if what == "s":
            store.settle(accepted)
            want = {(c, v): s for (c, v), s in want.items() if accepted[c] == v}
        for client, version in want:
            assert number(store, client, version) == client * 1000.0 + version


def test_a_version_that_is_gone_is_named() -> None:
    store = MemoryStore()
    store.put(1, [0, 1], rows([0, 1], 1))
    store.put(2, [0], rows([0], 2))
    store.put(3, [0], rows([0], 3))
    store.begin({0: 2})
    assert number(store, 0, 2) == 2.0 and number(store, 0, 1) == 1.0
    with pytest.raises(FedvlmError, match="no state of client 0 from round 3"):
        store.get([0], [3])
    store.settle({0: 2, 1: 1})
    assert number(store, 0, 2) == 2.0 and number(store, 1, 1) == 1001.0
    with pytest.raises(FedvlmError, match="no state of client 0 from round 1"):
        store.get([0], [1])


def test_rows_are_used_again() -> None:
    """A hundred rounds of the same ten clients fill no more room than a few."""
    store, ids = MemoryStore(), list(range(10))
    for round_ in range(1, 101):
        store.put(round_, ids, rows(ids, round_))
        store.settle(dict.fromkeys(ids, round_))
    (table,) = store._tables.values()
    assert table.size <= 32 and len(table.free) == table.size - 10
