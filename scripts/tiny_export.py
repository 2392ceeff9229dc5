"""Writes the model folder: fp16 safetensors, open_clip's config and the card, each atomically."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from tiny_gate import MEAN, STD
from torch import Tensor

MODEL_CFG: dict[str, Any] = {
    "embed_dim": 128,
    "quick_gelu": False,
    "vision_cfg": {
        "image_size": 32,
        "patch_size": 8,
        "width": 128,
        "layers": 6,
        "head_width": 32,
    },
    "text_cfg": {
        "context_length": 48,
        "vocab_size": 4096,
        "width": 128,
        "heads": 4,
        "layers": 4,
    },
}
PREPROCESS_CFG: dict[str, Any] = {
    "mean": [MEAN] * 3,
    "std": [STD] * 3,
    "interpolation": "bicubic",
    "resize_mode": "shortest",
}


def replace_file(path: Path, data: bytes) -> None:
    """Replaces a file in one step, so that a reader never sees half of it."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(data)
    os.replace(part, path)


def versions() -> dict[str, str]:
    """Versions of what the weights depend on."""
    names = ("torch", "open_clip_torch", "numpy", "pillow", "matplotlib", "scikit-learn")
    return {"python": platform.python_version()} | {n: version(n) for n in names}


def export(
    folder: Path, weights: Mapping[str, Tensor], facts: dict[str, Any],
    model_cfg: Mapping[str, Any] = MODEL_CFG, preprocess_cfg: Mapping[str, Any] = PREPROCESS_CFG,
    metadata: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """Writes config, weights (fp16, with `metadata`) and card (`facts` plus hash and versions)."""
    folder.mkdir(parents=True, exist_ok=True)
    half = {
        name: (t.half() if t.is_floating_point() else t).contiguous()
        for name, t in weights.items()
        if name != "attn_mask"
    }
    data = save(half, metadata={"format": "pt", **(metadata or {})})
    digest = hashlib.sha256(data).hexdigest()
    config = {"model_cfg": model_cfg, "preprocess_cfg": preprocess_cfg}
    parameters = sum(t.numel() for t in half.values())
    card = {"sha256": digest, "bytes": len(data), "parameters": parameters}
    card |= facts | {"versions": versions()}
    replace_file(folder / "open_clip_config.json", json_bytes(config))
    replace_file(folder / "open_clip_model.safetensors", data)
    replace_file(folder / "card.json", json_bytes(card))
    return digest


def json_bytes(value: Any) -> bytes:
    """Return a value as a JSON file."""
    return (json.dumps(value, indent=2) + "\n").encode("utf-8")


def new_model(seed: int, model_cfg: Mapping[str, Any] = MODEL_CFG) -> Any:
    """A CLIP (the tiny one) with weights drawn from the seed; torch's generator is left alone."""
    from open_clip.model import CLIP

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return CLIP(**model_cfg)
