"""Server optimisers by hand (Reddi et al. 2021, without bias correction), and where they live."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvlm.core.errors import ConfigError, DivergedError
from fedvlm.core.trees import State
from fedvlm.federation.aggregation.server_optim import SERVER_OPTIMS, ServerOptimSpec, server_step

from ..toys import Quadratic
from .test_rules import federation, outcome

KINDS = tuple(SERVER_OPTIMS)


def state(*values: float) -> State:
    return {"w": {"a": torch.tensor(values, dtype=torch.float64)}}


def target(*values: float) -> dict[str, torch.Tensor]:
    return {"a": torch.tensor(values, dtype=torch.float64)}


def values(server: State, slot: str = "w") -> list[float]:
    return server[slot]["a"].tolist()


def test_none_hands_on_the_very_tensors() -> None:
    aim, before = target(0.1, 0.2), state(5.0, 6.0) | {"other": {}}
    after = server_step(ServerOptimSpec(), before, aim)
    assert after == {"w": aim, "other": {}} and after["w"]["a"] is aim["a"]


def test_fedavgm_over_two_rounds() -> None:
    spec = ServerOptimSpec("momentum", lr=0.5, momentum=0.8)
    one = server_step(spec, state(1.0), target(3.0))  # d = 2, m = 2
    assert values(one) == [2.0] and values(one, "opt.m") == [2.0]
    two = server_step(spec, one, target(1.0))  # d = -1, m = 1.6 - 1
    assert values(two, "opt.m") == pytest.approx([0.6])
    assert values(two) == pytest.approx([2.3])
    assert set(two) == {"w", "opt.m"}


def test_momentum_of_rate_one_and_decay_zero_is_plain_averaging() -> None:
    spec = ServerOptimSpec("momentum", momentum=0.0)
    server = state(1.0, -4.0)
    for aim in ((3.0, 8.0), (-1.0, 2.0)):
        server = server_step(spec, server, target(*aim))
        assert values(server) == list(aim)


@pytest.mark.parametrize("kind", ["adam", "yogi"])
def test_first_two_steps_by_hand(kind: str) -> None:
    lr, b1, b2, tau = 0.1, 0.9, 0.99, 0.01
    spec = ServerOptimSpec(kind, lr, 0.0, b1, b2, tau)
    m1, square = 0.1 * 2, 4.0
    start = tau**2
    v1 = b2 * start + 0.01 * square if kind == "adam" else start + 0.01 * square  # d^2 above v
    w1 = 1 + lr * m1 / (math.sqrt(v1) + tau)
    one = server_step(spec, state(1.0), target(3.0))
    assert values(one) == pytest.approx([w1], rel=1e-14)
    assert values(one, "opt.m") == pytest.approx([m1])
    assert values(one, "opt.v") == pytest.approx([v1])
    d = 0.05  # now d^2 = 0.0025 is below v = 0.04: yogi's sign turns
    m2 = b1 * m1 + (1 - b1) * d
    v2 = b2 * v1 + (1 - b2) * d**2 if kind == "adam" else v1 - (1 - b2) * d**2
    two = server_step(spec, one, target(w1 + d))
    assert values(two, "opt.m") == pytest.approx([m2])
    assert values(two, "opt.v") == pytest.approx([v2])
    assert values(two) == pytest.approx([w1 + lr * m2 / (math.sqrt(v2) + tau)], rel=1e-13)


@pytest.mark.parametrize("kind", ["adam", "yogi"])
@given(steps=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_second_moment_stays_positive_and_steps_finite(kind: str, steps: list[float]) -> None:
    spec, server = ServerOptimSpec(kind), state(0.0)
    for d in steps:
        server = server_step(spec, server, target(values(server)[0] + d))
        assert values(server, "opt.v")[0] > 0 and math.isfinite(values(server)[0])


def test_rates_where_none_is_given() -> None:
    assert [ServerOptimSpec(kind).rate for kind in KINDS] == [1.0, 0.01, 0.01]
    assert ServerOptimSpec("adam", 0.3).rate == 0.3


@pytest.mark.parametrize("kind", KINDS)
def test_types_stay_moments_are_double_and_nothing_is_changed_in_place(kind: str) -> None:
    before = {"w": {"a": torch.ones(2), "still": torch.zeros(1)}}
    one = server_step(ServerOptimSpec(kind), before, {"a": torch.full((2,), 2.0)})
    kept = {slot: {n: v.clone() for n, v in tree.items()} for slot, tree in one.items()}
    server_step(ServerOptimSpec(kind), one, {"a": torch.zeros(2)})
    assert one["w"]["a"].dtype is torch.float32 and one["opt.m"]["a"].dtype is torch.float64
    assert torch.equal(before["w"]["a"], torch.ones(2))
    assert one["w"]["still"] is before["w"]["still"]  # not in the aggregate
    for slot, tree in one.items():
        for name, v in tree.items():
            assert torch.equal(v, kept[slot][name])


def test_a_step_that_is_not_finite_is_refused() -> None:
    with pytest.raises(DivergedError, match="'a' is not finite"):
        server_step(ServerOptimSpec("momentum", lr=1e308), state(0.0), target(1e10))


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_federation(kind: str) -> None:
    spec = ServerOptimSpec(kind, lr=1.0 if kind == "momentum" else 0.1)
    fed = federation(Quadratic(), rounds=40, server_optim=spec)
    found, _ = outcome(fed)
    assert found == pytest.approx(1.05, abs=0.2)
    halfway = fed.run(until=20)
    assert fed.run(halfway).server["w"]["w"].item() == found  # the moments are in the state


def test_a_slot_of_the_optimisers_name_is_refused() -> None:
    class Taken(Quadratic):
        def init_server(self, ctx: Any, start: Any) -> State:
            return super().init_server(ctx, start) | {"opt.m": {}}

    with pytest.raises(ConfigError, match=r"slot 'opt\.m' is used by FED\.SERVER_OPTIM adam"):
        federation(Taken(), server_optim=ServerOptimSpec("adam")).start()
    federation(Taken()).start()
