"""FedRep on the split toy."""

from __future__ import annotations

from typing import Any

import pytest

from fedvlm.core.errors import ConfigError
from fedvlm.federation.optim import Schedule
from tests.trainers.toys import G, L, drive, own, personal, shared, toy


def test_five_head_epochs_and_one_of_the_body() -> None:
    _, state = drive("FedRep", 1, split=True, options={"HEAD_EPOCHS": 5})
    head = 4 * (1 - 0.7**5)
    assert shared(state, G) == pytest.approx(0.5 * 0.1 * 3 * (4 - head), abs=1e-12)
    assert shared(state, G) == pytest.approx(0.100842, abs=1e-9)
    assert own(state, L) == pytest.approx([0.0, head], abs=1e-12)


def test_an_exact_head_step_leaves_nothing_to_the_body() -> None:
    """lr = 1/a of client 1; client 0 has b = 0 and no gradient."""
    _, state = drive("FedRep", 5, split=True, lr=1 / 3, options={"HEAD_EPOCHS": 1})
    assert shared(state, G) == pytest.approx(0.0, abs=1e-12)
    assert own(state, L) == pytest.approx([0.0, 4.0], abs=1e-12)


def test_the_budget_is_the_local_epochs() -> None:
    """HEAD_EPOCHS 0: the authors' rule, local_ep - rep_ep."""
    made = toy("FedRep", keys={"FED.LOCAL_EPOCHS": 11}, options={"REP_EPOCHS": 5})
    assert made.head_epochs == 6
    with pytest.raises(ConfigError, match="no epoch for the head.*FEDREP.HEAD_EPOCHS"):
        toy("FedRep", keys={"FED.LOCAL_EPOCHS": 1})


def test_final_phase_trains_the_head_only_for_max_of_ten_and_head_epochs() -> None:
    for options, epochs in (({"HEAD_EPOCHS": 5}, 10), ({"HEAD_EPOCHS": 12}, 12)):
        fed, state = drive("FedRep", 1, split=True, options=options)
        assert fed.finetuning.epochs == epochs
        g, (_, head) = shared(state, G), own(state, L)
        assert personal(fed, state, G) == pytest.approx([g, g], abs=1e-15)
        left = head - (4 - g)
        expected = [-g * (1 - 0.9**epochs), 4 - g + left * 0.7**epochs]
        assert personal(fed, state, L) == pytest.approx(expected, abs=1e-12)
        assert personal(fed, state, L, finetune=False) == own(state, L) == [0.0, head]
    off, state = drive("FedRep", 1, split=True, keys={"FED.FINETUNE_EPOCHS": 0})
    assert personal(off, state, L) == own(state, L)


def test_the_final_phase_is_not_aggregated() -> None:
    """Plato averages the uploads of its personalisation round too."""
    runs = [
        drive("FedRep", 3, split=True, options={"HEAD_EPOCHS": 2, "FINAL_EPOCHS": n})[1]
        for n in (0, 10)
    ]
    assert shared(runs[0], G) == shared(runs[1], G)
    assert own(runs[0], L) == own(runs[1], L)


def test_uniform_weights() -> None:
    states = [
        drive("FedRep", 1, split=True, sizes=(3, 1), options={"WEIGHTING": w, "HEAD_EPOCHS": 5})[1]
        for w in ("samples", "uniform")
    ]
    assert shared(states[0], G) == pytest.approx(0.100842 / 2, abs=1e-9)
    assert shared(states[1], G) == pytest.approx(0.100842, abs=1e-9)


def test_the_body_goes_on_where_the_heads_clock_is() -> None:
    """Falling rates: the body's epoch is the third of the round, not another first."""
    schedule = Schedule(0.1, "multi_step", 3, (1, 2), 0.5)
    assert [schedule(e) for e in range(3)] == pytest.approx([0.1, 0.05, 0.025])
    _, state = drive("FedRep", 1, split=True, options={"HEAD_EPOCHS": 2}, epochs=3,
                     schedule=schedule)
    head = 4 * (1 - (1 - 3 * 0.1) * (1 - 3 * 0.05))
    assert own(state, L) == pytest.approx([0.0, head], abs=1e-12)
    assert shared(state, G) == pytest.approx(0.5 * 0.025 * 3 * (4 - head), abs=1e-12)


@pytest.mark.parametrize("how", [{"local_steps": 3}, {"epochs_range": (1, 1)}])
def test_phases_are_counted_in_epochs(how: Any) -> None:
    with pytest.raises(ConfigError, match="FedRep has phases within a round, counted in epochs"):
        drive("FedRep", 1, split=True, options={"HEAD_EPOCHS": 2}, **how)
