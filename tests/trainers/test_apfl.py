"""APFL: closed forms on the real class; its ports' defects."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import Tree
from fedvlm.federation.batches import Batch
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.rounds import FedState
from tests.jobs import REPOSITORY

from .toys import config, drive, leaves, own, personal, shared, toy

FIXED = {"ALPHA_LR": 0.0}


def alphas(state: FedState) -> list[float]:
    return own(state, "alpha", "mix")


def test_alpha_one_is_local_descent() -> None:
    _, state = drive("APFL", 10, options={"ALPHA": 1.0, **FIXED})
    assert own(state, slot="v")[1] == pytest.approx(3.8870099004, abs=1e-9)


def test_alpha_zero_is_fedavg_and_leaves_v() -> None:
    _, state = drive("APFL", 10, options={"ALPHA": 0.0, **FIXED})
    assert own(state, slot="v") == [0.0, 0.0]
    assert shared(state) == pytest.approx(shared(drive("FedAvg", 10)[1]), abs=1e-14)


def placed(options: dict[str, Any], v: float, w: float) -> tuple[Any, FedState]:
    """Return a federation of clients with a = 1, b = 3 and given v and w."""
    fed, state = drive("APFL", 0, options=options)
    source = fed.batcher.source
    source.streams = {"a": torch.ones(2).double(), "b": torch.full((2,), 3.0).double()}
    tree = {"image.w": torch.tensor(v, dtype=torch.float64)}
    clients = {c: s | {"v": tree} for c, s in state.clients.items()}
    server = {"w": {"image.w": torch.tensor(w, dtype=torch.float64)}}
    everybody = dict.fromkeys(clients, 1)  # version 0 is what init_client says
    return fed, fed.adopt(replace(state.whole, server=server, clients=clients, worked=everybody))


def test_alpha_step_is_equation_10() -> None:
    """v = 2, w = 0: 0.9; the derivative of FedTorch and Plato gives 0.699, PFLlib's 0.899."""
    fed, state = placed({"ALPHA": 0.5, "ALPHA_LR": 0.1}, 2.0, 0.0)
    after = fed.round(state, 1)
    assert alphas(after) == pytest.approx([0.9, 0.9], abs=1e-12)
    # v moved by alpha lr grad F(mixture), the mixture being that of before: 1
    assert own(after, slot="v") == pytest.approx([2 + 0.5 * 0.1 * 2] * 2, abs=1e-12)


def test_alpha_decay_is_an_option() -> None:
    fed, state = placed({"ALPHA": 0.5, "ALPHA_LR": 0.1, "ALPHA_L2": 0.02}, 2.0, 0.0)
    assert alphas(fed.round(state, 1))[0] == pytest.approx(0.9 - 0.1 * 0.02 * 0.5, abs=1e-12)


def test_alpha_is_clipped() -> None:
    fed, state = placed({"ALPHA": 0.5, "ALPHA_LR": 10.0}, 2.0, 0.0)
    assert alphas(fed.round(state, 1)) == [1.0, 1.0]
    fed, state = placed({"ALPHA": 0.5, "ALPHA_LR": 10.0, "ALPHA_MIN": 0.0}, -2.0, 0.0)
    assert alphas(fed.round(state, 1)) == [0.0, 0.0]


def test_a_learnt_share_keeps_the_private_model_moving() -> None:
    """At a share of 0 v has no gradient, so that it would stand still for good."""
    ends = []
    for least in (0.0, 0.25):
        fed, state = placed({"ALPHA": 0.5, "ALPHA_LR": 10.0, "ALPHA_MIN": least}, -2.0, 0.0)
        first = fed.round(state, 1)
        second = fed.round(first, 2)
        assert alphas(first) == [least, least]
        ends.append([own(first, slot="v")[0], own(second, slot="v")[0]])
    assert ends[0][0] == ends[0][1]
    assert abs(ends[1][1] - ends[1][0]) > 1e-3


