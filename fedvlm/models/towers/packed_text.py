"""The packed text tower: every prompt set is one short sequence that shares its prefix.

Exact up to rounding (``performance.md`` 2.3-2.4). With a causal tower nothing before the class name
depends on the class: ``[SOS, ctx]`` is encoded once per prompt set, and the classes' own tokens
follow it, each class with positions that restart behind the prefix (``PackedLayout``). Where every
class has a context of its own, ``[SOS]`` is all they share: contexts are part of the classes' own
tokens. Constants are folded (``fold``); in the last block only the rows that are read out ask
questions.
"""

from __future__ import annotations

from dataclasses import dataclass

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
from fedvlm.models.towers.prompts import Prompts
from fedvlm.models.towers.tree_attention import TreeAttention

CHUNK = 32
# Activations kept for the backward pass, in bytes, above which they are computed twice instead.
MAX_BYTES = 2 << 30


@dataclass(frozen=True)
class PackedLayout:
    """Index tables of G chunks with T token slots and E read-out slots each, on one device.

    ``ids`` [G*T] token ids (0 in padding); ``positions`` [G*T] in the text tower; ``own_mask``
    [G, T, T], ``prefix_mask`` [n, n] and ``read_mask`` [G, 1, E, n + T] are added to attention
    scores (0 or -inf); ``read`` [G*E] rows of the EOT tokens in the sequence; ``pick`` [C] index
    of each class in ``read``; ``prefix_ids`` [start] tokens before the ``n_ctx`` vectors that all
    classes share; ``tokens`` real tokens; ``own_ctx`` [C*m] slots of the classes' own m context
    vectors, class by class (empty where the context is shared).
    """

    ids: Tensor
    positions: Tensor
    own_mask: Tensor
    prefix_mask: Tensor
    read_mask: Tensor
    read: Tensor
    pick: Tensor
    prefix_ids: Tensor
    n_ctx: int
    tokens: int
    own_ctx: Tensor

    @property
    def n_prefix(self) -> int:
        """Rows of the shared prefix."""
        return len(self.prefix_mask)

    @property
    def rows(self) -> int:
        """Rows of one packed sequence, padding included."""
        return self.n_prefix + len(self.ids)


def bins(lengths: list[int], capacity: int) -> list[list[int]]:
    """First-fit decreasing: indices of ``lengths`` in bins of at most ``capacity`` each."""
    filled: list[list[int]] = []
    free: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        spot = next((b for b, left in enumerate(free) if left >= lengths[index]), None)
        if spot is None:
            filled.append([])
            free.append(capacity)
            spot = len(free) - 1
        filled[spot].append(index)
        free[spot] -= lengths[index]
    return filled


