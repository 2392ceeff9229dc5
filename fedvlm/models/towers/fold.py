"""Folding a text tower's constants into its linear layers (in float64, then cast).

LayerNorm's gain and shift go into the layer behind it, the softmax scale into q, LayerScale into
the layer before it, and QuickGELU's 1.702 into both layers of the MLP, so that it becomes SiLU:
``x * sigmoid(a x) = silu(a x) / a``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedvlm.core.trees import in_double
from fedvlm.models.towers.clip import is_block, is_quick_gelu

QUICK_GELU = 1.702
Pair = tuple[Tensor, Tensor]


class Unfoldable(Exception):
    """The text tower has parts that the packed path does not know; the plain path is used."""


@dataclass(frozen=True)
class FoldedBlock:
    """Folded (weight [out, in], bias [out]) of one block's layers, and its two norms' eps."""

    qkv: Pair
    out: Pair
    fc: Pair
    proj: Pair
    eps: tuple[float, float]


def fold_block(block: Any, constant: float, dtype: torch.dtype) -> FoldedBlock:
    """Fold a standard block (``constant``: see ``activation_of``)."""
    attn, fc, proj = block.attn, block.mlp.c_fc, block.mlp.c_proj
    width, heads = attn.embed_dim, attn.num_heads
    device = attn.in_proj_weight.device
    scale = in_double(attn.in_proj_weight.new_ones(3 * width, 1))
    scale[:width] = (width // heads) ** -0.5
    grow = scale.new_full((1, 1), constant)
    return FoldedBlock(
        qkv=_cast(
            _behind_norm(block.ln_1, attn.in_proj_weight, attn.in_proj_bias, scale), dtype, device
        ),
        out=_cast(_before_scale(block.ls_1, attn.out_proj, 1.0), dtype, device),
        fc=_cast(_behind_norm(block.ln_2, fc.weight, fc.bias, grow), dtype, device),
        proj=_cast(_before_scale(block.ls_2, proj, 1 / constant), dtype, device),
        eps=(float(block.ln_1.eps), float(block.ln_2.eps)),
    )


def fold_projection(norm: Any, projection: Any, dtype: torch.dtype) -> Pair:
    """Fold the final norm's affine part into the text projection: ([embed, width], [embed])."""
    gain, shift = in_double(norm.weight), in_double(norm.bias)
    bias = None
    if projection is None:
        matrix = torch.diag(torch.ones_like(gain))
    elif isinstance(projection, nn.Linear):
        matrix, bias = in_double(projection.weight), projection.bias
    else:
        matrix = in_double(projection).T
    total = matrix @ shift + (0.0 if bias is None else in_double(bias))
    return _cast((matrix * gain, total), dtype, norm.weight.device)


def heads_of(blocks: list[Any]) -> int:
    """Number of attention heads of standard blocks.

    Raises:
        Unfoldable: blocks of another kind, or attention with extra keys or without biases.
    """
    standard = all(
        is_block(block)
        and type(block.attn) is nn.MultiheadAttention
        and block.attn.in_proj_bias is not None
        and block.attn.bias_k is None
        for block in blocks
    )
    if not standard:
        raise Unfoldable("the text tower's blocks are not open_clip's standard ones")
    return int(blocks[0].attn.num_heads)


def activation_of(blocks: list[Any]) -> tuple[Callable[[Tensor], Tensor], float]:
    """The MLP's function as a built-in one, and the factor to fold for it.

    Raises:
        Unfoldable: neither QuickGELU nor exact GELU.
    """
    layers = [block.mlp.gelu for block in blocks]
    if all(is_quick_gelu(layer) for layer in layers):
        return F.silu, QUICK_GELU
    if all(type(layer) is nn.GELU and layer.approximate == "none" for layer in layers):
        return F.gelu, 1.0
    raise Unfoldable("the text tower's activation is neither QuickGELU nor GELU")


def _behind_norm(norm: Any, weight: Tensor, bias: Tensor, scale: Tensor) -> Pair:
    """A linear layer behind a LayerNorm: absorb its gain and shift, and a row ``scale``."""
    weight, bias = in_double(weight), in_double(bias)
    folded = scale * weight * in_double(norm.weight)
    return folded, scale.squeeze(1) * (bias + weight @ in_double(norm.bias))


def _before_scale(layer_scale: Any, layer: nn.Linear, factor: float) -> Pair:
    """A linear layer before a LayerScale: absorb it, and a ``factor`` on the layer's input."""
    weight, bias = in_double(layer.weight), in_double(layer.bias)
    if hasattr(layer_scale, "gamma"):
        gamma = in_double(layer_scale.gamma)
        weight, bias = gamma.unsqueeze(1) * weight, gamma * bias
    return weight * factor, bias


def _cast(pair: Pair, dtype: torch.dtype, device: torch.device) -> Pair:
    weight, bias = (t.to(dtype).to(device).contiguous() for t in pair)
    return weight, bias