def test_a_fixed_share_may_lie_below_the_least_learnt_one() -> None:
    _, state = drive("APFL", 2, options={"ALPHA": 0.001, **FIXED})
    assert alphas(state) == [0.001, 0.001]


@pytest.mark.parametrize(("every", "moves"), [("step", True), ("round", False)])
def test_how_often_alpha_moves(every: str, moves: bool) -> None:
    """After the first step v and w differ; at the first they are equal and alpha stays."""
    options = {"ALPHA": 0.25, "EVERY": every}
    _, state = drive("APFL", 1, options=options, epochs=3)
    assert (alphas(state)[1] != 0.25) is moves


def test_fixed_w() -> None:
    """w at FedAvg's fixed point 3 of one step: v* = (b - (1 - alpha) w) / alpha, mixture b."""
    fed, state = drive("APFL", 160, options={"ALPHA": 0.5, **FIXED}, lr=0.5)
    assert shared(state) == pytest.approx(3.0, abs=1e-8)
    assert own(state, slot="v") == pytest.approx([-3.0, 5.0], abs=1e-7)
    assert personal(fed, state) == pytest.approx([0.0, 4.0], abs=1e-7)


def test_evaluated_is_the_mixture_with_the_aggregate() -> None:
    """Not w (Plato), not v (PFLlib), and v is not overwritten by the mixture."""
    fed, state = drive("APFL", 3, options={"ALPHA": 0.25, **FIXED})
    v, w = own(state, slot="v"), shared(state)
    assert personal(fed, state) == pytest.approx([0.25 * x + 0.75 * w for x in v], abs=1e-14)
    assert v[1] not in (pytest.approx(w), pytest.approx(personal(fed, state)[1]))


def test_w_takes_one_step_per_batch_whatever_alpha() -> None:
    """A port steps w twice with the same gradient."""
    _, state = drive("APFL", 4, options={"ALPHA": 0.7}, epochs=3, momentum=0.9)
    plain = drive("FedAvg", 4, epochs=3, momentum=0.9)[1]
    assert shared(state) == pytest.approx(shared(plain), abs=1e-14)


def test_stacked_equals_one_by_one() -> None:
    unequal = {"epochs": 2, "sizes": (7, 3), "batch": 2, "momentum": 0.9}
    ends = [dict(leaves(drive("APFL", 3, chunk=chunk, **unequal)[1])) for chunk in (1, 2)]
    assert {n: v.tolist() for n, v in ends[0].items()} == {
        n: v.tolist() for n, v in ends[1].items()
    }


class Tanh:
    """A two-layer tanh network: no quadratic, so a wrong derivative shows."""

    def trainables(self, model: Any, generator: torch.Generator) -> Tree:
        sizes = {"image.one": (5, 3), "image.two": (1, 5)}
        draw = torch.Generator().manual_seed(0)
        return {n: torch.randn(s, generator=draw).double() for n, s in sizes.items()}

    def loss(self, model: Any, p: Tree, b: Batch) -> Tensor:
        hidden = torch.tanh(b.x["x"] @ p["image.one"].mT)
        return ((hidden @ p["image.two"].mT)[..., 0] - b.x["t"]).pow(2).mean(1)


def alpha_slope(trainer: Any, w: Tree, v: Tree, alpha: float, b: Batch) -> float:
    """Return dL/dalpha as the real ``step`` uses it, read off its own update."""
    fed, _ = drive("APFL", 0, options={"ALPHA_LR": 1e-3})
    ctx = fed.context([0], 1)
    ctx = replace(ctx, groups=type(ctx.groups)(dict.fromkeys(w, "shared")))
    trainer.cfg.defrost()
    trainer.cfg.ALPHA_LR, trainer.cfg.ALPHA_L2 = 1e-3, 0.0
    slots = {"w": w, "v": v, "mix": {"alpha": torch.tensor([alpha], dtype=torch.float64)}}
    step = next(iter(fed.batcher.steps([0], 1, 1, 1, "w")))
    new = trainer.step(ctx, slots, (b,), step)
    return (alpha - float(new["mix"]["alpha"])) / 1e-3


