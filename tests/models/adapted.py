"""Adapters on the toys, and a random CLIP in transformers' own files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedvlm.models.adapt import peft
from fedvlm.models.adapt.peft import PeftSpec
from fedvlm.models.vlmodel import VLModel

EVERY = ("q", "k", "v", "o", "fc", "proj")
K = 3
SITE = "image.lora.0.q"
A, B = f"{SITE}.A", f"{SITE}.B"
SHAPE = {"intermediate_size": 72, "num_hidden_layers": 2, "num_attention_heads": 2}


def spec_of(visual: str = "lora", text: str = "none", **more: Any) -> PeftSpec:
    return PeftSpec(text, visual, "text", **({"rank": 4, "targets": EVERY, "width": 5} | more))


def start(spec: PeftSpec, model: VLModel, noise: float = 0.0, k: int = K) -> dict[str, Tensor]:
    gen = torch.Generator().manual_seed(3)
    tree = peft.build_tensors(spec, model, gen)
    return {
        n: v.to(model.dtype) + noise * torch.randn(k, *v.shape, generator=gen, dtype=model.dtype)
        for n, v in tree.items()
    }


def pixels(k: int = K, batch: int = 2) -> Tensor:
    gen = torch.Generator().manual_seed(5)
    return torch.randn(k, batch, 3, 32, 32, generator=gen, dtype=torch.float64)


def client(seed: int, rank: int = 2, out: int = 6, into: int = 5) -> dict[str, Tensor]:
    gen = torch.Generator().manual_seed(seed)
    shapes = {A: (rank, into), B: (out, rank), "head.weight": (3, 4)}
    return {n: torch.randn(s, generator=gen, dtype=torch.float64) for n, s in shapes.items()}


def save_hf_clip(folder: Path, vocabulary: int = 49408, **text: Any) -> Any:
    from transformers import CLIPConfig, CLIPModel

    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        config = CLIPConfig(
            text_config=SHAPE | {"hidden_size": 32, "max_position_embeddings": 20,
                                 "vocab_size": vocabulary, "eos_token_id": 49407} | text,
            vision_config=SHAPE | {"hidden_size": 48, "image_size": 32, "patch_size": 8},
            projection_dim=16,
        )
        model = CLIPModel(config).eval()
        for parameter in model.parameters():
            parameter.data.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model
