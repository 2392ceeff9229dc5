"""peft's own LoRA and ours give equal features, and files go both ways."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.models.adapt import peft as ours
from fedvlm.models.adapt.peft_io import from_peft, load_peft, save_peft, to_peft
from fedvlm.models.load.backbones import load_backbone
from fedvlm.models.towers.layers import split_attention
from fedvlm.models.vlmodel import VLModel
from tests.models.adapted import save_hf_clip, spec_of, start
from tests.models.toys import NAMES, toy

LAYERS = ["q_proj", "k_proj", "v_proj", "out_proj", "c_fc", "c_proj"]
ALPHA = 12.0


def split_model() -> tuple[Any, Any]:
    backbone = toy(dtype=torch.float64)
    model = copy.deepcopy(backbone.model)
    split_attention(model)
    return backbone, model


def theirs(model: Any, targets: list[str]) -> Any:
    from peft import LoraConfig, get_peft_model

    wrapped = get_peft_model(model, LoraConfig(r=4, lora_alpha=ALPHA, target_modules=targets))
    gen = torch.Generator().manual_seed(1)
    for name, p in wrapped.named_parameters():
        if "lora_" in name:
            p.data = 0.3 * torch.randn(p.shape, generator=gen, dtype=torch.float64)
    return wrapped.eval()


def images() -> Tensor:
    return torch.randn(3, 3, 32, 32, dtype=torch.float64)


def ids_of(backbone: Any) -> Tensor:
    return backbone.tokenize([f"a photo of a {n.replace('_', ' ')}." for n in NAMES])


def test_peft_s_model_and_ours_agree_both_ways(tmp_path: Path) -> None:
    from peft import PeftModel, get_peft_model_state_dict

    backbone, split = split_model()
    wrapped = theirs(split, LAYERS)
    tree = from_peft(get_peft_model_state_dict(wrapped))
    spec, model = spec_of("lora", "lora", alpha=ALPHA), VLModel(backbone, NAMES)
    built = ours.build(spec, model, torch.Generator())
    assert {n: v.shape for n, v in tree.items()} == {n: v.shape for n, v in built.items()}
    p, x = {n: v.unsqueeze(0) for n, v in tree.items()}, images()
    with torch.no_grad():
        want = wrapped.base_model.model.encode_image(x)
        texts = wrapped.base_model.model.encode_text(ids_of(backbone), normalize=True)
    got = ours.image_features(spec, model, p, {"pixels": x.unsqueeze(0)})[0]
    assert float((want - backbone.encode_image(x)).abs().max()) > 1e-2  # LoRA does something
    assert torch.allclose(got, want, 0, 1e-12)
    assert torch.allclose(ours.text_features(spec, model, p)[0], texts, 0, 1e-12)

    other = {n: v[0] for n, v in start(spec, model, 0.2, 1).items()}
    save_peft(other, tmp_path / "a", ALPHA)
    loaded = PeftModel.from_pretrained(split_model()[1], str(tmp_path / "a")).eval()
    with torch.no_grad():
        want = loaded.base_model.model.encode_image(x)
    p = {n: v.unsqueeze(0) for n, v in other.items()}
    got = ours.image_features(spec, model, p, {"pixels": x.unsqueeze(0)})[0]
    assert torch.allclose(got, want, 0, 1e-12)
    back = load_peft(tmp_path / "a", spec.scale)
    assert set(back) == set(other) and all(torch.equal(back[n], other[n]) for n in other)


def test_an_adapter_of_one_tower_does_not_touch_the_other(tmp_path: Path) -> None:
    from peft import PeftModel

    backbone, split = split_model()
    spec, model = spec_of("none", "lora", targets=("q", "v")), VLModel(backbone, NAMES)
    tree = {n: v[0] for n, v in start(spec, model, 0.2, 1).items()}
    save_peft(tree, tmp_path, spec.alpha)
    loaded = PeftModel.from_pretrained(split, str(tmp_path)).eval()
    assert not [n for n, _ in loaded.named_parameters() if "lora_" in n and "visual" in n]
    with torch.no_grad():
        want = loaded.base_model.model.encode_text(ids_of(backbone), normalize=True)
    p = {n: v.unsqueeze(0) for n, v in tree.items()}
    assert torch.allclose(ours.text_features(spec, model, p)[0], want, 0, 1e-12)


def test_transformers_names(tmp_path: Path) -> None:
    from peft import get_peft_model_state_dict

    hf = save_hf_clip(tmp_path / "clip").double()
    backbone = load_backbone(str(tmp_path / "clip"), loader="transformers", dtype=torch.float64)
    wrapped = theirs(hf, ["q_proj", "v_proj", "out_proj", "fc1", "fc2"])
    state = get_peft_model_state_dict(wrapped)
    tree = from_peft(state)
    assert to_peft(tree, "transformers").keys() == state.keys()
    spec = spec_of("lora", "lora", alpha=ALPHA, targets=("q", "v", "o", "fc", "proj"))
    p, x = {n: v.unsqueeze(0) for n, v in tree.items()}, images()
    with torch.no_grad():
        want = wrapped.base_model.model.get_image_features(x).pooler_output
    got = ours.image_features(spec, VLModel(backbone, NAMES), p, {"pixels": x.unsqueeze(0)})[0]
    assert torch.allclose(got, want, 0, 1e-11)


def test_another_scale_goes_into_b(tmp_path: Path) -> None:
    backbone, _ = split_model()
    tree = {n: v[0] for n, v in start(spec_of(), VLModel(backbone, NAMES), 0.2, 1).items()}
    save_peft(tree, tmp_path, ALPHA)  # alpha / rank 3
    half = load_peft(tmp_path, 6.0)
    for name, value in tree.items():
        assert torch.allclose(half[name], value / (2 if name.endswith(".B") else 1))


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no LoRA to export"):
        save_peft({"text.ctx": torch.zeros(2, 3)}, tmp_path, 1.0)
    with pytest.raises(DataError, match="no peft adapter"):
        load_peft(tmp_path / "none", 1.0)
    with pytest.raises(DataError, match="is no LoRA factor"):
        from_peft({"base_model.model.visual.ln_post.lora_A.weight": torch.zeros(1, 1)})
    with pytest.raises(ConfigError, match="unknown style"):
        to_peft({"image.lora.0.q.A": torch.zeros(1, 1), "image.lora.0.q.B": torch.zeros(1, 1)}, "x")
    tree = {"image.lora.0.q.A": torch.zeros(1, 2), "image.lora.0.q.B": torch.zeros(2, 1)}
    save_peft(tree, tmp_path, 1.0)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | {"r": 0}))
    with pytest.raises(DataError, match="no 'r' above 0"):
        load_peft(tmp_path, 1.0)
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True}))
    with pytest.raises(DataError, match="not plain LoRA.*use_dora"):
        load_peft(tmp_path, 1.0)