def tight_bins(lengths: list[int], chunk: int) -> list[list[int]]:
    """Bins of about ``chunk`` tokens, all nearly equally full, so that padding is small."""
    wanted = max(1, round(sum(lengths) / chunk))
    capacity = max(max(lengths), -(-sum(lengths) // wanted))
    while len(groups := bins(lengths, capacity)) > wanted:
        capacity += 1
    return groups


def make_layouts(
    prompts: Prompts, *, max_rows: int, dtype: torch.dtype, chunk: int = CHUNK, own: bool = False
) -> list[PackedLayout]:
    """Lay out the classes of ``prompts`` (ids [C, L]) in sequences of about ``max_rows`` at most.

    Returns one layout where all fit, otherwise several, of consecutive classes. ``own``: each class
    has a context of its own.
    """
    first = prompts.start + (0 if own else prompts.n_ctx)
    lengths = [int(end) + 1 - first for end in prompts.ends]
    groups: list[list[int]] = []
    group: list[int] = []
    rows = first
    for index, length in enumerate(lengths):
        if group and rows + length > max_rows:
            groups.append(group)
            group, rows = [], first
        group.append(index)
        rows += length
    return [_layout(prompts, classes, chunk, dtype, own) for classes in [*groups, group]]


def _layout(
    prompts: Prompts, classes: list[int], chunk: int, dtype: torch.dtype, private: bool
) -> PackedLayout:
    n_ctx = 0 if private else prompts.n_ctx
    first = prompts.start + n_ctx
    all_ids, ends = prompts.ids.cpu(), [int(prompts.ends[c]) for c in classes]
    lengths = [end + 1 - first for end in ends]
    groups = tight_bins(lengths, chunk)
    slots = max(sum(lengths[i] for i in group) for group in groups)
    reads = max(len(group) for group in groups)
    ids = torch.zeros(len(groups), slots, dtype=torch.long)
    positions, owner = torch.full_like(ids, first), torch.full_like(ids, -1)
    read = torch.zeros(len(groups), reads, dtype=torch.long)
    pick = torch.zeros(len(lengths), dtype=torch.long)
    starts = torch.zeros(len(lengths), 1, dtype=torch.long)
    for g, group in enumerate(groups):
        at = 0
        for e, i in enumerate(group):
            span = slice(at, at + lengths[i])
            ids[g, span] = all_ids[classes[i], first : ends[i] + 1]
            positions[g, span] = torch.arange(first, ends[i] + 1)
            owner[g, span] = i
            starts[i] = g * slots + at
            at += lengths[i]
            read[g, e] = at - 1
            pick[i] = g * reads + e
    device, own = prompts.ids.device, _own_mask(owner, dtype)
    rows = first + torch.arange(len(groups)).unsqueeze(1) * slots + read
    read_mask = torch.cat(
        [
            torch.zeros(*read.shape, first, dtype=dtype),
            own.gather(1, read.unsqueeze(2).expand(-1, -1, slots)),
        ],
        dim=2,
    )
    return PackedLayout(
        ids=ids.flatten().to(device),
        positions=positions.flatten().to(device),
        own_mask=own.to(device),
        prefix_mask=_hide(torch.ones(first, first).triu(1).bool(), dtype).to(device),
        read_mask=read_mask.unsqueeze(1).to(device),
        read=rows.flatten().to(device),
        pick=pick.to(device),
        prefix_ids=prompts.ids[0, : prompts.start],
        n_ctx=n_ctx,
        tokens=first + sum(lengths),
        own_ctx=(starts + torch.arange(prompts.n_ctx - n_ctx)).flatten().to(device),
    )


def _own_mask(owner: Tensor, dtype: torch.dtype) -> Tensor:
    """[G, T, T]: a slot sees the earlier slots of its own class (padding slots see each other)."""
    same = owner.unsqueeze(2) == owner.unsqueeze(1)
    causal = torch.ones(owner.shape[1], owner.shape[1]).tril().bool()
    return _hide(~(same & causal), dtype)


def _hide(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))


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

    def layouts(
        self, prompts: Prompts, chunk: int = CHUNK, own: bool = False
    ) -> list[PackedLayout]:
        """Lay out a class list for this tower; ``own``: every class has a context of its own."""
        return make_layouts(
            prompts, max_rows=self.max_rows, dtype=self.dtype, chunk=chunk, own=own
        )

    def __call__(self, ctx: Tensor, layouts: list[PackedLayout]) -> Tensor:
        """Text features [P, C, embed_dim], not normalised, of ``ctx`` [P, n_ctx, text_width].

        Contexts of the classes' own are ``[P, C, n_ctx, text_width]``, with layouts made for them.
        """
        if len(layouts) == 1 and len(ctx) * layouts[0].rows <= self.max_rows:
            return self._encode(ctx, layouts[0])
        sizes = [len(layout.pick) for layout in layouts]
        own = ctx.split(sizes, dim=1) if ctx.dim() == 4 else [ctx] * len(layouts)
        columns = []
        for layout, part in zip(layouts, own, strict=True):
            slices = part.split(max(1, self.max_rows // layout.rows))
            # Too large to keep: each piece is computed again when its gradient is asked for.
            parts = [
                checkpoint(self._encode, s, layout, use_reentrant=False, preserve_rng_state=False)
                for s in slices
            ]
            columns.append(torch.cat(parts))
        return torch.cat(columns, dim=1)

    def _encode(self, ctx: Tensor, layout: PackedLayout) -> Tensor:
        x = self._embed(ctx, layout)
        for block in self.blocks[:-1]:
            qkv = frozen_linear(_norm(x, block.eps[0]), *block.qkv)
            mixed = TreeAttention.apply(qkv, self.heads, layout.own_mask, layout.prefix_mask)
            x = self._mlp(x + frozen_linear(mixed, *block.out), block)
        x = self._last(x, self.blocks[-1], layout)
        return frozen_linear(_norm(x, self.final_eps), *self.final)

    def _embed(self, ctx: Tensor, layout: PackedLayout) -> Tensor:
        """Input rows [P, rows, width]: prefix, context, then all chunks."""
        sets, n = len(ctx), layout.n_prefix
        start = self.backbone.embed_tokens(layout.prefix_ids)
        own = self.backbone.embed_tokens(layout.ids) + self.positions[layout.positions]
        start = (start + self.positions[: len(start)]).expand(sets, -1, -1)
        if ctx.dim() == 4:
            places = self.positions[layout.positions[layout.own_ctx]]
            own = own.expand(sets, -1, -1).index_copy(1, layout.own_ctx, ctx.flatten(1, 2) + places)
            return torch.cat([start, own], dim=1)
        middle = ctx + self.positions[n - layout.n_ctx : n]
        return torch.cat([start, middle, own.expand(sets, -1, -1)], dim=1)

    def _mlp(self, x: Tensor, block: FoldedBlock) -> Tensor:
        hidden = frozen_linear(_norm(x, block.eps[1]), *block.fc)
        return x + frozen_linear(self.act(hidden), *block.proj)

    def _last(self, x: Tensor, block: FoldedBlock, layout: PackedLayout) -> Tensor:
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
