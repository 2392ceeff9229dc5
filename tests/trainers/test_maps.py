"""Maps of single images: every method that declares a figure gives them, and what they are."""

from __future__ import annotations

import sys

import pytest
import torch

from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.trainer import Trainer
from fedvlm.models.adapt.contexts import TRAINED
from tests.trainers.small_world import batch, method, model, tree

TOWER = ("FedMVP", "MaPLe", "PromptSRC", "VPT")


def test_who_declares_a_figure_has_maps_and_the_other_way_round() -> None:
    kinds = {}
    for name in trainer_files():
        cls = load_trainer(name)
        assert bool(cls.figure) == (cls.maps is not Trainer.maps), name
        if cls.figure:
            kinds[cls.name] = cls.figure
    assert kinds == {"FedOTP": "transport", "FedTV": "attention"} | dict.fromkeys(
        TOWER, "attention")


@pytest.mark.parametrize("name", TOWER)
def test_attention_reaches_patches_prompts_and_the_token_itself(name: str) -> None:
    trainer, b = method(name), batch(names=("pixels",))
    p = tree(trainer)
    with torch.no_grad():
        maps = trainer.maps(model(), p, b.x)
        again = trainer.maps(model(), {n: v.flip(0) for n, v in p.items()}, b.x)
    assert list(maps) == ["class token's attention", "to itself", "to prompts"]
    patches = maps["class token's attention"]
    assert patches.shape == (2, 4, model().vision.patch_shape[0])
    whole = patches.sum(-1) + maps["to itself"] + maps["to prompts"]
    assert torch.allclose(whole, torch.ones(2, 4).double())
    assert float(maps["to prompts"].min()) > 0
    assert not torch.allclose(again["to prompts"], maps["to prompts"])  # the clients' own prompts


def test_transport_is_the_plan_of_each_context() -> None:
    trainer = method("FedOTP", N_CTX=2, ITERS=50)
    p, b = tree(trainer) | {TRAINED: torch.tensor([1.0, 1.0])}, batch(names=("pixels",))
    with torch.no_grad():
        maps = trainer.maps(model(), p, b.x)
        fresh = trainer.maps(model(), p | {TRAINED: torch.tensor([1.0, 0.0])}, b.x)
        f = torch.nn.functional.normalize(model().patches(b.x)[1, 2], dim=-1)
        texts = {"shared context": model().text(p["text.ctx.global"])[1],
                 "own context": model().text(p["text.ctx.local"])[1]}
        made = sys.modules[type(trainer).__module__].transport
        for c in range(2):
            plan = made(f @ torch.stack([t[c] for t in texts.values()], 1), 0.1, 0.8, 50)
            for at, name in enumerate(texts):
                assert torch.allclose(maps[name][1, 2, c], plan[:, at], atol=1e-12)
    assert torch.equal(fresh["own context"][0], maps["own context"][0])
    assert torch.allclose(fresh["own context"][1], fresh["shared context"][1])  # as it predicts
    for plan in maps.values():
        assert torch.allclose(plan.sum(-1), torch.full(plan.shape[:-1], 0.4).double(), atol=1e-9)


def test_fusion_weights_mix_the_views() -> None:
    trainer, b = method("FedTV", N_CTX=4, RANK=2), batch()
    p = tree(trainer)
    maps = trainer.maps(model(), p, b.x)
    general, own = (
        sys.modules[type(trainer).__module__].visual.apply_gate(p, name, b.x["features"], "softmax")
        for name in ("image.shared_adapter", "image.personal_adapter")
    )
    views = {"frozen feature": b.x["features"], "shared adapter": general, "own adapter": own}
    mixed = sum(maps[name].unsqueeze(-1) * view for name, view in views.items())
    assert torch.allclose(mixed, trainer.image_features(model(), p, b.x), atol=1e-12)
