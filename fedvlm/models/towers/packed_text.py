"""The packed text tower: every prompt set is one short sequence that shares its prefix.

Exact up to rounding. With a causal tower nothing before the class name
depends on the class: ``[SOS, ctx, words]`` is encoded once per prompt set, and the classes' own
tokens follow it, each class with positions that restart behind the prefix (``PackedLayout``).
Where every class has a context of its own, ``[SOS]`` is all they share: contexts are part of the
classes' own tokens. Constants are folded (``fold``); in the last block only the rows that
are read out ask questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fedvlm.models.backbone import Backbone
from fedvlm.models.towers.fold import (
    FoldedBlock,
    Unfoldable,
    activation_of,
    fold_block,
    fold_projection,
    heads_of,
)
from fedvlm.models.towers.layers import frozen_linear
from fedvlm.models.towers.layouts import PackedLayout, chosen_layout, make_layouts
from fedvlm.models.towers.prompts import Prompts
from fedvlm.models.towers.tree_attention import TreeAttention, read_attention

# Activations kept for the backward pass, in bytes, above which they are computed twice instead.
MAX_BYTES = 2 << 30


class PackedText:
    """Folded copy of a backbone's text tower; frozen.

    Args:
        backbone: causal, with open_clip's standard blocks.
        weight_dtype: of the linear layers; None: the feature type (bf16: optional mode).

    Raises:
        Unfoldable: no causal mask, read-out not at EOT, or non-standard blocks.
    """

    def __init__(self, backbone: Backbone, weight_dtype: torch.dtype | None = None) -> None:
        tower = backbone.text_tower
        if not backbone.causal or backbone.pool not in ("argmax", "eos"):
            raise Unfoldable("the text tower is not causal, or does not use the end-of-text token")
        blocks = list(tower.transformer.resblocks)
        self.backbone, self.dtype = backbone, backbone.feature_dtype
        self.heads = heads_of(blocks)
        self.act, constant = activation_of(blocks)
        self.blocks = [fold_block(b, constant, weight_dtype or self.dtype) for b in blocks]
        self.final = fold_projection(tower.ln_final, tower.text_projection, self.dtype)
        self.final_eps = float(tower.ln_final.eps)
        self.positions: Tensor = tower.positional_embedding
        # 16 width-sized values per row and block.
        per_row = 16 * backbone.text_width * self.positions.element_size() * len(blocks)
        self.max_rows = max(1, MAX_BYTES // per_row)

    def layouts(self, prompts: Prompts, own: bool = False) -> list[PackedLayout]:
        """Lay out a class list for this tower; ``own``: every class has a context of its own."""
        return make_layouts(prompts, max_rows=self.max_rows, dtype=self.dtype, own=own)

    def chosen(
        self, prompts: Prompts, sets: Sequence[Sequence[int]]
    ) -> PackedLayout | None:
        """Lay out each prompt set's own classes; None where that does not fit this tower."""
        layout = chosen_layout(prompts, sets, self.dtype)
        return layout if layout.rows <= self.max_rows else None

    def __call__(
        self, ctx: Tensor, layouts: Sequence[PackedLayout],
        deep: Mapping[int, Tensor] | None = None, suffix: Tensor | None = None,
    ) -> Tensor:
        """Text features [P, C, embed_dim], not normalised, of ``ctx`` [P, n_ctx, text_width].

        Contexts of the classes' own are ``[P, C, n_ctx, text_width]``, with layouts made for them.
        Where each set has classes of its own the features are [M, embed_dim], in the order of
        ``PackedLayout.chosen``. ``deep``: contexts that take the place of the first in later
        blocks, shaped as ``ctx``. ``suffix``: what stands behind the names, [P, m, text_width],
        with layouts made for it.
        """
        contexts = {0: ctx, **(deep or {})}
        if len(layouts) == 1 and len(ctx) * layouts[0].rows <= self.max_rows:
            return self._encode(contexts, layouts[0], suffix)
        columns, start = [], 0
        for layout in layouts:
            stop = start + layout.pick.shape[-1]
            part = {b: v[:, start:stop] if v.dim() == 4 else v for b, v in contexts.items()}
            # Too large to keep: each piece is computed again when its gradient is asked for.
            parts = [
                checkpoint(
                    self._encode, {b: v[cut] for b, v in part.items()}, layout.cut(cut),
                    None if suffix is None else suffix[cut],
                    use_reentrant=False, preserve_rng_state=False,
                )
                for cut in _slices(len(ctx), max(1, self.max_rows // layout.rows))
            ]
            columns.append(torch.cat(parts))
            start = stop
        return columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)

    def _encode(
        self, contexts: Mapping[int, Tensor], layout: PackedLayout, suffix: Tensor | None = None
    ) -> Tensor:
        x = self.embed(contexts[0], layout, suffix)
        for number, block in enumerate(self.blocks[:-1]):
            x = _replaced(x, number, contexts, layout)
            qkv = frozen_linear(_norm(x, block.eps[0]), *block.qkv)
            mixed = TreeAttention.apply(qkv, self.heads, layout.own_mask, layout.prefix_mask)
            x = self._mlp(x + frozen_linear(mixed, *block.out), block)
        x = self._last(
            _replaced(x, len(self.blocks) - 1, contexts, layout), self.blocks[-1], layout
        )
        if layout.chosen is not None:
            x = x[layout.chosen[0], layout.chosen[1]]
        return self.read_out(x)

    def read_out(self, x: Tensor) -> Tensor:
        """Text features [..., embed_dim], not normalised, of the last block's rows."""
        return frozen_linear(_norm(x, self.final_eps), *self.final)

    def embed(
        self, ctx: Tensor, layout: PackedLayout, suffix: Tensor | None = None
    ) -> Tensor:
        """Input rows [P, rows, width]: prefix, context, words behind it, then all chunks."""
        sets, at = len(ctx), layout.ctx_at
        start = self.backbone.embed_tokens(layout.prefix_ids)
        own = self.backbone.embed_tokens(layout.ids) + self.positions[layout.positions]
        start = (start + self.positions[: len(start)]).expand(sets, -1, -1)
        inside = ctx if ctx.dim() == 4 else None
        if suffix is not None:  # the same vectors behind each name
            inside = suffix.unsqueeze(1).expand(-1, len(layout.pick), -1, -1)
        if inside is not None:
            rows = inside.flatten(1, 2) + self.positions[layout.positions[layout.own_ctx]]
            own = own.expand(sets, -1, -1).index_copy(1, layout.own_ctx, rows)
        if ctx.dim() == 4:
            return torch.cat([start, own], dim=1)
        rest = own.expand(sets, -1, -1)
        if len(layout.between_ids):
            words = self.backbone.embed_tokens(layout.between_ids)
            words = words + self.positions[at.stop : layout.n_prefix]
            rest = torch.cat([words.expand(sets, -1, -1), rest], dim=1)
        return torch.cat([start, ctx + self.positions[at], rest], dim=1)

    def _mlp(self, x: Tensor, block: FoldedBlock) -> Tensor:
        hidden = frozen_linear(_norm(x, block.eps[1]), *block.fc)
        return x + frozen_linear(self.act(hidden), *block.proj)

    def _last(self, x: Tensor, block: FoldedBlock, layout: PackedLayout) -> Tensor:
        """Last block for the read-out rows only: [P, rows, width] -> [P, C, width]."""
        width, normed, (weight, bias) = x.shape[-1], _norm(x, block.eps[0]), block.qkv
        kv = frozen_linear(normed, weight[width:], bias[width:])
        q = frozen_linear(layout.rows_at(normed, layout.read), weight[:width], bias[:width])
        mixed = layout.rows_at(read_attention(q, kv, self.heads, layout), layout.pick)
        x = layout.rows_at(x, layout.tops()) + frozen_linear(mixed, *block.out)
        return self._mlp(x, block)


def _slices(count: int, size: int) -> list[slice]:
    return [slice(at, at + size) for at in range(0, count, size)]


def _replaced(
    x: Tensor, block: int, contexts: Mapping[int, Tensor], layout: PackedLayout
) -> Tensor:
    """Return ``x [P, rows, width]`` with the context of ``block`` in its place, if it has one."""
    if block == 0 or block not in contexts:
        return x
    ctx, at = contexts[block], layout.ctx_at
    if ctx.dim() == 4:
        return x.index_copy(1, layout.n_prefix + layout.own_ctx, ctx.flatten(1, 2).to(x.dtype))
    return torch.cat([x[:, : at.start], ctx.to(x.dtype), x[:, at.stop :]], dim=1)


def _norm(x: Tensor, eps: float) -> Tensor:
    """LayerNorm without its affine part, which is folded into the layer behind it."""
    return F.layer_norm(x, x.shape[-1:], eps=eps)
