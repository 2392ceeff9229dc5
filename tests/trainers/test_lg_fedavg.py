"""LG-FedAvg on the split toy (personalized_fl.md 5.3); here the head is global, the body local."""

from __future__ import annotations

from typing import Any

import pytest

from fedvlm.core.errors import ConfigError
from fedvlm.federation.rounds import RoundFinished
from tests.trainers.toys import G, L, drive, own, personal, shared, toy


def run(rounds: int, **how: Any) -> Any:
    return drive("LG-FedAvg", rounds, split=True, **how)


def test_joint_step() -> None:
    _, state = run(1)
    assert shared(state, L) == pytest.approx(0.6, abs=1e-12)
    assert own(state, G) == pytest.approx([0.0, 1.2], abs=1e-12)
    assert set(state.server["w"]) == {L}


@pytest.mark.parametrize("chunk", [1, 2])
def test_alternating_step(chunk: int) -> None:
    """Plato's two passes; 0.42, not 0.6."""
    _, state = run(1, options={"ALTERNATE": True}, chunk=chunk)
    assert shared(state, L) == pytest.approx(0.42, abs=1e-12)
    assert own(state, G) == pytest.approx([0.0, 1.2], abs=1e-12)


def test_alternating_with_momentum_stacked_equals_one_by_one() -> None:
    states = [
        run(3, options={"ALTERNATE": True}, chunk=c, sizes=(7, 3), batch=2, momentum=0.9, epochs=2)
        for c in (1, 2)
    ]
    assert shared(states[0][1], L) == shared(states[1][1], L) != 0.0
    assert own(states[0][1], G) == own(states[1][1], G)


def test_uniform_mean() -> None:
    assert shared(run(1, sizes=(3, 1))[1], L) == pytest.approx(0.6, abs=1e-12)
    samples = run(1, sizes=(3, 1), options={"WEIGHTING": "samples"})[1]
    assert shared(samples, L) == pytest.approx(0.3, abs=1e-12)


def test_warmup_is_fedavg_on_everything_then_bodies_part() -> None:
    warm = {"WARMUP_ROUNDS": 3}
    fed, _ = run(5, options=warm)
    seen: list[RoundFinished] = []
    fed.subscribers.append(lambda e: seen.append(e) if isinstance(e, RoundFinished) else None)
    end = fed.run()
    _, joint = drive("FedAvg", 3, split=True)
    after = seen[3].state
    assert after.server["w"][L] == joint.server["w"][L]
    assert after.server["warm"][G] == joint.server["w"][G]
    assert personal(fed, after, G) == [float(joint.server["w"][G])] * 2
    assert set(seen[3].bytes_up[0]) == {G, L}
    assert set(seen[4].bytes_down[0]) == {G, L} and set(seen[4].bytes_up[0]) == {L}
    assert set(seen[5].bytes_down[0]) == {L}  # the averaged body came once
    assert own(end, G)[0] != own(end, G)[1]
    assert personal(fed, end, G) == own(end, G)


def test_a_client_that_rested_gets_the_warm_body_when_it_is_next_drawn() -> None:
    fed, _ = run(8, options={"WARMUP_ROUNDS": 2}, frac=0.5, first_round_all=False)
    state = fed.run(until=2)
    drawn: set[int] = set()
    for round_ in range(3, 9):
        for client in (0, 1):
            down = set(fed.downloads(state, round_, [client])[client])
            assert down == ({L} if client in drawn else {G, L})
        drawn |= set(fed.plan.sample(round_))
        state = fed.round(state, round_)
    assert drawn == {0, 1}


def test_warmup_must_leave_a_round() -> None:
    with pytest.raises(ConfigError, match="leaves no round"):
        toy("LG-FedAvg", options={"WARMUP_ROUNDS": 10})
