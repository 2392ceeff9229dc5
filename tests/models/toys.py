"""Small random backbones for tests: seconds matter, sizes do not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedvlm.models.backbone import Backbone
from fedvlm.models.features.store import FeatureStore
from fedvlm.models.load.openclip import build_model, finish
from fedvlm.models.load.tiny import TinyTokenizer
from fedvlm.models.towers.adapters import FACTOR_A, FACTOR_B, sites

NAMES = ("tench", "great pyrenees", "boeing 747", "a rather long class name", "x", "red_fox")
TEXT = {"context_length": 40, "vocab_size": 4096, "width": 32, "heads": 4, "layers": 3}
VIT = {"image_size": 32, "layers": 2, "width": 48, "head_width": 16, "patch_size": 8}
RESNET = {"image_size": 64, "layers": [1, 1, 1, 1], "width": 16, "head_width": 32}
CONFIGS: dict[str, dict[str, Any]] = {
    "vit": {"embed_dim": 24, "quick_gelu": True, "vision_cfg": VIT, "text_cfg": TEXT},
    "gelu": {"embed_dim": 24, "vision_cfg": VIT, "text_cfg": TEXT | {"ls_init_value": 0.5}},
    "resnet": {"embed_dim": 64, "quick_gelu": True, "vision_cfg": RESNET, "text_cfg": TEXT},
    "custom": {
        "embed_dim": 24,
        "custom_text": True,
        "vision_cfg": VIT,
        "text_cfg": TEXT | {"proj_bias": True, "norm_kwargs": {"eps": 1e-6}},
    },
    "siglip": {
        "embed_dim": 32,
        "custom_text": True,
        "init_logit_bias": -10,
        "vision_cfg": VIT,
        "text_cfg": TEXT | {"no_causal_mask": True, "pool_type": "last", "proj_bias": True},
    },
    "cosine": {
        "embed_dim": 24,
        "vision_cfg": VIT,
        "text_cfg": TEXT | {"scale_attn": True, "block_type": "custom"},
    },
}


def toy(kind: str = "vit", seed: int = 0, **place: Any) -> Backbone:
    """Return a small random backbone; every parameter is moved away from its neutral start."""
    arch = copy.deepcopy(CONFIGS[kind])
    model, preprocess = build_model(arch, seed)
    gen = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.is_floating_point() and not name.startswith("logit") and "mask" not in name:
                noise = 0.05 * torch.randn(tensor.shape, generator=gen)
                tensor.add_(noise.abs() if "running_var" in name else noise)
    tokenizer = TinyTokenizer(arch["text_cfg"]["context_length"])
    return finish(model, arch, preprocess, tokenizer, kind, "", **place)


def context(backbone: Backbone, *lead: int, n_ctx: int = 5, seed: int = 1) -> Tensor:
    """Return a random context [*lead, n_ctx, width] that requires a gradient."""
    gen = torch.Generator().manual_seed(seed)
    shape = (*lead, n_ctx, backbone.text_width)
    noise = 0.1 * torch.randn(shape, generator=gen, dtype=torch.float64)
    return noise.to(backbone.feature_dtype).requires_grad_()


def loss_and_grad(
    model: Any, ctx: Tensor, encode: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Return a curved loss of the text features (``encode``), and its gradient for the context."""
    loss, (grad,) = loss_and_grads((ctx,), (encode or model.text)(ctx))
    return loss, grad


def loss_and_grads(leaves: Sequence[Tensor], features: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
    """Return a curved loss of text features, and its gradients for all that they are made of."""
    gen = torch.Generator().manual_seed(2)
    z = torch.randn(4, features.shape[-1], generator=gen, dtype=torch.float64).to(features)
    logits = 20 * torch.nn.functional.normalize(z, dim=-1) @ features.mT
    loss = -logits.log_softmax(-1)[..., 0].mean(-1)
    return loss.detach(), torch.autograd.grad(loss.sum(), leaves)


def relative(a: Tensor, b: Tensor) -> float:
    """Return |a - b| / |b| in the Euclidean norm."""
    return float((a - b).detach().norm() / b.detach().norm())


def products(tree: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return ``B A`` ``[..., out, in]`` of each LoRA site: what it adds to the weights."""
    return {s: tree[s + FACTOR_B] @ tree[s + FACTOR_A] for s in sites(tree)}


def rows_of(store: FeatureStore, keys: Iterable[str], view: int) -> dict[str, Tensor]:
    """Return key -> row [width] for those of ``keys`` that are stored and sound."""
    at, rows = store.find(keys, view)
    return {key: rows[i] for key, i in at.items()}
