"""Ditto: closed forms, and the defects of its ports."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlm.check.disk import read_state, write_state
from fedvlm.check.world import CheckWorld
from fedvlm.core.errors import ConfigError
from fedvlm.federation.discovery import load_trainer

from .toys import drive, own, personal, shared

SECOND = 5  # a seed whose round 1 draws client 1: client 0 has its optimum at the start
SPLIT_PROX = (1.578947, 3.729730)  # the proximal step after the optimiser's: Plato's


def test_fixed_point_is_papers_not_the_split_ones() -> None:
    fed, state = drive("Ditto", 150)  # lambda 1 is the default
    found = personal(fed, state)
    assert found == pytest.approx([1.5, 3.75], abs=1e-8)  # (a b + w) / (a + 1), w = 3
    assert all(abs(x - y) > 1e-2 for x, y in zip(found, SPLIT_PROX, strict=True))
    assert shared(state) == pytest.approx(3.0, abs=1e-8)  # FedAvg's, whatever lambda


@pytest.mark.parametrize(("weighting", "mean"), [("samples", 0.3), ("uniform", 0.6)])
def test_the_servers_weights(weighting: str, mean: float) -> None:
    """One step of 0 and 1.2, of 3 images and 1."""
    _, state = drive("Ditto", 1, sizes=(3, 1), options={"WEIGHTING": weighting})
    assert shared(state) == pytest.approx(mean, abs=1e-12)


def test_lambda_zero_is_local_descent() -> None:
    fed, state = drive("Ditto", 50, options={"LAMBDA": 0.0})
    assert personal(fed, state)[1] == pytest.approx(3.9999999281, abs=1e-9)


def test_large_lambda_is_the_global_model() -> None:
    fed, state = drive("Ditto", 210, options={"LAMBDA": 999.0}, lr=1e-3)
    assert shared(state) > 1
    assert personal(fed, state) == pytest.approx([shared(state)] * 2, abs=1e-2)


def test_the_anchor_is_the_received_model_not_the_locally_trained_one() -> None:
    """Round 1: w_t = 0, so one step from v = 0 is 0.1 a b; the trained w = 1.2 would pull."""
    fed, state = drive("Ditto", 2, options={"LAMBDA": 1.0})
    v1, w1 = 1.2, 0.6  # client 1 after round 1, and the aggregate
    expected = v1 - 0.1 * (3 * (v1 - 4) + (v1 - w1))
    assert own(state, slot="v")[1] == pytest.approx(expected, abs=1e-12)


def test_evaluated_and_kept_private_is_v() -> None:
    fed, state = drive("Ditto", 3)
    assert personal(fed, state) == own(state, slot="v")
    assert own(state, slot="v") != own(state, slot="w")
    assert set(state.server) == {"w"}


@pytest.mark.parametrize(("p_epochs", "steps"), [(0, 2), (5, 5)])
def test_epochs_of_the_private_model(p_epochs: int, steps: int) -> None:
    _, state = drive("Ditto", 1, options={"P_EPOCHS": p_epochs, "LAMBDA": 0.0}, epochs=2)
    assert own(state, slot="v")[1] == pytest.approx(4 - 4 * 0.7**steps, abs=1e-12)
    assert own(state)[1] == pytest.approx(4 - 4 * 0.7**2, abs=1e-12)


def test_both_models_have_the_same_rate_and_optimiser() -> None:
    """A port gives v plain SGD at another rate; with lambda 0 both must agree in round 1."""
    _, state = drive("Ditto", 1, options={"LAMBDA": 0.0}, epochs=4, momentum=0.9)
    assert own(state, slot="v") == pytest.approx(own(state), abs=1e-14)


def test_final_fine_tuning_is_the_v_phase() -> None:
    keys = {"FED.FINETUNE_EPOCHS": 100}
    fed, state = drive("Ditto", 150, keys=keys)
    assert personal(fed, state) == pytest.approx([1.5, 3.75], abs=1e-8)  # pulled, not let go
    assert own(state, slot="v") == pytest.approx(personal(fed, state, finetune=False), abs=0)


@pytest.mark.parametrize("how", [{"chunk": 1}, {"chunk": 2}])
def test_stacked_equals_one_by_one(how: dict[str, int]) -> None:
    unequal = {"epochs": 2, "sizes": (7, 3), "batch": 2, "momentum": 0.9}
    one = drive("Ditto", 3, chunk=1, **unequal)[1]
    other = drive("Ditto", 3, **unequal, **how)[1]
    assert own(other, slot="v") == own(one, slot="v") and shared(other) == shared(one)


def test_lora_factors_must_keep_their_basis() -> None:
    world = CheckWorld(["PEFT.TEXT", "none", "PEFT.VISUAL", "lora", "PEFT.LORA_AVG", "product_svd"])
    with pytest.raises(ConfigError, match="LORA_AVG.*factors or freeze_a"):
        world.federation(load_trainer("Ditto"))


@pytest.mark.parametrize(("trainer", "slot"), [("Ditto", "v"), ("pFedMe", "theta")])
def test_a_client_that_was_never_drawn_is_judged_by_what_it_receives(
    trainer: str, slot: str, tmp_path: Path
) -> None:
    """Not by its untrained start, which is what its private model still is."""
    fed, state = drive(trainer, 1, frac=0.5, first_round_all=False, seed=SECOND)
    (absent,) = set(state.clients) - set(state.versions)
    assert own(state, slot=slot)[absent] == 0.0 != shared(state)
    assert personal(fed, state)[absent] == shared(state)
    (worked,) = state.versions
    assert personal(fed, state)[worked] == own(state, slot=slot)[worked]
    want = personal(fed, state)
    write_state(tmp_path, fed, state)
    saved = read_state(tmp_path, fed)
    assert saved.versions == state.versions and personal(fed, saved) == want
