"""Linear layers and norms over trees: weights by name, a leading client axis ``K``.

Trees have no client axis where they are made, ``[K, ...]`` where they are applied.
"""

from __future__ import annotations

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.core.trees import Tree
from fedvlm.models.towers.adapters import uniform


def layer(name: str, shape: tuple[int, ...], generator: torch.Generator, bias: bool = True) -> Tree:
    """Return ``{name}.weight`` of ``shape [out, in, ...]`` and ``{name}.bias [out]``.

    Uniform in +-1/sqrt(fan in), as torch's layers.
    """
    sizes = {"weight": shape} | ({"bias": shape[:1]} if bias else {})
    return {
        f"{name}.{part}": uniform(size, prod(shape[1:]), generator) for part, size in sizes.items()
    }


def norm(name: str, width: int) -> Tree:
    """Return a LayerNorm's ``{name}.weight`` (ones) and ``{name}.bias`` (zeros)."""
    return {f"{name}.weight": torch.ones(width), f"{name}.bias": torch.zeros(width)}


def linear(p: Tree, name: str, x: Tensor) -> Tensor:
    """Return ``x W' + b``, ``[K, ..., out]``, of ``x [K, ..., in]``; b where there is one."""
    weight, bias = p[f"{name}.weight"], p.get(f"{name}.bias")
    out = x.flatten(1, -2) @ weight.mT if x.dim() > 2 else (x[:, None] @ weight.mT)
    if bias is not None:
        out = out + bias[:, None]
    return out.reshape(*x.shape[:-1], weight.shape[1])


def layer_norm(p: Tree, name: str, x: Tensor) -> Tensor:
    """Return the LayerNorm ``name`` of ``x [K, ..., width]``."""
    middle = [1] * (x.dim() - 2)
    weight, bias = (p[f"{name}.{part}"] for part in ("weight", "bias"))
    shape = len(weight), *middle, weight.shape[-1]
    return F.layer_norm(x, x.shape[-1:]) * weight.reshape(shape) + bias.reshape(shape)


def split(x: Tensor, heads: int) -> Tensor:
    """Return ``[..., heads, width / heads]`` of ``[..., width]``."""
    return x.unflatten(-1, (heads, -1))


def fitting_heads(width: int, heads: int) -> int:
    """Return the largest number of heads up to ``heads`` that divides ``width``."""
    return next(h for h in range(heads, 0, -1) if width % h == 0)
