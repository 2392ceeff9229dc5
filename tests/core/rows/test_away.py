"""What a server has of clients whose states are with another process: no tensor of any."""

from __future__ import annotations

import pytest
import torch

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.rows.away import AwayStore
from fedvlm.core.rows.store import AWAY

TENSORS = {"w": {"text.ctx": torch.zeros(1)}}


def test_a_server_keeps_versions_and_refuses_tensors() -> None:
    store = AwayStore()
    assert store.get([3, 1], [2, 2]) == [([3, 1], {})] and store.floor == {}
    store.put(2, [3, 1], {})
    store.settle({3: 1})
    store.settle({3: 2})
    assert store.floor == {3: 1}
    with pytest.raises(FedvlmError, match="states of clients"):
        store.put(1, [0], TENSORS)


def test_states_of_the_local_engine_are_refused() -> None:
    away = AwayStore(None)
    away.note_forms(3, {1: "ab" * 6})
    ((ids, state),) = away.get([1], [3])
    assert ids == [1] and not any(state.values())
    again = AwayStore(None)
    again.put(3, ids, state)
    assert again.forms == away.forms
    for store in (again, AwayStore("site")):
        with pytest.raises(ConfigError, match="was started with --engine local"):
            store.put(3, [0], TENSORS)
    with pytest.raises(ConfigError, match="was started with --engine local"):
        again.put(3, [0], {})


def test_rows_of_one_form_stand_for_states_at_sites() -> None:
    store = AwayStore("site")
    assert store.get([2, 0], [1, 1]) == [([2, 0], {AWAY + "site": {}})]
    assert store.get([], []) == []
    store.put(1, [2, 0], {AWAY + "site": {}})
    for odd in ({}, {AWAY + "ab": {}}):
        with pytest.raises(ConfigError, match="was started with another --engine"):
            store.put(1, [0], odd)


def test_forms_go_once_no_checkpoint_needs_them() -> None:
    store = AwayStore(None)
    for version in (1, 2, 3):
        store.note_forms(version, {0: f"form{version}"})
    store.settle({0: 2})
    store.settle({0: 3})
    assert store.forms == {0: {2: "form2", 3: "form3"}}
