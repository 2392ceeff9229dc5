"""FedPer on the split toy."""

from __future__ import annotations

import pytest

from fedvlm.federation.rounds import RoundFinished
from tests.trainers.toys import G, L, drive, own, personal, shared


@pytest.mark.parametrize("chunk", [1, 2])
def test_one_joint_step(chunk: int) -> None:
    _, state = drive("FedPer", 1, split=True, chunk=chunk)
    assert shared(state, G) == pytest.approx(0.6, abs=1e-12)
    assert own(state, L) == pytest.approx([0.0, 1.2], abs=1e-12)


def test_the_head_is_in_no_message() -> None:
    """Plato uploads and averages it."""
    fed, _ = drive("FedPer", 1, split=True)
    seen: list[RoundFinished] = []
    fed.subscribers.append(lambda e: seen.append(e) if isinstance(e, RoundFinished) else None)
    state = fed.run()
    updates = seen[-1].updates
    assert updates is not None and updates.clients == (0, 1)
    assert set(updates.params) == {G} and not updates.extras
    assert all(set(sent) == {G} for sent in seen[-1].bytes_up.values())
    assert all(set(got) == {G} for got in seen[-1].bytes_down.values())
    assert set(state.server["w"]) == {G}
    assert updates.metrics and not any(L in name for name in updates.metrics)


def test_a_first_time_client_has_the_initial_head() -> None:
    """Not an average of others' heads; so has the global model."""
    fed, state = drive("FedPer", 1, split=True, frac=0.5, first_round_all=False)
    (rested,) = {0, 1} - set(fed.plan.sample(1))
    assert own(state, L)[rested] == 0.0
    assert personal(fed, state, L)[rested] == 0.0
    assert personal(fed, state, G)[rested] == shared(state, G)
    assert float(fed.shared(state)[L][0]) == 0.0


def test_a_fine_tuning_that_is_asked_for_trains_the_head_only() -> None:
    """One step of the head at g = 0.6, l = (0, 1.2): -0.1 a (g + l - b)."""
    fed, state = drive("FedPer", 1, split=True, keys={"FED.FINETUNE_EPOCHS": 1})
    assert personal(fed, state, G) == pytest.approx([0.6, 0.6], abs=1e-12)
    assert personal(fed, state, L) == pytest.approx([-0.06, 1.2 + 0.3 * 2.2], abs=1e-12)
    assert own(state, L) == pytest.approx([0.0, 1.2], abs=1e-12)
    fed, state = drive("FedPer", 1, split=True)
    assert personal(fed, state, L) == pytest.approx([0.0, 1.2], abs=1e-12)  # none by itself
