"""A frozen transformer block as plain weights, with a leading client axis and places for adapters.

``Shell`` is what an image tower has around such blocks.

Reads the blocks of open_clip's towers, or ours, as they are or as ``layers.cast_linears`` remade
them; ``trunk_blocks`` reads timm's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedvlm.models.towers.clip import is_block
from fedvlm.models.towers.fold import QUICK_GELU
from fedvlm.models.towers.layers import SplitAttention, frozen_linear

BRANCHES, STAGE = ("attn", "mlp"), "stage"
Pair = tuple[Tensor, "Tensor | None"]
Module = Callable[[Tensor], Tensor]


class Layered(Protocol):
    """What LoRA asks of a block: ``FrozenBlock``, or a layer of an encoder."""

    @property
    def index(self) -> int:
        """Number in its tower, from 0."""

    def shape(self, site: str) -> tuple[int, int]:
        """Return (out, in) of a linear layer."""


class Unreadable(Exception):
    """A tower whose blocks are not open_clip's standard ones."""


class Edits:
    """What clients change in a tower's frozen blocks; as it stands, nothing.

    A subclass says what it changes. ``x`` and ``h`` carry the clients first: ``[K, B, n, width]``.
    All hooks must act image by image, and ``linear``, ``norm`` and ``branch`` row by row: in the
    text tower, where ``enter`` and ``leave`` are not called, rows of all classes lie side by side.
    """

    @property
    def staged(self) -> bool:
        """Whether it changes a trunk's stages (by ``branch`` alone) instead of blocks."""
        return False

    def enter(self, block: int, x: Tensor, own: int) -> Tensor:
        """Return what enters ``block``: ``x``, or with rows behind the ``own`` of the tower.

        Rows that are added here stay until a later ``enter`` takes them away (``x[:, :, :own]``);
        behind the last block they are dropped. They have no positions.
        """
        return x

    def linear(
        self, block: int, site: str, x: Tensor, weight: Tensor, bias: Tensor | None, factor: float
    ) -> Tensor:
        """Return layer ``site`` (q, k, v, o, fc, proj) of ``x [K, ..., in]``.

        An update of the layer is to be multiplied with ``factor`` (``FrozenBlock.factor``).
        """
        return frozen_linear(x, weight, bias)

    def norm(self, block: int, place: int, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        """Return LayerNorm ``place`` (1: before attention, 2: before MLP) of ``x``."""
        out: Tensor = norm(x)
        return out

    def before(self, block: int, x: Tensor, norm: nn.LayerNorm) -> None:
        """Look at the rows ``x`` of ``block`` to which its branches will be added.

        Args:
            norm: the one before the attention.
        """

    def branch(self, block: int, which: str, h: Tensor) -> Tensor:
        """Return the output ``h`` of a branch (``attn`` or ``mlp``), before it is added.

        ``stage``: what leaves a stage of a convolutional trunk, its places as rows (``stages``).
        """
        return h

    def leave(self, block: int, x: Tensor, own: int) -> Tensor:
        """Return what leaves ``block``, all rows of it."""
        return x

    def cut(self, images: slice) -> Edits:
        """Return the edits for a part of the batch: where they are not the same for all images."""
        return self


NoEdits = Edits  # the frozen blocks as they are


@dataclass(frozen=True)
class Rope:
    """Rotary positions of an image's patches (Su et al. 2021, RoFormer; in two dimensions).

    Attributes:
        sin, cos: ``[M, dim]``, or ``[heads, M, dim]`` where every head has angles of its own.
        first: rows before the patches (class token, registers); these, and rows that were added
            behind, have no place and are not turned.
        half: number i is turned with i + dim / 2; else neighbours are, 2i with 2i + 1.
    """

    sin: Tensor
    cos: Tensor
    first: int
    half: bool

    def __call__(self, t: Tensor) -> Tensor:
        """Turn queries or keys ``[n, heads, rows, dim]``."""
        count = self.sin.shape[-2]
        x = t[:, :, self.first : self.first + count]
        if self.half:
            a, b = x.chunk(2, -1)
            across = torch.cat([-b, a], -1)
        else:
            across = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        x = (x * self.cos + across * self.sin).to(t.dtype)
        return torch.cat([t[:, :, : self.first], x, t[:, :, self.first + count :]], 2)


def as_it_is(x: Tensor) -> Tensor:
    """Return ``x``: where a block has nothing."""
    return x


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
        head_norms: of queries and keys, head by head.
        rope: rotary positions of queries and keys; None: the block has none.
        before_o, before_fc: norms before the attention's output layer and the MLP's first one.

    A gated MLP has one ``fc`` of both halves' rows, and ``act`` multiplies them.
    """

    index: int
    heads: int
    layers: dict[str, Pair]
    norms: tuple[nn.LayerNorm, nn.LayerNorm]
    scales: tuple[Module, Module]
    act: Module
    fold: float
    head_norms: tuple[Module, Module] = (as_it_is, as_it_is)
    rope: Rope | None = None
    before_o: Module = as_it_is
    before_fc: Module = as_it_is

    def factor(self, site: str) -> float:
        """Return what an update of the unfolded layer is to be multiplied with."""
        return {"fc": self.fold, "proj": 1 / self.fold}.get(site, 1.0)

    def shape(self, site: str) -> tuple[int, int]:
        """Return (out, in) of a layer."""
        out, into = self.layers[site][0].shape
        return out, into

    def __call__(
        self, x: Tensor, edits: Edits, mask: Tensor | None = None, read: Tensor | None = None,
        own: int = 0,
    ) -> Tensor:
        """Return the block's output.

        Args:
            x: ``[K, B, n, width]``.
            edits: see ``Edits``.
            mask: ``[n, n]``, added to the scores.
            read: ``[B]`` positions; the output is then of these rows only, ``[K, B, 1, width]``
                (nothing behind a last block needs the others).
            own: the tower's own rows where ``edits`` may add others (``Edits.enter`` and ``leave``
                are called); 0: they may not.
        """
        if own:
            x = edits.enter(self.index, x, own)
        h = edits.norm(self.index, 1, x, self.norms[0])
        top, rows = (x, h) if read is None else (_rows(x, read), _rows(h, read))
        q, k, v = (self.site(name, t, edits) for name, t in (("q", rows), ("k", h), ("v", h)))
        if mask is not None and read is not None:
            mask = mask[read].unsqueeze(1).unsqueeze(1)  # [B, 1, 1, n]
            mask = mask.repeat(len(x), 1, 1, 1)
        x = self.finish(top, edits, self._attend(q, k, v, mask))
        return edits.leave(self.index, x, own) if own else x

    def finish(self, x: Tensor, edits: Edits, mixed: Tensor) -> Tensor:
        """Return ``x`` with the attention's output layer on ``mixed``, then the MLP, added."""
        edits.before(self.index, x, self.norms[0])
        out = self.scales[0](self.site("o", self.before_o(mixed), edits))
        x = x + edits.branch(self.index, "attn", out)
        normed = edits.norm(self.index, 2, x, self.norms[1])
        hidden = self.act(self.site("fc", self.before_fc(normed), edits))
        out = self.scales[1](self.site("proj", hidden, edits))
        return x + edits.branch(self.index, "mlp", out)

    def attention(self, x: Tensor, edits: Edits, read: Tensor, own: int) -> Tensor:
        """Return how much the row ``read`` of each image takes of every row.

        softmax(q . k / sqrt(dim)) of each head, whatever value the row then has.

        Args:
            x, edits, read, own: as for the block itself.

        Returns:
            ``[K, B, heads, n]`` of sum 1; rows that ``edits`` add come last.
        """
        x = edits.enter(self.index, x, own)
        h = edits.norm(self.index, 1, x, self.norms[0])
        q, k = self._turned(self.site("q", _rows(h, read), edits), self.site("k", h, edits))
        scores = (q @ k.mT).squeeze(2) / q.shape[-1] ** 0.5
        return scores.softmax(-1).unflatten(0, x.shape[:2])

    def site(self, name: str, x: Tensor, edits: Edits) -> Tensor:
        """Return a layer of ``x [K, ..., in]``, edited."""
        weight, bias = self.layers[name]
        return edits.linear(self.index, name, x, weight, bias, self.factor(name))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """[K, B, m, width], [K, B, n, width] twice -> [K, B, m, width]."""
        mask = None if mask is None else mask.to(q.dtype)
        mixed = F.scaled_dot_product_attention(*self._turned(q, k), self._split(v), attn_mask=mask)
        return mixed.transpose(1, 2).reshape(q.shape)

    def _turned(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys by heads, as they are compared."""
        each = self.head_norms[0](self._split(q)), self.head_norms[1](self._split(k))
        if self.rope is None:
            return each
        # A row that is read alone is the class token's, which is not turned.
        return self.rope(each[0]) if q.shape[2] == k.shape[2] else each[0], self.rope(each[1])

    def _split(self, t: Tensor) -> Tensor:
        """[K, B, n, width] -> [K * B, heads, n, dim]."""
        return t.reshape(-1, t.shape[2], self.heads, t.shape[3] // self.heads).transpose(1, 2)


class Shell(ABC):
    """What an image tower has around its blocks.

    Attributes:
        blocks: between entry and pool; none in a ResNet.
        tokens, width, prefix, class_token: as ``VisionTower``'s.
        one_row: only the first row is read out: behind the last block no other is needed.
        has_patches: whether ``project`` is defined for single rows.
    """

    blocks: list[FrozenBlock]
    tokens: int
    width: int
    prefix: int
    class_token: bool
    one_row: bool
    has_patches: bool

    @abstractmethod
    def embed(self, pixels: Tensor) -> Tensor:
        """Return what enters the first block, ``[n, tokens, width]``, of ``[n, 3, S, S]``."""

    def enter_norm(self, rows: Tensor) -> Tensor:
        """Return rows through the norm that stands before all blocks, if one does."""
        return rows

    @abstractmethod
    def pool(self, x: Tensor) -> Tensor:
        """Return features ``[n, d]`` of what leaves the last block."""

    def project(self, rows: Tensor) -> Tensor:
        """Return rows of the last block in the joint space, each for itself."""
        return rows


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
