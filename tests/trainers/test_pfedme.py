"""pFedMe: closed forms on the real class."""

from __future__ import annotations

import pytest

from fedvlm.check.world import CheckWorld
from fedvlm.core.errors import ConfigError
from fedvlm.federation.discovery import load_trainer

from .toys import drive, leaves, own, personal, shared

FIXED = {"VARIANT": "fixed"}
EXACT = {**FIXED, "LAMBDA": 1.0, "STEPS": 40, "PERSONAL_LR": 0.25, "BETA": 1.0}


def test_fixed_point() -> None:
    """theta_k = (a b + w) / (a + 1), w their mean: 2.4 and (1.2, 3.6)."""
    fed, state = drive("pFedMe", 25, options=EXACT, lr=1.0)
    assert shared(state) == pytest.approx(2.4, abs=1e-8)
    assert personal(fed, state) == pytest.approx([1.2, 3.6], abs=1e-8)
    assert own(state, slot="theta") == personal(fed, state)


@pytest.mark.parametrize("beta", [0.0, -1.0])
def test_beta_zero_is_refused(beta: float) -> None:
    """The global model would stay at its start for ever."""
    with pytest.raises(ConfigError, match="BETA.*above 0"):
        drive("pFedMe", 1, options=EXACT | {"BETA": beta})


def test_beta_is_the_share_of_the_mean() -> None:
    one, half = (
        shared(drive("pFedMe", 1, options=EXACT | {"BETA": b}, lr=1.0)[1]) for b in (1.0, 0.5)
    )
    assert one > 0 and half == pytest.approx(one / 2, abs=1e-12)
    two = drive("pFedMe", 25, options=EXACT | {"BETA": 2.0}, lr=0.5)[1]
    assert shared(two) == pytest.approx(2.4, abs=1e-8)


def test_inner_steps_against_formula() -> None:
    """Two inner steps of client 1 from 0 around w = 0, then one step of w towards theta."""
    options = {**FIXED, "LAMBDA": 2.0, "STEPS": 2, "PERSONAL_LR": 0.05, "BETA": 1.0}
    _, state = drive("pFedMe", 1, options=options, lr=0.1)
    theta = 0.05 * 12
    theta -= 0.05 * (3 * (theta - 4) + 2 * theta)
    assert own(state, slot="theta")[1] == pytest.approx(theta, abs=1e-12)
    assert own(state)[1] == pytest.approx(0.1 * 2 * theta, abs=1e-12)


def test_as_released_the_personal_model_starts_at_the_received_one_and_decays() -> None:
    """Two rounds of one inner step by hand; evaluated is each client's w, not theta."""
    options = {"LAMBDA": 2.0, "STEPS": 1, "PERSONAL_LR": 0.05, "BETA": 1.0}
    fed, state = drive("pFedMe", 2, options=options, lr=0.1)
    w = 0.0
    for _ in range(2):
        thetas = [w - 0.05 * (a * (w - b) + 0.001 * w) for a, b in ((1, 0), (3, 4))]
        ends = [w - 0.1 * 2 * (w - theta) for theta in thetas]
        w = sum(ends) / 2
    assert own(state)[1] == pytest.approx(ends[1], abs=1e-12)
    assert personal(fed, state) == pytest.approx(ends, abs=1e-12)


def test_stacked_equals_one_by_one() -> None:
    unequal = {"epochs": 2, "sizes": (7, 3), "batch": 2, "lr": 0.01}
    ends = [dict(leaves(drive("pFedMe", 3, chunk=chunk, **unequal)[1])) for chunk in (1, 2)]
    assert {n: v.tolist() for n, v in ends[0].items()} == {
        n: v.tolist() for n, v in ends[1].items()
    }


def test_lora_factors_must_keep_their_basis() -> None:
    world = CheckWorld(["PEFT.TEXT", "none", "PEFT.VISUAL", "lora", "PEFT.LORA_AVG", "product_svd"])
    with pytest.raises(ConfigError, match="LORA_AVG.*factors or freeze_a"):
        world.federation(load_trainer("pFedMe"))
