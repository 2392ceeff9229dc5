"""PEFT trained: inside the towers, cached below or not, stacked or not, averaged in three ways."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedvlm.check.world import CheckWorld, Setup
from fedvlm.core.errors import ConfigError
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.models.features.sources import FeatureSource
from tests.models.toys import products

LORA = {"PEFT.TEXT": "none", "PEFT.VISUAL": "lora", "PEFT.RANK": "2"}


@pytest.mark.parametrize("name", ["FedALA", "HEART-PFL"])
def test_factors_of_two_rounds_are_not_compared_under_product_svd(name: str) -> None:
    """FedALA blends them number by number, HEART-PFL pulls v to w: both need one basis."""
    words = [w for key, value in LORA.items() for w in (key, value)]
    with pytest.raises(ConfigError, match="LORA_AVG.*factors or freeze_a"):
        CheckWorld([*words, "PEFT.LORA_AVG", "product_svd"]).federation(load_trainer(name))
    CheckWorld([*words, "PEFT.LORA_AVG", "factors"]).federation(load_trainer(name))


class Plain(PeftTrainer):
    """FedAvg over whatever PEFT builds."""


def world(visual: str, *more: str) -> CheckWorld:
    opts = ["PEFT.TEXT", "none", "PEFT.VISUAL", visual, "PEFT.RANK", "3", "PEFT.WIDTH", "4"]
    return CheckWorld([*opts, *more])


def final(w: CheckWorld, setup: Setup) -> dict[str, Tensor]:
    return w.record(Plain, setup).states[-1].server["w"]


def close(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.allclose(a[name], b[name], 1e-9, 1e-12), name


@pytest.mark.parametrize("visual", ["lora", "adapter"])
def test_cached_activations_train_to_the_same_model(visual: str) -> None:
    w = world(visual, "PEFT.BLOCKS", "1")
    want = final(w, Setup(pixels=True))
    fed = w.federation(Plain, Setup(pixels=True, chunk=4))
    (stream,) = fed.trainer.streams(fed.model)
    assert stream == "tokens.1"
    kept = fed.model.vision.enter(w.pixels, 1)
    source = FeatureSource.of(kept[None], torch.arange(len(kept)), w.labels, stream)
    fed.batcher = replace(fed.batcher, source=source)
    close(fed.run().server["w"], want)
    assert all(float((v - fed.p0[n]).abs().max()) > 0 for n, v in want.items())


def test_freeze_a_never_moves_nor_sends_a() -> None:
    run = world("lora", "PEFT.LORA_AVG", "freeze_a").record(Plain, Setup(pixels=True))
    frozen = run.fed.groups.names("frozen")
    assert frozen and all(n.endswith(".A") for n in frozen)
    last = run.states[-1]
    for tree in (c["w"] for c in last.clients.values()):
        assert all(torch.equal(tree[n], run.fed.p0[n]) for n in frozen)
    sent = run.events[-1].updates
    assert sent.clients == (0, 1, 2, 3) and sent.params
    assert all(n.endswith(".B") for n in sent.params)


def test_product_svd_averages_products() -> None:
    w = world("lora", "PEFT.LORA_AVG", "product_svd", "PEFT.RANK", "16")
    run = w.record(Plain, Setup(pixels=True))
    updates = run.events[0].updates
    shares = (updates.weight / updates.weight.sum()).tolist()
    sent = updates.messages()
    got = products(run.states[1].server["w"])
    for site, value in got.items():
        want = sum(shares[c] * products(sent[c])[site] for c in updates.clients)
        assert torch.allclose(value, want, 0, 1e-12)  # rank 16 of 16: nothing is cut


def test_a_role_that_stays_empty_names_the_ways_out() -> None:
    class Needy(Plain):
        needs = ("body",)

    with pytest.raises(ConfigError, match="--peft prompt.lora"):
        world("none", "PEFT.TEXT", "prompt").federation(Needy, Setup())
