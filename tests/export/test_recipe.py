"""What is known is proved, what is not is refused."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from torch import Tensor, nn

from fedvlm.core.errors import ConfigError
from fedvlm.export.formats import tensors
from fedvlm.export.recipe import TOLERANCE, _tower, build_recipe, difference
from fedvlm.export.towers import plain_clip
from fedvlm.export.trained import TrainedModel
from fedvlm.federation.module_trainer import ModuleTrainer
from fedvlm.models.adapt.gates import KINDS
from fedvlm.models.load.backbones import load_backbone
from fedvlm.models.vlmodel import VLModel
from tests.export.models import NAMES, trained

FUSION = "TRAINER.THORKI.FUSION"


@pytest.mark.parametrize("how", [
    ("fedtv", "TRAINER.FEDTV.VARIANT", "published"), ("fedtv", "TRAINER.FEDTV.VARIANT", "fixed"),
    ("fedtv", "TRAINER.FEDTV.ADAPTER", "sigmoid"), ("fedtv", "TRAINER.FEDTV.NUM_PROMPT", "2"),
    ("fedavg", "--peft", "prompt+lora"), ("fedavg", "--peft", "prompt+adapter"),
    ("fedavg", "PEFT.LN", "True", "--peft", "prompt+lora"), ("fedavg", "PEFT.CSC", "True"),
    ("fedavg", "--peft", "text-lora"), ("fedavg", "--peft", "head"),
    ("fedavg", "--peft", "text-lora+lora", "PEFT.LORA_AVG", "residual", "PEFT.PRIVATE_RANK", "2"),
    ("fedproto", "TRAINER.FEDPROTO.PREDICT", "head"), ("fedproto",), ("zeroshot",),
    ("feddecomp", "--peft", "prompt+adapter"), ("thorki", "--peft", "prompt+adapter"),
    *[("thorki", FUSION, kind) for kind in KINDS],
], ids=" ".join)
def test_a_recipe_is_the_trainers_own_predictor_in_sixty_lines(how: tuple[str, ...]) -> None:
    recipe = build_recipe(trained(how[0], how[1:]))
    assert recipe.difference <= TOLERANCE
    assert float(recipe.logits.std()) > 1e-3  # not a constant that anything would equal
    lines = recipe.source.splitlines()
    assert len(lines) <= 60 and max(map(len, lines)) <= 100
    assert "fedvlm" not in " ".join(line for line in lines if "import" in line)


@pytest.mark.parametrize("fault", ["scale", "steps", "text", "forms"])
def test_a_recipe_that_is_wrong_is_not_let_out(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trained("fedtv" if fault == "forms" else "fedavg", ("--peft", "prompt+feature")
                    if fault != "forms" else ())
    trainer = whole.trainer
    if fault == "scale":
        plain = type(trainer).predictor
        monkeypatch.setattr(type(trainer), "predictor", lambda *a: lambda x: 1.001 * plain(*a)(x))
    elif fault == "steps":  # what a method does beside its tensors
        plain = type(trainer).image_features
        monkeypatch.setattr(type(trainer), "image_features", lambda *a: plain(*a).abs())
    elif fault == "text":  # class features that depend on the image
        plain = type(trainer).predictor
        monkeypatch.setattr(type(trainer), "predictor", lambda *a: lambda x: (
            plain(*a)(x) + 1e-2 * x["pixels"].mean((2, 3, 4))[..., None] * torch.arange(4)))
    else:
        wrong = {"view": "sigmoid", "scores": "plain"}
        monkeypatch.setattr(type(trainer), "forms", lambda _: wrong)
    with pytest.raises(ConfigError, match="predicts differently from its exported form"):
        build_recipe(whole)


@pytest.mark.parametrize("name", ["image.ln.0.weight", "image.prompt.3", "text.meta.weight",
                                  "small.conv4.weight"])
def test_a_tensor_that_no_recipe_knows_is_refused_by_name(name: str) -> None:
    whole = trained("fedavg")
    more = replace(whole, params=whole.params | {name: torch.zeros(3)})
    with pytest.raises(ConfigError, match=f"only --format onnx can store.*first '{name}'"):
        build_recipe(more)


def test_forms_are_asked_for_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trained("fedtv")
    monkeypatch.setattr(type(whole.trainer), "forms", lambda _: {})
    with pytest.raises(ConfigError, match="its forms\\(\\) lacks 'view'"):
        build_recipe(whole)
    monkeypatch.setattr(type(whole.trainer), "forms", lambda _: {"view": "tanh"})
    with pytest.raises(ConfigError, match="forms view tanh"):
        build_recipe(whole)


def test_a_half_set_of_tensors_is_refused() -> None:
    whole = trained("fedtv")
    less = {n: v for n, v in whole.params.items() if n != "image.fusion.query.bias"}
    with pytest.raises((ConfigError, KeyError), match="image.fusion.query.bias"):
        build_recipe(replace(whole, params=less))


def test_numbers_that_are_not_finite_and_bfloat16_are_refused() -> None:
    whole = trained("fedavg")
    bad = dict(whole.params) | {"text.ctx": torch.full((16, 64), torch.nan)}
    with pytest.raises(ConfigError, match="'text.ctx' contains non-finite numbers"):
        build_recipe(replace(whole, params=bad))
    low = VLModel(load_backbone("tiny", dtype=torch.bfloat16), NAMES)
    with pytest.raises(ConfigError, match="bfloat16: load the model in float32"):
        build_recipe(replace(whole, model=low))


class Head(ModuleTrainer):
    name = ""

    def build(self, model: VLModel) -> nn.Module:
        return nn.Linear(model.embed_dim, len(model.classnames))

    def forward(self, module: nn.Module, params: Mapping[str, Tensor], x: Any) -> Any:
        return x


def test_a_module_of_its_own_is_refused_with_the_way_out() -> None:
    whole = trained("fedavg")
    own = TrainedModel(Head(whole.trainer.root), whole.model, {"weight": torch.zeros(4, 4)})
    with pytest.raises(ConfigError, match="ModuleTrainer.export"):
        build_recipe(own)


def test_a_tower_with_a_name_is_fetched_by_open_clip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Public weights are not copied: run.py asks open_clip for the tag that the run had."""
    whole, asked = trained("fedavg", ("--peft", "prompt+lora")), []
    assert recipe_tower(whole, "ViT-B/16", "openai") == {
        "name": "ViT-B-16-quickgelu", "pretrained": "openai",
    }
    assert "file" in recipe_tower(whole, "ViT-B/16", "my/weights.pt")
    assert "file" in recipe_tower(whole, "ViT-B/16", "transformers:openai/clip-vit-base-patch16")
    recipe = build_recipe(whole)
    named = replace(recipe, card=recipe.card | {"tower": {"name": "N", "pretrained": "T"}})

    def create(name: str, pretrained: str) -> nn.Module:
        asked.append((name, pretrained))
        return copy.deepcopy(plain_clip(whole.model))

    tensors.write(named, whole, tmp_path, tmp_path)
    monkeypatch.setattr(open_clip, "create_model", create)
    with torch.no_grad():
        assert difference(tensors.read(tmp_path)(recipe.pixels), recipe.logits) <= TOLERANCE
    assert asked == [("N", "T")] and not (tmp_path / "tower.safetensors").exists()


def recipe_tower(whole: TrainedModel, name: str, weights: str) -> dict[str, Any]:
    model = whole.model.fresh()
    model.backbone = copy.copy(model.backbone)
    model.backbone.name, model.backbone.weights = name, weights
    return _tower(model)