@pytest.mark.parametrize("alpha", [0.25, 0.5, 0.75])
def test_slope_of_alpha_matches_central_differences(alpha: float) -> None:
    cls = type("TanhAPFL", (Tanh, load_trainer("APFL")), {})
    base = toy("APFL")
    trainer = cls(base.root)
    w = {n: t[None] for n, t in trainer.trainables(None, torch.Generator()).items()}
    draw = torch.Generator().manual_seed(1)
    v = {n: t + torch.randn(t.shape, generator=draw).double() for n, t in w.items()}
    x = torch.randn(1, 8, 3, generator=draw).double()
    b = Batch({"x": x, "t": x.sum(-1)}, torch.zeros(1, 8), torch.ones(1, 8).double())
    mix_peft = sys.modules[load_trainer("APFL").__module__].adapters.mix_peft

    def loss(a: float) -> float:
        return float(trainer.loss(None, mix_peft(torch.tensor([a], dtype=torch.float64), v, w), b))

    central = (loss(alpha + 1e-5) - loss(alpha - 1e-5)) / 2e-5
    found = alpha_slope(trainer, w, v, alpha, b)
    assert found == pytest.approx(central, rel=1e-6)
    # the ports' formula is off by alpha^2 + (1 - alpha)^2
    ratio = alpha**2 + (1 - alpha) ** 2
    assert abs(found * ratio - central) > 1e-2 * abs(central)


def test_lora_is_mixed_by_its_products() -> None:
    """The evaluated pair's product is alpha dW_v + (1 - alpha) dW_w; the ends are the branches."""
    trainer = toy("APFL")
    draw = torch.Generator().manual_seed(2)
    names = {"image.lora.0.q.A": (1, 2, 7), "image.lora.0.q.B": (1, 5, 2)}
    v, w = (
        {n: torch.randn(s, generator=draw).double() for n, s in names.items()} for _ in range(2)
    )

    def product(p: Tree) -> Tensor:
        return p["image.lora.0.q.B"] @ p["image.lora.0.q.A"]

    for alpha in (0.0, 0.3, 1.0):
        state = {"w": w, "v": v, "mix": {"alpha": torch.tensor([alpha], dtype=torch.float64)}}
        found = product(trainer.personalize(None, state, w))
        wanted = alpha * product(v) + (1 - alpha) * product(w)
        assert float((found - wanted).abs().max()) < 1e-12
    both = {n: 0.5 * (v[n] + w[n]) for n in v}
    assert float((product(both) - 0.5 * (product(v) + product(w))).abs().max()) > 0.1


def test_the_published_variant_mixes_logits() -> None:
    """Both models and the share are evaluated; as in the authors' code the mean is even."""
    trainer = toy("APFL", options={"VARIANT": "published", "ALPHA": 0.25})
    assert (trainer.weighting, toy("APFL").weighting) == ("uniform", "samples")
    alpha = torch.tensor([0.25], dtype=torch.float64)
    state = {"w": {"image.w": torch.ones(1)}, "v": {"image.w": torch.zeros(1)},
             "mix": {"alpha": alpha}}
    found = trainer.personalize(None, state, {"image.w": torch.full((1,), 2.0)})
    assert {n: v.tolist() for n, v in found.items()} == {
        "image.w": [2.0], "private.image.w": [0.0], "alpha": [0.25]
    }


def test_over_a_network_tensors_are_mixed() -> None:
    cls = load_trainer(f"{REPOSITORY}/configs/recipes/cnn4.py:CNN4+APFL")
    with pytest.raises(ConfigError, match="a network is one with a loss of its own: use VARIANT f"):
        cls(config(cls, {"VARIANT": "published"})).trainables(None, torch.Generator())
