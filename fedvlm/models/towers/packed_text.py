"""The packed text tower: every prompt set is one short sequence that shares its prefix.

Exact up to rounding (``performance.md`` 2.3-2.4): the causal mask makes ``[SOS, ctx]`` the same
for all classes, so it is encoded once; constants are folded (``fold``); in the last block only the
rows that are read out ask questions.

Where each token of a class list lies in a packed sequence: one prefix, then chunks of classes.

With a causal tower nothing before the class name depends on the class. So ``[SOS, ctx]`` is
encoded once per prompt set, and the classes' own tokens follow it, each class with positions that
restart behind the prefix. Classes are grouped into chunks of about ``chunk`` tokens; a token
attends to the prefix and to the earlier tokens of its own class, which lie in its own chunk.

Attention over a packed sequence: the prefix to itself, each chunk to the prefix and itself.

Written as one autograd function with batched products: the layout is known, so each gradient is
written where it belongs, without the zero-filled copies that slicing costs.

Which way a context becomes text features: packed where proved equal, plain otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from fedvlm.core import rng
from fedvlm.models.backbone import Backbone
from fedvlm.models.towers.layers import (
    Block,
    Unfoldable,
    activation_of,
    fold_block,
    fold_projection,
    frozen_linear,
    heads_of,
)
from fedvlm.models.towers.text import Prompts, assemble, plain_text

CHUNK = 32


@dataclass(frozen=True)
class Layout:
    """Index tables of G chunks with T token slots and E read-out slots each, on one device.

    ``ids`` [G*T] token ids (0 in padding); ``positions`` [G*T] in the text tower; ``own_mask``
    [G, T, T], ``prefix_mask`` [n, n] and ``read_mask`` [G, 1, E, n + T] are added to attention
    scores (0 or -inf); ``read`` [G*E] rows of the EOT tokens in the sequence; ``pick`` [C] index
    of each class in ``read``; ``prefix_ids`` [start] tokens before the ``n_ctx`` vectors;
    ``tokens`` real tokens.
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
    while len(found := bins(lengths, capacity)) > wanted:
        capacity += 1
    return found


def make_layouts(
    prompts: Prompts, *, max_rows: int, dtype: torch.dtype, chunk: int = CHUNK
) -> list[Layout]:
    """Lay out the classes of ``prompts`` (ids [C, L]) in sequences of about ``max_rows`` at most.

    Returns one layout where all fit, otherwise several, of consecutive classes.
    """
    first = prompts.start + prompts.n_ctx
    lengths = [int(end) + 1 - first for end in prompts.ends]
    found: list[list[int]] = []
    group: list[int] = []
    rows = first
    for index, length in enumerate(lengths):
        if group and rows + length > max_rows:
            found.append(group)
            group, rows = [], first
        group.append(index)
        rows += length
    return [_layout(prompts, classes, chunk, dtype) for classes in [*found, group]]


def _layout(prompts: Prompts, classes: list[int], chunk: int, dtype: torch.dtype) -> Layout:
    first = prompts.start + prompts.n_ctx
    all_ids, ends = prompts.ids.cpu(), [int(prompts.ends[c]) for c in classes]
    lengths = [end + 1 - first for end in ends]
    groups = tight_bins(lengths, chunk)
    slots = max(sum(lengths[i] for i in group) for group in groups)
    reads = max(len(group) for group in groups)
    ids = torch.zeros(len(groups), slots, dtype=torch.long)
    positions, owner = torch.full_like(ids, first), torch.full_like(ids, -1)
    read = torch.zeros(len(groups), reads, dtype=torch.long)
    pick = torch.zeros(len(lengths), dtype=torch.long)
    for g, group in enumerate(groups):
        at = 0
        for e, i in enumerate(group):
            span = slice(at, at + lengths[i])
            ids[g, span] = all_ids[classes[i], first : ends[i] + 1]
            positions[g, span] = torch.arange(first, ends[i] + 1)
            owner[g, span] = i
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
    return Layout(
        ids=ids.flatten().to(device),
        positions=positions.flatten().to(device),
        own_mask=own.to(device),
        prefix_mask=_hide(torch.ones(first, first).triu(1).bool(), dtype).to(device),
        read_mask=read_mask.unsqueeze(1).to(device),
        read=rows.flatten().to(device),
        pick=pick.to(device),
        prefix_ids=prompts.ids[0, : prompts.start],
        n_ctx=prompts.n_ctx,
        tokens=first + sum(lengths),
    )


