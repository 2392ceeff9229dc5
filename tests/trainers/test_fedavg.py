"""FedAvg on the quadratic toy."""

from __future__ import annotations

import pytest

from tests.trainers.toys import drive, own, personal, shared


def test_one_round_and_weights() -> None:
    _, state = drive("FedAvg", 1)
    assert shared(state) == pytest.approx(0.6, abs=1e-12)
    assert own(state) == pytest.approx([0.0, 1.2], abs=1e-12)
    _, state = drive("FedAvg", 1, sizes=(3, 1))
    assert shared(state) == pytest.approx(0.3, abs=1e-12)


@pytest.mark.parametrize(
    ("epochs", "rounds", "expected"), [(1, 100, 3.0), (5, 30, 2.680532285)]
)
def test_fixed_point(epochs: int, rounds: int, expected: float) -> None:
    fed, state = drive("FedAvg", rounds, epochs=epochs)
    assert shared(state) == pytest.approx(expected, abs=1e-8)
    assert personal(fed, state) == pytest.approx([expected] * 2, abs=1e-8)


def test_fedavg_ft_starts_from_the_average_and_trains_everything() -> None:
    """From w = 3: w_k = b_k + (1 - 0.1 a_k)^E (3 - b_k)."""
    fed, state = drive("FedAvg", 100, keys={"FED.FINETUNE_EPOCHS": 2})
    assert shared(state) == pytest.approx(3.0, abs=1e-8)
    assert personal(fed, state, finetune=False) == pytest.approx([3.0, 3.0], abs=1e-8)
    expected = [0.9**2 * 3, 4 - 0.7**2]
    assert personal(fed, state) == pytest.approx(expected, abs=1e-8)
