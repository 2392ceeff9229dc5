"""A frozen transformer block as plain weights, with a leading client axis and places for adapters.

Reads the blocks of open_clip's towers, or ours, as they are or as ``layers.cast_linears`` remade
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedvlm.models.towers.clip import is_block
from fedvlm.models.towers.fold import QUICK_GELU
from fedvlm.models.towers.layers import SplitAttention, frozen_linear

BRANCHES = ("attn", "mlp")
Pair = tuple[Tensor, "Tensor | None"]
Module = Callable[[Tensor], Tensor]


class Unreadable(Exception):
    """A tower whose blocks are not open_clip's standard ones."""


class Edits(Protocol):
    """What a client changes in a frozen block."""

    def linear(
        self, block: int, site: str, x: Tensor, weight: Tensor, bias: Tensor | None, factor: float
    ) -> Tensor:
        """Return layer ``site`` of ``x [K, ..., in]``, adapted; see ``Block.factor``."""
        ...

    def norm(self, block: int, place: int, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        """Return LayerNorm ``place`` (1: before attention, 2: before MLP) of x, adapted."""
        ...

    def branch(self, block: int, which: str, h: Tensor) -> Tensor:
        """Return the output ``h [K, B, n, width]`` of a branch, adapted."""
        ...


class NoEdits:
    """The frozen block as it is."""

    def linear(
        self, block: int, site: str, x: Tensor, weight: Tensor, bias: Tensor | None, factor: float
    ) -> Tensor:
        """Return the frozen layer's output."""
        return frozen_linear(x, weight, bias)

    def norm(self, block: int, place: int, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        """Return the frozen LayerNorm's output."""
        out: Tensor = norm(x)
        return out

    def branch(self, block: int, which: str, h: Tensor) -> Tensor:
        """Return ``h``."""
        return h


@dataclass(frozen=True)
class FrozenBlock:
    """One frozen block.

    Attributes:
        index: number in its tower, from 0.
        heads: attention heads.
        layers: site (q, k, v, o, fc, proj) -> (weight ``[out, in]``, bias).
        norms, scales: (before attention, before MLP), (after attention, after MLP).
        act: of the MLP.
        fold: c where ``fc`` is stored times c and ``proj`` over c (QuickGELU as SiLU), else 1.
    """

    index: int
    heads: int
    layers: dict[str, Pair]
    norms: tuple[nn.LayerNorm, nn.LayerNorm]
    scales: tuple[Module, Module]
    act: Module
    fold: float

    def factor(self, site: str) -> float:
        """Return what an update of the unfolded layer is to be multiplied with."""
        return {"fc": self.fold, "proj": 1 / self.fold}.get(site, 1.0)

    def shape(self, site: str) -> tuple[int, int]:
        """Return (out, in) of a layer."""
        out, into = self.layers[site][0].shape
        return out, into

    def __call__(
        self, x: Tensor, edits: Edits, mask: Tensor | None = None, read: Tensor | None = None
    ) -> Tensor:
        """Return the block's output.

        Args:
            x: ``[K, B, n, width]``.
            edits: see ``Edits``.
            mask: ``[n, n]``, added to the scores.
            read: ``[B]`` positions; the output is then of these rows only, ``[K, B, 1, width]``
                (nothing behind a last block needs the others).
        """
        h = edits.norm(self.index, 1, x, self.norms[0])
        top, rows = (x, h) if read is None else (_rows(x, read), _rows(h, read))
        q, k, v = self._site("q", rows, edits), self._site("k", h, edits), self._site("v", h, edits)
        if mask is not None and read is not None:
            mask = mask[read].unsqueeze(1).unsqueeze(1)  # [B, 1, 1, n]
            mask = mask.repeat(len(x), 1, 1, 1)
        mixed = self._attend(q, k, v, mask)
        out = self.scales[0](self._site("o", mixed, edits))
        x = top + edits.branch(self.index, "attn", out)
        normed = edits.norm(self.index, 2, x, self.norms[1])
        hidden = self.act(self._site("fc", normed, edits))
        out = self.scales[1](self._site("proj", hidden, edits))
        return x + edits.branch(self.index, "mlp", out)

    def _site(self, site: str, x: Tensor, edits: Edits) -> Tensor:
        weight, bias = self.layers[site]
        return edits.linear(self.index, site, x, weight, bias, self.factor(site))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """[K, B, m, width], [K, B, n, width] twice -> [K, B, m, width]."""
        mask = None if mask is None else mask.to(q.dtype)
        mixed = F.scaled_dot_product_attention(
            self._split(q), self._split(k), self._split(v), attn_mask=mask
        )
        return mixed.transpose(1, 2).reshape(q.shape)

    def _split(self, t: Tensor) -> Tensor:
        """[K, B, n, width] -> [K * B, heads, n, dim]."""
        return t.reshape(-1, t.shape[2], self.heads, t.shape[3] // self.heads).transpose(1, 2)


def read_blocks(resblocks: Sequence[Any]) -> list[FrozenBlock]:
    """Return open_clip's blocks as plain weights (no copy).

    Raises:
        Unreadable: blocks of another kind.
    """
    out = []
    for index, block in enumerate(resblocks):
        if not is_block(block) or hasattr(block, "ln_1_kv"):
            raise Unreadable(f"its blocks are {type(block).__name__}")
        mlp, attn = block.mlp, block.attn
        fold = QUICK_GELU if type(mlp.gelu) is nn.SiLU else 1.0
        layers = _attention(attn) | {
            "fc": (mlp.c_fc.weight, mlp.c_fc.bias), "proj": (mlp.c_proj.weight, mlp.c_proj.bias),
        }
        out.append(
            FrozenBlock(
                index, int(attn.num_heads), layers, (block.ln_1, block.ln_2),
                (block.ls_1, block.ls_2), mlp.gelu, fold,
            )
        )
    return out


def _attention(attn: Any) -> dict[str, Pair]:
    if isinstance(attn, SplitAttention):
        four = (attn.q_proj, attn.k_proj, attn.v_proj, attn.out_proj)
        return {s: (m.weight, m.bias) for s, m in zip("qkvo", four, strict=True)}
    if not isinstance(attn, nn.MultiheadAttention) or attn.in_proj_weight is None:
        raise Unreadable(f"its attention is {type(attn).__name__}")
    weights, biases = attn.in_proj_weight.chunk(3), attn.in_proj_bias.chunk(3)
    pairs: dict[str, Pair] = {s: (w, b) for s, w, b in zip("qkv", weights, biases, strict=True)}
    return pairs | {"o": (attn.out_proj.weight, attn.out_proj.bias)}


def _rows(x: Tensor, read: Tensor) -> Tensor:
    return x[:, torch.arange(x.shape[1], device=x.device), read].unsqueeze(2)
