"""The packed text tower: every prompt set is one short sequence that shares its prefix.

Exact up to rounding (``performance.md`` 2.3-2.4): the causal mask makes ``[SOS, ctx]`` the same
for all classes, so it is encoded once; constants are folded (``fold``); in the last block only the
rows that are read out ask questions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fedvlm.models.backbone import Backbone
from fedvlm.models.fold import (
    Block,
    Unfoldable,
    activation_of,
    fold_block,
    fold_projection,
    heads_of,
)
from fedvlm.models.layout import CHUNK, Layout, make_layouts
from fedvlm.models.linear import frozen_linear
from fedvlm.models.text import Prompts
from fedvlm.models.tree_attention import TreeAttention

# Activations kept for the backward pass, in bytes, above which they are computed twice instead.
MAX_BYTES = 2 << 30


class PackedText:
    """Folded copy of a backbone's text tower; frozen.

    Args:
        backbone: causal, with open_clip's standard blocks.
        weight_dtype: of the linear layers; None: the feature type (bf16: optional mode).
        max_bytes: bound on the activations kept for the backward pass.

    Raises:
        Unfoldable: no causal mask, read-out not at EOT, or non-standard blocks.
    """

    def __init__(
        self,
        backbone: Backbone,
        weight_dtype: torch.dtype | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        tower = backbone.text_tower
        if not backbone.causal or backbone.pool not in ("argmax", "eos"):
            raise Unfoldable("the text tower is not causal with its read-out at the end of text")
        blocks = list(tower.transformer.resblocks)
        self.backbone, self.dtype = backbone, backbone.feature_dtype
        self.heads = heads_of(blocks)
        self.act, constant = activation_of(blocks)
        self.blocks = [fold_block(b, constant, weight_dtype or self.dtype) for b in blocks]
        self.final = fold_projection(tower.ln_final, tower.text_projection, self.dtype)
        self.final_eps = float(tower.ln_final.eps)
        self.positions: Tensor = tower.positional_embedding
        # 16 width-sized values per row and block (``performance.md`` 4).
        per_row = 16 * backbone.text_width * self.positions.element_size() * len(blocks)
        self.max_rows = max(1, max_bytes // per_row)

    def layouts(self, prompts: Prompts, chunk: int = CHUNK) -> list[Layout]:
        """Lay out a class list for this tower."""
        return make_layouts(prompts, max_rows=self.max_rows, dtype=self.dtype, chunk=chunk)

    def __call__(self, ctx: Tensor, layouts: list[Layout]) -> Tensor:
        """Text features [P, C, embed_dim], not normalised, of ``ctx`` [P, n_ctx, text_width]."""
        if len(layouts) == 1 and len(ctx) * layouts[0].rows <= self.max_rows:
            return self._encode(ctx, layouts[0])
        columns = []
        for layout in layouts:
            slices = ctx.split(max(1, self.max_rows // layout.rows))
            # Too large to keep: each piece is computed again when its gradient is asked for.
            parts = [
                checkpoint(self._encode, s, layout, use_reentrant=False, preserve_rng_state=False)
                for s in slices
            ]
            columns.append(torch.cat(parts))
        return torch.cat(columns, dim=1)

    def _encode(self, ctx: Tensor, layout: Layout) -> Tensor:
        x = self._embed(ctx, layout)
        for block in self.blocks[:-1]:
            qkv = frozen_linear(_norm(x, block.eps[0]), *block.qkv)
            mixed = TreeAttention.apply(qkv, self.heads, layout.own_mask, layout.prefix_mask)
            x = self._mlp(x + frozen_linear(mixed, *block.out), block)
        x = self._last(x, self.blocks[-1], layout)
        return frozen_linear(_norm(x, self.final_eps), *self.final)

    def _embed(self, ctx: Tensor, layout: Layout) -> Tensor:
        """Input rows [P, rows, width]: prefix, context, then all chunks."""
        sets, n = len(ctx), layout.n_prefix
        start = self.backbone.embed_tokens(layout.prefix_ids)
        own = self.backbone.embed_tokens(layout.ids) + self.positions[layout.positions]
        start = (start + self.positions[: len(start)]).expand(sets, -1, -1)
        middle = ctx + self.positions[n - layout.n_ctx : n]
        return torch.cat([start, middle, own.expand(sets, -1, -1)], dim=1)

    def _mlp(self, x: Tensor, block: Block) -> Tensor:
        hidden = frozen_linear(_norm(x, block.eps[1]), *block.fc)
        return x + frozen_linear(self.act(hidden), *block.proj)

    def _last(self, x: Tensor, block: Block, layout: Layout) -> Tensor:
        """Last block for the read-out rows only: [P, rows, width] -> [P, C, width]."""
        sets, width = len(x), x.shape[-1]
        n, (chunks, slots) = layout.n_prefix, layout.own_mask.shape[:2]
        heads, dim = self.heads, width // self.heads
        normed, (weight, bias) = _norm(x, block.eps[0]), block.qkv
        kv = frozen_linear(normed, weight[width:], bias[width:])
        q = frozen_linear(normed[:, layout.read], weight[:width], bias[:width])
        first, own = kv.view(sets, -1, 2, heads, dim).split([n, chunks * slots], dim=1)
        first = first.unsqueeze(1).expand(-1, chunks, -1, -1, -1, -1)
        own = own.reshape(sets, chunks, slots, 2, heads, dim)
        k, v = torch.cat([first, own], dim=2).permute(3, 0, 1, 4, 2, 5).unbind(0)
        q = q.view(sets, chunks, -1, heads, dim).transpose(2, 3)
        a = (q @ k.mT + layout.read_mask).softmax(-1)
        mixed = (a @ v).transpose(2, 3).reshape(sets, -1, width)[:, layout.pick]
        x = x[:, layout.read[layout.pick]] + frozen_linear(mixed, *block.out)
        return self._mlp(x, block)


def _norm(x: Tensor, eps: float) -> Tensor:
    """LayerNorm without its affine part, which is folded into the layer behind it."""
    return F.layer_norm(x, x.shape[-1:], eps=eps)


def largest_error(packed: PackedText, plain: Tensor, ctx: Tensor, prompts: Prompts) -> float:
    """Largest difference of normalised features between this path and the ``plain`` one."""
    fast = F.normalize(packed(ctx, packed.layouts(prompts)), dim=-1)
    return float((fast - F.normalize(plain, dim=-1)).abs().max())


__all__ = ["PackedText", "Unfoldable", "largest_error"]
