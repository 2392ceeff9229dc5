"""LG-FedAvg on the split toy; here the head is global, the body local."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.check.compare import same_fed
from fedvlm.check.disk import read_state, write_state
from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import Tree
from fedvlm.federation.batches import Batch
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.rounds import RoundFinished
from tests.federation.toys import quadratic
from tests.trainers.toys import G, L, TwoNumbers, config, drive, own, personal, shared, toy


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
    states: list[Any] = []
    fed.subscribers.append(lambda e: seen.append(e) if isinstance(e, RoundFinished) else None)
    fed.savers.append(states.append)
    end = fed.run()
    _, joint = drive("FedAvg", 3, split=True)
    after = states[3]
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


def test_a_warm_up_is_stacked_by_what_clients_receive(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client that has the body since round 3 and the one that gets it now do not stack."""
    cls, seen, ends = load_trainer("LG-FedAvg"), list[tuple[int, ...]](), []
    update = cls.client_update

    def count(self: Any, ctx: Any, *args: Any) -> Any:
        seen.append(tuple(ctx.clients))
        return update(self, ctx, *args)

    monkeypatch.setattr(cls, "client_update", count)
    for chunk in (1, 8):
        fed, _ = run(8, options={"WARMUP_ROUNDS": 2}, frac=0.5, first_round_all=False, chunk=chunk)
        state = fed.run(until=3)
        assert len(state.held) == 1
        fed.plan = replace(fed.plan, frac=1.0)
        seen.clear()
        fourth = fed.round(state, 4)
        assert sorted(seen) == [(0,), (1,)] and set(fourth.held) == {0, 1}
        seen.clear()
        ends.append(fed.round(fourth, 5).whole)
        assert seen == ([(0,), (1,)] if chunk == 1 else [(0, 1)])
        assert sorted(ids for ids, _ in fed.personal(state, [0, 1])) == [[0], [1]]
    same_fed(*ends, "stacked against one by one")


def test_who_was_served_is_held_by_the_server_and_survives_a_resume(tmp_path: Path) -> None:
    fed, _ = run(6, options={"WARMUP_ROUNDS": 2}, frac=0.5, first_round_all=False)
    seen: list[RoundFinished] = []
    states: list[Any] = []
    fed.subscribers.append(lambda e: seen.append(e) if isinstance(e, RoundFinished) else None)
    fed.savers.append(states.append)
    whole = fed.run()
    assert all(state.held == {} for state in states if state.round <= 2)
    assert set(whole.server) == {"w", "warm"}
    served: set[int] = set()
    for event, state in zip(seen[3:], states[3:], strict=True):
        (client,) = event.bytes_down
        assert set(event.bytes_down[client]) == ({L} if client in served else {G, L})
        served.add(client)
        assert set(state.held) == served
        assert set(fed.downloads(state, event.round + 1, [client])[client]) == {L}
    half = states[3]
    write_state(tmp_path, fed, half)
    rest = fed.run(read_state(tmp_path, fed))
    same_fed(rest.whole, whole.whole, "resumed after the first served client")


def test_a_client_that_was_dropped_gets_the_warm_body_again() -> None:
    """Its work is lost, and with it the body that it had received."""

    class Poison:
        bad = -1.0

        def loss(self, model: Any, p: Tree, b: Batch) -> Tensor:
            value = super().loss(model, p, b)  # type: ignore[misc]
            return torch.where(b.x["a"][:, 0] == self.bad, torch.nan, 1.0) * value

    cls = load_trainer("LG-FedAvg")
    made = type("Poisoned", (Poison, TwoNumbers, cls), {})
    fed = quadratic(made(config(cls, {"WARMUP_ROUNDS": 1})), 4, nonfinite="drop")
    state = fed.round(fed.start(), 1)
    made.bad = 3.0  # client 1
    state = fed.round(state, 2)
    assert set(state.held) == {0}
    down = fed.downloads(state, 3, [0, 1])
    assert set(down[0]) == {L} and set(down[1]) == {G, L}
    made.bad = -1.0
    state = fed.round(state, 3)
    assert set(state.held) == {0, 1}


@pytest.mark.parametrize("warmup", [0, 2])
def test_the_global_model_is_nobodys_body(warmup: int) -> None:
    fed, state = run(4, options={"WARMUP_ROUNDS": warmup})
    found = fed.shared(state)
    assert float(found[L][0]) == shared(state, L)
    body = float(state.server["warm"][G]) if warmup else 0.0
    assert float(found[G][0]) == body and body not in own(state, G)[1:]


def test_warmup_must_leave_a_round() -> None:
    with pytest.raises(ConfigError, match="leaves no round"):
        toy("LG-FedAvg", options={"WARMUP_ROUNDS": 10})
