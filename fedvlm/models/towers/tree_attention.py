"""Attention over a packed sequence: the prefix to itself, each chunk to the prefix and itself.

Written as one autograd function with batched products: the layout is fixed, so each gradient is
written where it belongs, without the zero-filled copies that slicing costs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedvlm.models.towers.layouts import PackedLayout


class TreeAttention(torch.autograd.Function):
    """softmax(q k^T + mask) v over ``[prefix ; own chunk]`` for every chunk, and for the prefix.

    ``qkv`` [P, n + G*T, 3*width], heads inside; q is already scaled. ``own_mask`` [G, T, T], or
    [P, 1, G, T, T] where each set has its own, and ``prefix_mask`` [n, n] are added to the scores.
    Returns [P, n + G*T, width].
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int, own_mask: Tensor, prefix_mask: Tensor) -> Tensor:
        """Compute the mixed values; see the class."""
        sets, rows, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        n, (chunks, slots) = len(prefix_mask), own_mask.shape[-3:-1]
        head, dim = sets * heads, width // heads
        parts = qkv.view(sets, rows, 3, heads, dim).split([n, rows - n], dim=1)
        # [3, P*H, rows, dim]: every product below is then one batched product.
        first, own = (p.permute(2, 0, 3, 1, 4).contiguous().view(3, head, -1, dim) for p in parts)
        a_first = torch.bmm(first[0], first[1].mT).add_(prefix_mask).softmax(-1)
        q, k, v = (t.view(head * chunks, slots, dim) for t in own)
        to_first = torch.bmm(own[0], first[1].mT).view(head, chunks, slots, n)
        to_own = torch.bmm(q, k.mT).view(sets, heads, chunks, slots, slots).add_(own_mask)
        a = torch.cat([to_first, to_own.flatten(0, 1)], dim=-1).softmax(-1)
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


def read_attention(q: Tensor, kv: Tensor, heads: int, layout: PackedLayout) -> Tensor:
    """Attention of the read-out slots to the prefix and their own chunk.

    Args:
        q: [P, G*E, width] of the rows ``layout.read``, scaled.
        kv: [P, n + G*T, 2*width] of all rows.
        heads: inside width.
        layout: of the sequences.

    Returns:
        [P, G*E, width].
    """
    sets, width = len(q), q.shape[-1]
    n, (chunks, slots), dim = layout.n_prefix, layout.chunks, width // heads
    first, own = kv.view(sets, -1, 2, heads, dim).split([n, chunks * slots], dim=1)
    first = first.unsqueeze(1).expand(-1, chunks, -1, -1, -1, -1)
    own = own.reshape(sets, chunks, slots, 2, heads, dim)
    k, v = torch.cat([first, own], dim=2).permute(3, 0, 1, 4, 2, 5).unbind(0)
    q = q.view(sets, chunks, -1, heads, dim).transpose(2, 3)
    a = (q @ k.mT + layout.read_mask).softmax(-1)
    return (a @ v).transpose(2, 3).reshape(sets, -1, width)


def _prefix_part(a: Tensor, n: int) -> Tensor:
    """Columns of the prefix, [P*H, G*T, n], a view."""
    return a[..., :n].flatten(1, 2)


def _own_part(a: Tensor, n: int) -> Tensor:
    """Columns of the own chunk, [P*H*G, T, T], a view."""
    return a[..., n:].flatten(0, 1)


def _softmax_backward(grad: Tensor, out: Tensor) -> Tensor:
    return torch._softmax_backward_data(grad, out, -1, out.dtype)
