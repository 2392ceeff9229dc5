"""SCAFFOLD against closed forms."""

from __future__ import annotations

from typing import Any

import pytest

from fedvlm.core.errors import ConfigError
from fedvlm.federation.optim import OptimSpec, RoleSpec, Schedule
from fedvlm.federation.rounds import RoundFinished
from tests.federation.toys import ETA, quadratic

from .toys import drive, own, personal, shared, toy

TWO = {"FED.CLIENTS": 2}


def test_fixed_point_is_the_optimum_and_the_variates_are_its_gradients() -> None:
    fed, state = drive("SCAFFOLD", 60, epochs=5, keys=TWO)
    assert shared(state) == pytest.approx(3.0, abs=1e-9)
    assert own(state, slot="c") == pytest.approx([3.0, -3.0], abs=1e-8)
    assert float(state.server["c"]["image.w"]) == pytest.approx(0.0, abs=1e-9)
    assert personal(fed, state) == pytest.approx([3.0, 3.0], abs=1e-9)


@pytest.mark.parametrize("rate", [lambda e: ETA, lambda e: ETA / (1 + e)])
def test_option_two_in_round_one(rate: Any) -> None:
    """The way (x - y) over the sum of the rates; K is the number of steps, not of epochs."""
    made = toy("SCAFFOLD", keys=TWO)
    fed = quadratic(made, 1, epochs=2, sizes=(3, 3), batch=1)
    fed.plan = fed.plan.__class__(
        1, 2, epochs=2, optim=OptimSpec("sgd", ETA, 0.0, 0.0), schedule=_Rate(ETA, rate=rate)
    )
    state = fed.run()
    way, y = 0.0, 0.0
    for step in range(6):  # 2 epochs of 3 steps
        y -= rate(step // 3) * 3 * (y - 4)
        way += rate(step // 3)
    assert own(state)[1] == pytest.approx(y, abs=1e-12)
    assert own(state, slot="c") == pytest.approx([0.0, -y / way], abs=1e-12)


class _Rate(Schedule):
    def __init__(self, base: float, rate: Any) -> None:
        super().__init__(base)
        object.__setattr__(self, "_rate", rate)

    def __call__(self, epoch: int) -> float:
        return self._rate(epoch)


def test_correction_is_used_in_round_two() -> None:
    _, one = drive("SCAFFOLD", 1, keys=TWO)
    _, two = drive("SCAFFOLD", 2, keys=TWO)
    x, c = shared(one), float(one.server["c"]["image.w"])
    assert (x, c) == (pytest.approx(0.6), pytest.approx(-6.0))  # gradients 0 and -12 at 0
    want = [x - ETA * (a * (x - b) - ck + c)
            for a, b, ck in zip((1, 3), (0, 4), own(one, slot="c"), strict=True)]
    assert own(two) == pytest.approx(want, abs=1e-12)


def test_clients_that_are_away_count_in_the_servers_variate() -> None:
    _, all_there = drive("SCAFFOLD", 1, keys=TWO)
    fed = quadratic(toy("SCAFFOLD", keys=TWO), 1, sizes=(1, 1, 0, 0))
    drawn = type("Drawn", (type(fed.plan),), {"sample": lambda self, round_: [0, 1]})
    fed.plan = drawn(**vars(fed.plan))
    half = fed.run()
    assert float(half.server["c"]["image.w"]) == float(all_there.server["c"]["image.w"]) / 2


def test_server_step_and_uniform_mean() -> None:
    _, state = drive("SCAFFOLD", 1, keys=TWO, options={"SERVER_LR": 0.5}, sizes=(3, 1))
    assert shared(state) == pytest.approx(0.3, abs=1e-12)  # half of 0.6: sizes do not count


def test_client_without_samples_changes_nothing() -> None:
    _, state = drive("SCAFFOLD", 1, keys={"FED.CLIENTS": 1}, sizes=(1, 0), lr=0.1)
    assert own(state, slot="c")[1] == 0.0
    assert shared(state) == own(state)[0]


@pytest.mark.parametrize("momentum", [0.9, 0.5])
def test_momentum_is_refused(momentum: float) -> None:
    with pytest.raises(ConfigError, match=r"plain SGD .*set OPTIM.NAME sgd and OPTIM.MOMENTUM 0"):
        drive("SCAFFOLD", 1, keys=TWO, momentum=momentum)


def test_another_optimiser_is_refused() -> None:
    fed = quadratic(toy("SCAFFOLD", keys=TWO), 1)
    fed.plan = fed.plan.__class__(1, 2, optim=OptimSpec("adam", 0.1, 0.0, 0.0))
    with pytest.raises(ConfigError, match="OPTIM.NAME is adam"):
        fed.run()


def test_twice_the_bytes_each_way() -> None:
    fed = quadratic(toy("SCAFFOLD", keys=TWO), 1)
    seen: list[RoundFinished] = []
    fed.subscribers.append(seen.append)
    fed.run()
    for sent in (seen[-1].bytes_up, seen[-1].bytes_down):
        assert sent[0] == {"image.w": 8, "control.image.w": 8}


def test_the_way_is_that_of_the_steps_taken() -> None:
    """Not whole epochs, or fewer than the run's: the sum of the rates of one's own steps."""
    rates = {0: ETA, 1: ETA / 4}
    for how, steps in (
        ({"local_steps": 5}, [0, 0, 0, 1, 1]),  # the clock: 2 epochs in 5 steps
        ({"epochs_range": (1, 2)}, None),
    ):
        fed = quadratic(toy("SCAFFOLD", keys=TWO), 1, epochs=2, sizes=(3, 3), batch=1)
        fed.plan = fed.plan.__class__(
            1, 2, epochs=2, optim=OptimSpec("sgd", ETA, 0.0, 0.0),
            schedule=_Rate(ETA, rate=rates.__getitem__), seed=5, **how,
        )
        drawn = fed.plan.effort.drawn(1, [0, 1])
        state = fed.run()
        way, y = 0.0, 0.0
        for epoch in steps or [e for e in range(drawn[1]) for _ in range(3)]:
            y -= rates[epoch] * 3 * (y - 4)
            way += rates[epoch]
        assert own(state)[1] == pytest.approx(y, abs=1e-12)
        assert own(state, slot="c") == pytest.approx([0.0, -y / way], abs=1e-12)


@pytest.mark.parametrize("how", [{"clip": 1.0}, {"roles": {"lora": RoleSpec(lr=0.2)}}])
def test_clipping_and_roles_are_refused(how: Any) -> None:
    fed = quadratic(toy("SCAFFOLD", keys=TWO), 1)
    fed.plan = fed.plan.__class__(1, 2, optim=OptimSpec("sgd", 0.1, 0.0, 0.0, **how))
    with pytest.raises(ConfigError, match="all of one rate and none clipped"):
        fed.run()
