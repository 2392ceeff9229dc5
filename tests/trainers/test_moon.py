"""MOON: the contrastive term, and which models it compares."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedvlm.check.world import CheckWorld, Setup
from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import Tree
from fedvlm.federation.batches import Batch
from fedvlm.federation.discovery import load_trainer

MOON = load_trainer("MOON")
contrast = sys.modules[MOON.__module__].contrast
BOTH = ["PEFT.VISUAL", "feature", "PEFT.WIDTH", "6"]


@pytest.fixture(scope="module")
def world() -> CheckWorld:
    return CheckWorld(BOTH)


def test_term_is_the_papers() -> None:
    z = torch.tensor([[[3.0, 4.0], [1.0, 0.0]]], dtype=torch.float64)
    near = torch.tensor([[[4.0, 3.0], [0.0, 2.0]]], dtype=torch.float64)
    far = torch.tensor([[[1.0, 0.0], [5.0, 0.0]]], dtype=torch.float64)
    for tau in (0.5, 1.0):
        want = [
            -math.log(math.exp(g / tau) / (math.exp(g / tau) + math.exp(p / tau)))
            for g, p in ((0.96, 0.6), (0.0, 1.0))
        ]
        assert contrast(z, near, far, tau)[0].tolist() == pytest.approx(want, abs=1e-12)


def test_equal_models_give_log_two_and_no_gradient() -> None:
    z = torch.randn(1, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    other = z.flip(1)
    z.requires_grad_()
    value = contrast(z, other, other, 0.5)
    assert torch.allclose(value, torch.full_like(value, math.log(2)), atol=1e-15)
    (grad,) = torch.autograd.grad(value.sum(), z)
    assert float(grad.abs().max()) < 1e-15


def test_padding_is_out_of_the_term() -> None:
    method = SimpleNamespace(
        cfg=SimpleNamespace(MU=1.0, TAU=0.5), representation=lambda model, p, x: x["z"] + p["w"],
        supervised=lambda model, p, b: (torch.zeros(1).double(), b.x["z"] + p["w"]),
    )
    z = torch.randn(1, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def term(*w: float) -> float:
        y = torch.zeros(1, len(w), dtype=torch.int64)
        b = Batch({"z": z[:, : len(w)]}, y, torch.tensor([w]).double())
        return float(MOON.contrastive_loss(
            method, None, {"w": 0 * z[:, :1]}, b,
            received={"w": z[:, :1]}, previous={"w": z[:, 1:2]},
        )[1]["con_loss"])

    assert term(1, 1, 0) == pytest.approx(term(1, 1), abs=1e-12)


def test_previous_is_the_last_local_model(world: CheckWorld) -> None:
    """Round 1: received and previous are the common start; then they part."""
    run = world.record(MOON, Setup(rounds=2))
    first, second = (event.updates.metrics["con_loss"].tolist() for event in run.events)
    assert first == pytest.approx([math.log(2)] * 4, abs=1e-12)
    assert len(second) == 4 and all(abs(v - math.log(2)) > 1e-6 for v in second)
    state = run.states[1]
    seen: list[dict[str, Tree]] = []

    class Watched(MOON):  # type: ignore[misc, valid-type]
        def contrastive_loss(self, model: Any, p: Tree, b: Batch, **models: Tree) -> Any:
            seen.append({name: b.cut(tree) for name, tree in models.items()})
            return super().contrastive_loss(model, p, b, **models)

    fed = world.federation(Watched)
    fed.round(fed.adopt(state), 2)
    for name, value in state.clients[0]["w"].items():
        assert torch.equal(seen[0]["previous"][name][0], value)
        assert torch.equal(seen[0]["received"][name][0], state.server["w"][name])


def test_without_weight_it_is_fedavg(world: CheckWorld) -> None:
    fedavg = load_trainer("PromptFL")
    ours = world.record(MOON, Setup(opts={"MU": 0.0})).states[-1]
    theirs = world.record(fedavg, Setup()).states[-1]
    for name, value in theirs.server["w"].items():
        assert torch.allclose(ours.server["w"][name], value, atol=1e-12)
    strong = world.record(MOON, Setup(opts={"MU": 5.0})).states[-1]
    assert not torch.allclose(
        strong.server["w"]["image.adapter.up"], ours.server["w"]["image.adapter.up"], atol=1e-6
    )


def test_frozen_features_are_refused() -> None:
    world = CheckWorld(["PEFT.VISUAL", "none"])
    with pytest.raises(ConfigError, match="MOON needs something to train on the body side"):
        world.federation(MOON)
