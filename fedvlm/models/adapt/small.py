"""A small personal classifier beside a large model: an MLP on features, or a tower on pixels.

Logits take trees with a leading client axis ``[K, ...]``; K towers are one convolution with K
groups.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.core.trees import Tree
from fedvlm.models.adapt.layers import layer, linear

MLP, TOWER = "mlp", "tower"
KINDS = (MLP, TOWER)
WIDTHS = (3, 16, 32, 64)  # channels of the pixels and of each convolution
SIDE, STRIDE = 3, 2


def small_mlp(width: int, hidden: int, classes: int, generator: torch.Generator) -> Tree:
    """Return ``small.fc1``, ``small.fc2``: weights ``[out, in]`` and biases."""
    tree: Tree = {}
    for i, (into, out) in enumerate(((width, hidden), (hidden, classes)), start=1):
        tree |= layer(f"small.fc{i}", (out, into), generator)
    return tree


def small_tower(classes: int, generator: torch.Generator) -> Tree:
    """Return ``small.conv1..3`` ``[out, in, 3, 3]`` and ``small.fc`` ``[C, 64]`` with biases."""
    tree: Tree = {}
    for i, (into, out) in enumerate(zip(WIDTHS[:-1], WIDTHS[1:], strict=True), start=1):
        tree |= layer(f"small.conv{i}", (out, into, SIDE, SIDE), generator)
    return tree | layer("small.fc", (classes, WIDTHS[-1]), generator)


def mlp_logits(p: Tree, z: Tensor) -> Tensor:
    """Return ``W2 gelu(W1 LN(z))`` ``[K, B, C]`` of features ``z [K, B, d]``."""
    h = linear(p, "small.fc1", F.layer_norm(z, z.shape[-1:]))
    return linear(p, "small.fc2", F.gelu(h))


def tower_logits(p: Tree, pixels: Tensor) -> Tensor:
    """Return logits ``[K, B, C]`` of pixels ``[K, B, 3, H, W]``.

    Three 3x3 convolutions of stride 2 with GELU, the mean over places, a linear layer.
    """
    k, batch = pixels.shape[:2]
    x = pixels.transpose(0, 1).flatten(1, 2)  # [B, K * channels, H, W]
    for i in range(1, len(WIDTHS)):
        weight, bias = p[f"small.conv{i}.weight"], p[f"small.conv{i}.bias"]
        x = F.gelu(F.conv2d(
            x, weight.flatten(0, 1), bias.flatten(), stride=STRIDE, padding=SIDE // 2, groups=k
        ))
    h = x.mean((-2, -1)).view(batch, k, -1).transpose(0, 1)
    return linear(p, "small.fc", h)
