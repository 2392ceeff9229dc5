"""LocalOnly: an empty shared group travels, aggregates, resumes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedvlm.check.disk import read_state, write_state
from fedvlm.federation.rounds import RoundFinished
from tests.trainers.toys import drive, leaves, own, personal


def test_each_client_descends_alone() -> None:
    fed, state = drive("LocalOnly", 10, epochs=2)
    expected = [0.0, 4 * (1 - 0.7**20)]
    assert own(state) == pytest.approx(expected, abs=1e-12)
    assert personal(fed, state) == own(state)


def test_nothing_is_sent_and_nothing_aggregated() -> None:
    fed, state = drive("LocalOnly", 1)
    seen: list[RoundFinished] = []
    fed.subscribers.append(lambda e: seen.append(e) if isinstance(e, RoundFinished) else None)
    fed.run()
    assert seen[-1].bytes_up == {0: {}, 1: {}} and seen[-1].bytes_down == {0: {}, 1: {}}
    assert seen[-1].updates is not None and seen[-1].updates.weight.tolist() == [1.0, 1.0]
    assert state.server == {"w": {}}
    assert float(fed.shared(state)["image.w"][0]) == 0.0  # the untrained start


def test_an_empty_shared_group_survives_a_resume(tmp_path: Path) -> None:
    fed, whole = drive("LocalOnly", 4, momentum=0.9)
    half = fed.run(until=2)
    write_state(tmp_path, fed, half)
    rest = fed.run(read_state(tmp_path, fed))
    for (place, a), (other, b) in zip(leaves(rest), leaves(whole), strict=True):
        assert place == other and torch.equal(a, b)


def test_an_unsampled_client_rests() -> None:
    _, state = drive("LocalOnly", 1, frac=0.5, first_round_all=False)
    assert sum(v == 0.0 for v in own(state)) >= 1
