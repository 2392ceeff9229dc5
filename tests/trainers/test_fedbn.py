"""FedBN: norms stay local, the rest is averaged."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedvlm.check.world import CheckWorld, Setup
from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import Tree
from fedvlm.federation.discovery import load_trainer
from tests.federation.toys import quadratic

from .toys import own, personal, shared, toy

FedBN = load_trainer("FedBN")
G, L = "image.adapter.g", "image.ln.0.1.bias"
LN = {"PEFT.LN": True}


def start(self: Any, model: Any, generator: torch.Generator) -> Tree:
    return {G: torch.zeros(()).double(), L: torch.zeros(()).double()}


def total(self: Any, p: Tree) -> torch.Tensor:
    return p[G] + p[L]


def test_joint_steps_by_hand() -> None:
    """Round 1 moves both parts of client 1 by 1.2; round 2 starts at the mean and its own norm."""
    made = toy("FedBN", trainables=start, value=total, keys=LN)
    fed = quadratic(made, 2)
    first = fed.round(fed.start(), 1)
    assert shared(first, G) == pytest.approx(0.6, abs=1e-12)
    assert own(first, L) == pytest.approx([0.0, 1.2], abs=1e-12)
    second = fed.round(first, 2)
    assert own(second, L) == pytest.approx([-0.06, 1.86], abs=1e-12)
    assert shared(second, G) == pytest.approx((0.54 + 1.26) / 2, abs=1e-12)
    assert personal(fed, second, L) == own(second, L)
    assert personal(fed, second, G) == pytest.approx([0.9, 0.9], abs=1e-12)
    assert set(second.server["w"]) == {G}


def test_mean_is_uniform() -> None:
    made = toy("FedBN", trainables=start, value=total, keys=LN)
    state = quadratic(made, 1, sizes=(3, 1)).run()
    assert shared(state, G) == pytest.approx(0.6, abs=1e-12)


def test_without_norms_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="set PEFT.LN True, or use FedAvg"):
        toy("FedBN")


@pytest.mark.parametrize("visual", ["feature", "lora", "adapter"])
def test_all_norms_stay_and_nothing_else(visual: str) -> None:
    """Also those inside the towers' adapters."""
    world = CheckWorld(["PEFT.VISUAL", visual, "PEFT.RANK", "2", "PEFT.WIDTH", "3"])
    run = world.record(FedBN, Setup(rounds=1))
    norms = {n for n in run.fed.p0 if ".ln." in n}
    assert set(run.fed.groups.personal) == norms
    assert (len(norms) > 8) is (visual == "adapter")
    assert set(run.events[0].updates.params) == set(run.fed.p0) - norms
    moved = [run.states[1].clients[c]["w"] for c in (0, 1)]
    for name in norms:
        assert not torch.equal(moved[0][name], moved[1][name])


def test_trained_norms_are_averaged_by_other_methods() -> None:
    """FedAvg under the same trainable set sends them: the control beside FedBN."""
    world = CheckWorld(["PEFT.VISUAL", "feature", "PEFT.LN", "True"])
    run = world.record(load_trainer("FedAvg"), Setup(rounds=1))
    assert "image.ln.0.1.weight" in run.events[0].updates.params
