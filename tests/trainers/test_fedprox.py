"""FedProx: closed forms on the real class."""

from __future__ import annotations

import pytest

from .toys import drive, leaves, shared


@pytest.mark.parametrize(
    ("mu", "rounds", "expected"),
    [(0.0, 40, 2.680532285), (1.0, 50, 2.691780822), (5.0, 100, 2.777711915)],
)
def test_fixed_point(mu: float, rounds: int, expected: float) -> None:
    fed, state = drive("FedProx", rounds, options={"MU": mu}, epochs=5)
    assert shared(state) == pytest.approx(expected, abs=1e-8)
    rho = [1 - (1 - 0.1 * (a + mu)) ** 5 for a in (1.0, 3.0)]
    share = [r * a / (a + mu) for r, a in zip(rho, (1.0, 3.0), strict=True)]
    assert shared(state) == pytest.approx(4 * share[1] / sum(share), abs=1e-10)


@pytest.mark.parametrize("chunk", [1, 2])
def test_mu_zero_is_fedavg_to_the_bit(chunk: int) -> None:
    how = {"epochs": 3, "sizes": (7, 3), "batch": 2, "momentum": 0.9, "chunk": chunk}
    ends = [
        dict(leaves(drive(name, 4, options=options, **how)[1]))
        for name, options in (("FedProx", {"MU": 0.0}), ("FedAvg", {}))
    ]
    assert ends[0].keys() == ends[1].keys()
    assert all(bool((ends[0][n] == ends[1][n]).all()) for n in ends[0])


def test_the_pull_is_to_the_received_model_not_to_the_start() -> None:
    """One round from the fixed point stays there; pulled to the start it would not."""
    fed, state = drive("FedProx", 100, options={"MU": 5.0}, epochs=5)
    assert shared(fed.round(state, 101)) == pytest.approx(shared(state), abs=1e-12)
    assert shared(state) > 2.7
