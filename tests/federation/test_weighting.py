"""``FED.WEIGHTING``: how clients weigh in the average, as the method has it or as the run says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.trees import State, Tree
from fedvlm.federation.context import Context, Upload
from fedvlm.federation.rounds import RoundFinished
from tests.federation.toys import Quadratic, quadratic
from tests.trainers.toys import drive, shared, toy

THREE_TO_ONE = {"samples": 0.3, "uniform": 0.6}  # after a round, w = (0, 1.2)


def weights(fed: Any) -> list[float]:
    seen: list[RoundFinished] = []
    fed.subscribers.append(lambda e: seen.append(e) if isinstance(e, RoundFinished) else None)
    fed.run()
    assert seen[-1].updates is not None
    return seen[-1].updates.weight.tolist()


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("name", ["FedAvg", "SCAFFOLD", "FedPer", "FedBABU"])
def test_the_run_says_it_for_every_method(name: str, weighting: str) -> None:
    split = name in ("FedPer", "FedBABU")
    _, state = drive(name, 1, sizes=(3, 1), weighting=weighting, split=split)
    found = shared(state, "image.g" if split else "image.w")
    assert found == pytest.approx(THREE_TO_ONE[weighting], abs=1e-12)


@pytest.mark.parametrize(
    ("name", "own"),
    [("FedAvg", "samples"), ("FedProx", "samples"), ("SCAFFOLD", "uniform"),
     ("Per-FedAvg", "uniform"), ("FedDyn", "uniform")],
)
def test_auto_is_as_the_method_has_it(name: str, own: str) -> None:
    made = toy(name)
    assert made.weighting == own
    found = weights(quadratic(made, 1, sizes=(3, 1)))
    assert found == {"samples": [3.0, 1.0], "uniform": [1.0, 1.0]}[own]


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_a_client_without_samples_weighs_nothing(weighting: str) -> None:
    found = weights(quadratic(Quadratic(), 1, sizes=(3, 0), weighting=weighting))
    assert found == {"samples": [3.0, 0.0], "uniform": [1.0, 0.0]}[weighting]


# ---- a measure of the method's own ---------------------------------------------------------------
class Own(Quadratic):
    name = "Own"
    weighting = "own"

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        w = ctx.fit(state["w"] | received, self.loss).params
        return state | {"w": w}, ctx.upload(w, self.weigh(ctx))

    def weigh(self, ctx: Context) -> Tensor | None:
        return torch.tensor([1.0 + 2 * c for c in ctx.clients])


def test_a_measure_of_its_own_is_the_weight() -> None:
    fed = quadratic(Own(), 1, sizes=(3, 1))
    assert weights(fed) == [1.0, 3.0]
    assert float(fed.run().server["w"]["w"]) == pytest.approx(0.9, abs=1e-12)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_it_is_not_overridden(weighting: str) -> None:
    sentence = rf"FED.WEIGHTING {weighting}: Own has its own weighting of clients.*auto"
    with pytest.raises(ConfigError, match=sentence):
        quadratic(Own(), 1, weighting=weighting)
    with pytest.raises(ConfigError, match=rf"FED.WEIGHTING {weighting}: FedAS .*WEIGHTING auto"):
        drive("FedAS", 1, split=True, weighting=weighting)


@pytest.mark.parametrize(("agg", "weighting"), [("uniform", "samples"), ("samples", "uniform")])
def test_fedas_by_samples_or_alike_follows_the_run(agg: str, weighting: str) -> None:
    """Without the Fisher trace there is nothing of its own."""
    _, state = drive(
        "FedAS", 1, split=True, sizes=(3, 1), options={"AGG": agg}, weighting=weighting
    )
    assert shared(state, "image.g") == pytest.approx(THREE_TO_ONE[weighting], abs=1e-12)


def test_a_weight_that_would_not_be_used_is_refused() -> None:
    silent = type("Silent", (Own,), {"weighting": "samples"})
    with pytest.raises(FedvlmError, match="is 'samples'.*only if, it declares weighting"):
        quadratic(silent(), 1).run()
    absent = type("Absent", (Own,), {"weigh": lambda self, ctx: None})
    with pytest.raises(FedvlmError, match="the weighting is 'own'"):
        quadratic(absent(), 1).run()


def test_a_weighting_that_is_none_is_refused() -> None:
    odd = type("Odd", (Quadratic,), {"name": "Odd", "weighting": "sample"})
    with pytest.raises(ConfigError, match="trainer Odd: weighting 'sample' is none of samples"):
        quadratic(odd(), 1)
