"""PEFT inside the towers, trained: cached below or not, stacked or not, averaged in three ways."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedvlm.check.world import Setup, World
from fedvlm.core.errors import ConfigError
from fedvlm.federation.batches import FeatureSource
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.models.features import bank
from fedvlm.models.features.bank import bank_bytes, empty_bank, fill_bank, has_room
from tests.models.toys import products


class Plain(PeftTrainer):
    """FedAvg over whatever PEFT builds."""


def world(visual: str, *more: str) -> World:
    opts = ["PEFT.TEXT", "none", "PEFT.VISUAL", visual, "PEFT.RANK", "3", "PEFT.WIDTH", "4"]
    return World([*opts, *more])


def final(w: World, setup: Setup) -> dict[str, Tensor]:
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
    block = fed.trainer.token_block(fed.model)
    assert block == 1
    kept = fed.model.vision.enter(w.pixels, block)
    source = FeatureSource.of(kept[None], torch.arange(len(kept)), w.labels, f"tokens.{block}")
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
    assert all(n.endswith(".B") for u in run.events[-1].updates for n in u.params)


def test_product_svd_averages_products() -> None:
    w = world("lora", "PEFT.LORA_AVG", "product_svd", "PEFT.RANK", "16")
    run = w.record(Plain, Setup(pixels=True))
    updates = run.events[0].updates
    total = sum(u.weight for u in updates)
    got = products(run.states[1].server["w"])
    for site, value in got.items():
        want = sum(u.weight / total * products(u.params)[site] for u in updates)
        assert torch.allclose(value, want, 0, 1e-12)  # rank 16 of 16: nothing is cut


def test_a_role_that_stays_empty_names_the_ways_out() -> None:
    class Needy(Plain):
        needs = ("body",)

    with pytest.raises(ConfigError, match="--peft prompt.lora"):
        world("none", "PEFT.TEXT", "prompt").federation(Needy, Setup())


def test_the_bank_in_memory_and_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = world("lora")
    tower, seen = w.model().vision, []
    want = tower.enter(w.pixels, 1)
    for limit in (1 << 30, 0):
        monkeypatch.setattr(bank, "IN_MEMORY", limit)
        out = empty_bank(tower, len(w.pixels), tmp_path)
        fill_bank(tower, 1, out, lambda i: w.pixels[i], lambda _, n, of: seen.append((n, of)))
        assert torch.allclose(out, want, 0, 1e-12)
        assert not list(tmp_path.iterdir())  # the file has no name
    assert out.numel() * 8 == bank_bytes(tower, len(w.pixels))
    assert seen[-1] == (len(w.pixels), len(w.pixels))
    assert has_room(tower, 1, tmp_path) and not has_room(tower, 1 << 50, tmp_path)