def _own_mask(owner: Tensor, dtype: torch.dtype) -> Tensor:
    """[G, T, T]: a slot sees the earlier slots of its own class (padding slots see each other)."""
    same = owner.unsqueeze(2) == owner.unsqueeze(1)
    causal = torch.ones(owner.shape[1], owner.shape[1]).tril().bool()
    return _hide(~(same & causal), dtype)


def _hide(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))


class TreeAttention(torch.autograd.Function):
    """softmax(q k^T + mask) v over ``[prefix ; own chunk]`` for every chunk, and for the prefix.

    ``qkv`` [P, n + G*T, 3*width], heads inside; q is already scaled. ``own_mask`` [G, T, T] and
    ``prefix_mask`` [n, n] are added to the scores. Returns [P, n + G*T, width].
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int, own_mask: Tensor, prefix_mask: Tensor) -> Tensor:
        """Compute the mixed values; see the class."""
        sets, rows, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        n, chunks, slots = len(prefix_mask), own_mask.shape[0], own_mask.shape[1]
        head, dim = sets * heads, width // heads
        parts = qkv.view(sets, rows, 3, heads, dim).split([n, rows - n], dim=1)
        # [3, P*H, rows, dim]: every product below is then one batched product.
        first, own = (p.permute(2, 0, 3, 1, 4).contiguous().view(3, head, -1, dim) for p in parts)
        a_first = torch.bmm(first[0], first[1].mT).add_(prefix_mask).softmax(-1)
        q, k, v = (t.view(head * chunks, slots, dim) for t in own)
        to_first = torch.bmm(own[0], first[1].mT).view(head, chunks, slots, n)
        to_own = torch.bmm(q, k.mT).view(head, chunks, slots, slots).add_(own_mask)
        a = torch.cat([to_first, to_own], dim=-1).softmax(-1)
        mixed = torch.bmm(_prefix_part(a, n), first[2])
        mixed.view_as(q).baddbmm_(_own_part(a, n), v)
        out = qkv.new_empty(sets, rows, heads, dim)
        out[:, :n] = torch.bmm(a_first, first[2]).view(sets, heads, n, dim).transpose(1, 2)
        out[:, n:] = mixed.view(sets, heads, rows - n, dim).transpose(1, 2)
        ctx.save_for_backward(first, own, a_first, a)
        return out.view(sets, rows, width)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """Gradient for ``qkv``."""
        first, own, a_first, a = ctx.saved_tensors
        head, chunks, slots = a.shape[:3]
        n = first.shape[2]
        sets, rows, width = grad.shape
        dim = own.shape[-1]
        heads = width // dim
        parts = grad.view(sets, rows, heads, dim).split([n, rows - n], dim=1)
        g_first, g_own = (p.transpose(1, 2).contiguous().view(head, -1, dim) for p in parts)
        q, k, v = (t.view(head * chunks, slots, dim) for t in own)
        g = g_own.view_as(q)
        ga = torch.cat(
            [
                torch.bmm(g_own, first[2].mT).view(head, chunks, slots, n),
                torch.bmm(g, v.mT).view(head, chunks, slots, slots),
            ],
            dim=-1,
        )
        gs = _softmax_backward(ga, a)
        gs_first = _softmax_backward(torch.bmm(g_first, first[2].mT), a_first)
        gs_pre, gs_own = _prefix_part(gs, n), _own_part(gs, n)
        gq = torch.bmm(gs_pre, first[1])
        gq.view_as(q).baddbmm_(gs_own, k)
        gk, gv = torch.bmm(gs_own.mT, q), torch.bmm(_own_part(a, n).mT, g)
        gq_first = torch.bmm(gs_first, first[1])
        gk_first = torch.bmm(gs_first.mT, first[0]).baddbmm_(gs_pre.mT, own[0])
        gv_first = torch.bmm(a_first.mT, g_first).baddbmm_(_prefix_part(a, n).mT, g_own)
        out = grad.new_empty(sets, rows, 3, heads, dim)
        pairs = ((gq_first, gq), (gk_first, gk), (gv_first, gv))
        for i, (pre, own_rows) in enumerate(pairs):
            out[:, :n, i] = pre.view(sets, heads, n, dim).transpose(1, 2)
            out[:, n:, i] = own_rows.view(sets, heads, rows - n, dim).transpose(1, 2)
        return out.view(sets, rows, 3 * width), None, None, None


def _prefix_part(a: Tensor, n: int) -> Tensor:
    """Columns of the prefix, [P*H, G*T, n], a view."""
    return a[..., :n].flatten(1, 2)


def _own_part(a: Tensor, n: int) -> Tensor:
    """Columns of the own chunk, [P*H*G, T, T], a view."""
    return a[..., n:].flatten(0, 1)


def _softmax_backward(grad: Tensor, out: Tensor) -> Tensor:
    return torch._softmax_backward_data(grad, out, -1, out.dtype)


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





# Activations of the plain path kept for the backward pass, in bytes.
PLAIN_BYTES = 8 << 30
# Largest difference of a normalised feature between packed and plain path, by type.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2}


class TextPath:
    """The text side of one backbone, shared by all class lists.

    Args:
        backbone: the towers.
        packed: try the packed path; it is checked against the plain one before its first use.
        bf16: bfloat16 linear layers in the packed path (always so for a bf16 backbone).
        counters: ``text_tokens`` and ``text_passes`` are counted here.
        notes: told why the plain path is used although packing was asked for.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        packed: bool,
        bf16: bool,
        counters: Counter[str],
        notes: list[str],
    ) -> None:
        self.backbone, self.counters, self.notes = backbone, counters, notes
        self._wanted = packed
        self._packed: PackedText | None = None
        low = bf16 or backbone.dtype is torch.bfloat16
        self._weight_dtype = torch.bfloat16 if low else backbone.feature_dtype

    def tower(self) -> PackedText | None:
        """The packed tower, made and checked at the first call; None for the plain path."""
        if not self._wanted or self._packed is not None:
            return self._packed
        self._wanted = False
        try:
            packed = PackedText(self.backbone, self._weight_dtype)
            self._check(packed)
            self._packed = packed
        except Unfoldable as reason:
            self.notes.append(f"text prompts take the plain path (slower): {reason}")
        self._wanted = self._packed is not None
        return self._packed

    def _check(self, packed: PackedText) -> None:
        """Compare both paths on three short texts with a random context."""
        backbone = self.backbone
        n_ctx = min(4, backbone.context_length // 4)
        prompts = assemble(backbone, ("a", "b c", "d"), n_ctx)
        shape = (1, n_ctx, backbone.text_width)
        noise = torch.randn(shape, generator=rng.stream(0, "text-path-check"))
        ctx = (0.02 * noise).to(backbone.device, backbone.feature_dtype)
        with torch.no_grad():
            plain = plain_text(backbone, prompts, ctx)
            error = largest_error(packed, plain, ctx, prompts)
        allowed = TOLERANCE[self._weight_dtype]
        if not error <= allowed:
            raise Unfoldable(f"packed features differ from plain ones by {error:.1e} > {allowed}")


class ClassPrompts:
    """The prompts of one class list with ``n_ctx`` vectors, ready to be encoded.

    Raises:
        ConfigError: a prompt that does not fit the context length.
    """

    def __init__(self, path: TextPath, classnames: Sequence[str], n_ctx: int) -> None:
        self.path = path
        self.prompts: Prompts = assemble(path.backbone, classnames, n_ctx)
        tower = path.tower()
        self.layouts: list[Layout] = [] if tower is None else tower.layouts(self.prompts)

    def encode(self, ctx: Tensor) -> Tensor:
        """Text features [P, C, embed_dim], not normalised, of ``ctx`` [P, n_ctx, text_width]."""
        tower, counters = self.path.tower(), self.path.counters
        counters["text_passes"] += 1
        if tower is None:
            counters["text_tokens"] += len(ctx) * self.prompts.ids.numel()
            return self._plain(ctx)
        counters["text_tokens"] += len(ctx) * sum(layout.tokens for layout in self.layouts)
        return tower(ctx, self.layouts)

    def _plain(self, ctx: Tensor) -> Tensor:
        """The plain path, in pieces where its activations would take more than ``PLAIN_BYTES``."""
        backbone, whole = self.path.backbone, self.prompts
        classes, length = whole.ids.shape
        blocks = len(backbone.text_tower.transformer.resblocks)
        # 16 width-sized values per row and block, as for the packed path.
        per_text = 16 * backbone.text_width * ctx.element_size() * blocks * length
        most = max(1, PLAIN_BYTES // per_text)
        if len(ctx) * classes <= most:
            return plain_text(backbone, whole, ctx)
        step, columns = min(classes, most), []
        for at in range(0, classes, step):
            cut = slice(at, at + step)
            part = replace(whole, ids=whole.ids[cut], eot=whole.eot[cut], ends=whole.ends[cut])
            # Too large to keep: each piece is computed again when its gradient is asked for.
            pieces = [
                checkpoint(
                    plain_text, backbone, part, s, use_reentrant=False, preserve_rng_state=False
                )
                for s in ctx.split(max(1, most // step))
            ]
            columns.append(torch.cat(pieces))
        return torch.cat(columns, dim=1)
