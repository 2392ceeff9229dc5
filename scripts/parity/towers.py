"""CLIP's image tower in plain PyTorch, written from the paper, for sides that have none of theirs.

Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021: a ViT
with a LayerNorm before its blocks and QuickGELU; weights under OpenAI's names.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from parity.world import HEAD, PATCH, World

Layer = Callable[[int, str, Tensor, Tensor, Tensor], Tensor]  # block, site, x, weight, bias


def plain(block: int, site: str, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the frozen layer."""
    return F.linear(x, weight, bias)


def image_features(world: World, images: Tensor, layer: Layer = plain) -> Tensor:
    """Return features ``[B, d]``, not normalised.

    Args:
        world: whose weights.
        images: ``[B, 3, H, W]``.
        layer: computes q, k, v, o, fc and proj of each block.
    """
    w = {n.removeprefix("visual."): v for n, v in world.weights.items() if n.startswith("visual.")}

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])

    x = F.conv2d(images, w["conv1.weight"], stride=PATCH).flatten(2).mT
    x = torch.cat([w["class_embedding"].expand(len(x), 1, -1), x], 1) + w["positional_embedding"]
    x = norm(x, "ln_pre")
    for block in range(world.case.layers):
        name = f"transformer.resblocks.{block}"
        h = norm(x, f"{name}.ln_1")
        weights, biases = (w[f"{name}.attn.in_proj_{k}"].chunk(3) for k in ("weight", "bias"))
        q, k, v = (layer(block, site, h, *pair).unflatten(-1, (-1, HEAD)).transpose(1, 2)
                   for site, *pair in zip("qkv", weights, biases, strict=True))
        mixed = ((q @ k.mT) / HEAD**0.5).softmax(-1) @ v
        x = x + layer(block, "o", mixed.transpose(1, 2).flatten(2), *pair_of(
            w, f"{name}.attn.out_proj"))
        h = layer(block, "fc", norm(x, f"{name}.ln_2"), *pair_of(w, f"{name}.mlp.c_fc"))
        x = x + layer(block, "proj", h * torch.sigmoid(1.702 * h), *pair_of(
            w, f"{name}.mlp.c_proj"))
    return norm(x[:, 0], "ln_post") @ w["proj"]


def pair_of(weights: dict[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
    """Return a layer's weight and bias."""
    return weights[f"{name}.weight"], weights[f"{name}.bias"]


def scores(world: World, images: Tensor, texts: Tensor, layer: Layer = plain) -> Tensor:
    """Return logits ``[B, C]`` against normalised texts ``[C, d]``."""
    z = F.normalize(image_features(world, images, layer), dim=-1)
    return world.weights["logit_scale"].exp() * z @ texts.T


def template_texts(world: World) -> Tensor:
    """Return normalised features ``[C, d]`` of the case's one template."""
    texts = [world.case.templates[0].format(name) for name in world.names]
    ids = world.backbone.tokenize(texts)
    return F.normalize(world.backbone.encode_embeddings(
        world.backbone.embed_tokens(ids), world.backbone.eot(ids)), dim=-1)


def with_lora(factors: dict[str, Tensor], scale: float) -> Layer:
    """Return layers W x + scale B A x; factors are named ``image.lora.<block>.<site>.{A,B}``."""

    def layer(block: int, site: str, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out, name = F.linear(x, weight, bias), f"image.lora.{block}.{site}"
        if f"{name}.A" not in factors:
            return out
        return out + scale * (x @ factors[f"{name}.A"].T) @ factors[f"{name}.B"].T

    return layer
