"""FedDyn against closed forms."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedvlm.federation.rounds import Federation, FedState
from tests.federation.toys import ETA, quadratic

from .toys import drive, own, shared, toy

TWO = {"FED.CLIENTS": 2}
HALF = {"ALPHA": 0.5}


def at(w: float) -> tuple[Federation, FedState]:
    """Return a federation with a near-exact local solve, and a state with the model at ``w``.

    The linear terms are those of the fixed point: the clients' gradients at the optimum 3.
    """
    fed, state = drive("FedDyn", 0, epochs=150, options=HALF, keys=TWO)
    number = torch.tensor(w, dtype=torch.float64)
    state.server["w"]["image.w"] = number
    clients = {
        client: {"w": {"image.w": number}, "h": {"image.w": torch.full_like(number, slope)}}
        for client, slope in ((0, 3.0), (1, -3.0))
    }
    whole = replace(state.whole, server=state.server)
    return fed, fed.adopt(replace(whole, clients=clients, worked={0: 1, 1: 1}))


def test_fixed_point_with_a_near_exact_local_solve() -> None:
    fed, state = at(3.0)
    state = fed.round(state, 1)
    assert shared(state) == pytest.approx(3.0, abs=1e-8)
    assert own(state, slot="h") == pytest.approx([3.0, -3.0], abs=1e-7)
    assert float(state.server["h"]["image.w"]) == pytest.approx(0.0, abs=1e-8)


def test_it_attracts() -> None:
    fed, state = at(4.0)
    for round_ in range(1, 7):
        state = fed.round(state, round_)
    assert abs(shared(state) - 3.0) < 0.02


def test_two_steps_the_pull_is_of_the_squared_norm() -> None:
    """With the norm un-squared (PFLlib) the pull would be alpha / 2, however far."""
    _, state = drive("FedDyn", 1, epochs=2, options={"ALPHA": 1.0}, keys=TWO)
    first = ETA * 12
    second = first - ETA * (3 * (first - 4) + 1.0 * first)
    wrong = first - ETA * (3 * (first - 4) + 0.5)
    assert own(state)[1] == pytest.approx(second, abs=1e-12)
    assert abs(own(state)[1] - wrong) > 1e-2


@pytest.mark.parametrize(("variant", "alpha"), [("published", 2.0), ("fixed", 1.0)])
def test_a_small_client_is_pulled_harder_as_released(variant: str, alpha: float) -> None:
    """Of 3 and 1 images the second client's alpha is the mean 2 over 1; of the paper 1."""
    _, state = drive("FedDyn", 1, epochs=2, sizes=(3, 1), keys=TWO,
                     options={"ALPHA": 1.0, "VARIANT": variant})
    first = ETA * 12
    second = first - ETA * (3 * (first - 4) + alpha * first)
    assert own(state)[1] == pytest.approx(second, abs=1e-12)
    assert own(state, slot="h")[1] == pytest.approx(-alpha * second, abs=1e-12)


def test_linear_terms_and_server_after_one_round() -> None:
    _, state = drive("FedDyn", 1, options=HALF, keys=TWO)
    assert own(state) == pytest.approx([0.0, 1.2], abs=1e-12)
    assert own(state, slot="h") == pytest.approx([0.0, -0.6], abs=1e-12)
    assert float(state.server["h"]["image.w"]) == pytest.approx(-0.3, abs=1e-12)
    assert shared(state) == pytest.approx(0.6 + 0.3 / 0.5, abs=1e-12)


def test_linear_term_enters_the_next_round() -> None:
    _, state = drive("FedDyn", 2, options=HALF, keys=TWO)
    assert own(state) == pytest.approx([1.2 - ETA * 1.2, 1.2 - ETA * (3 * (1.2 - 4) + 0.6)])


def test_clients_that_are_away_count() -> None:
    fed = quadratic(toy("FedDyn", options=HALF), 1, sizes=(1, 1, 0, 0))
    drawn = type("Drawn", (type(fed.plan),), {"sample": lambda self, round_: [0, 1]})
    fed.plan = drawn(**vars(fed.plan))
    state = fed.run()
    assert float(state.server["h"]["image.w"]) == pytest.approx(-0.15, abs=1e-12)
