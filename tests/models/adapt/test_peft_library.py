"""peft's own LoRA and ours give equal features, in open_clip's towers and in transformers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.core.trees import Tree
from fedvlm.export.formats.peft_folder import to_peft
from fedvlm.models.adapt import peft as ours
from fedvlm.models.load.backbones import load_backbone
from fedvlm.models.towers.layers import split_attention
from fedvlm.models.vlmodel import VLModel
from tests.models.adapted import save_hf_clip, spec_of
from tests.models.toys import NAMES, toy

ALPHA = 12.0
OPEN_CLIP = {"q": "attn.q_proj", "k": "attn.k_proj", "v": "attn.v_proj", "o": "attn.out_proj",
             "fc": "mlp.c_fc", "proj": "mlp.c_proj"}


def theirs(model: Any, targets: list[str]) -> Any:
    """peft's model around ``model``, every factor drawn."""
    from peft import LoraConfig, get_peft_model

    wrapped = get_peft_model(model, LoraConfig(r=4, lora_alpha=ALPHA, target_modules=targets))
    gen = torch.Generator().manual_seed(1)
    for name, p in wrapped.named_parameters():
        if "lora_" in name:
            p.data = 0.3 * torch.randn(p.shape, generator=gen, dtype=torch.float64)
    return wrapped.eval()


def factors_of(wrapped: Any) -> Tree:
    from peft import get_peft_model_state_dict

    return get_peft_model_state_dict(wrapped)


def images() -> Tensor:
    return torch.randn(3, 3, 32, 32, dtype=torch.float64)


@pytest.mark.parametrize("tower", ["both", "text"])
def test_peft_in_open_clip_s_towers_computes_what_ours_does(tower: str) -> None:
    backbone = toy(dtype=torch.float64)
    spec = spec_of("lora" if tower == "both" else "none", "lora", alpha=ALPHA)
    model = VLModel(backbone, NAMES)
    built = ours.build_tensors(spec, model, torch.Generator())
    split = toy(dtype=torch.float64).model
    split_attention(split)
    targets = [n.rpartition(".")[2] for n in OPEN_CLIP.values()] if tower == "both" else (
        r"transformer\.resblocks\.\d+\.(attn\.\w_proj|attn\.out_proj|mlp\.c_\w+)")
    wrapped = theirs(split, targets)
    state = factors_of(wrapped)
    places = {"image": "visual.transformer.resblocks", "text": "transformer.resblocks"}
    p = {}
    for name in built:
        part, _, block, layer, factor = name.split(".")
        module = f"base_model.model.{places[part]}.{block}.{OPEN_CLIP[layer]}"
        p[name] = state.pop(f"{module}.lora_{factor}.weight").unsqueeze(0)
    assert not state, "each of peft's factors has its place, and no other"
    assert {n: v.shape[1:] for n, v in p.items()} == {n: v.shape for n, v in built.items()}
    ids, x = backbone.tokenize([f"a photo of a {n.replace('_', ' ')}." for n in NAMES]), images()
    with torch.no_grad():
        want = wrapped.base_model.model.encode_image(x)
        texts = wrapped.base_model.model.encode_text(ids, normalize=True)
    moved = float((want - backbone.encode_image(x)).abs().max())
    assert moved > 1e-2 if tower == "both" else moved < 1e-12, "LoRA moves only where it is"
    if tower == "both":
        got = ours.image_features(spec, model, p, {"pixels": x.unsqueeze(0)})[0]
        assert torch.allclose(got, want, 0, 1e-12)
    assert torch.allclose(ours.text_features(spec, model, p)[0], texts, 0, 1e-12)


def test_the_names_of_an_export_are_peft_s_in_transformers(tmp_path: Path) -> None:
    hf = save_hf_clip(tmp_path / "clip").double()
    backbone = load_backbone(str(tmp_path / "clip"), loader="transformers", dtype=torch.float64)
    wrapped = theirs(hf, ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"])
    state, model = factors_of(wrapped), VLModel(backbone, NAMES)
    spec = spec_of("lora", "lora", alpha=ALPHA, targets=("q", "k", "v", "o", "fc", "proj"))
    built = ours.build_tensors(spec, model, torch.Generator())
    numbers = to_peft({name: torch.tensor(i) for i, name in enumerate(built)})
    assert numbers.keys() == state.keys()
    names = list(built)
    p = {names[int(numbers[name])]: v.unsqueeze(0) for name, v in state.items()}
    x = images()
    with torch.no_grad():
        want = wrapped.base_model.model.get_image_features(x).pooler_output
    got = ours.image_features(spec, model, p, {"pixels": x.unsqueeze(0)})[0]
    assert torch.allclose(got, want, 0, 1e-11)
