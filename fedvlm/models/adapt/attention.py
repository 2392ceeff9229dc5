"""Multi-head attention whose weights each client has for itself, batched over the client axis.

Queries may come from other rows than keys and values (a feature that attends to experts, learned
queries that attend to class names). The formula is Vaswani et al., Attention Is All You Need, 2017,
section 3.2; the start is that of ``torch.nn.MultiheadAttention``. ``cross_attend`` is a whole
block: attention, then a feed-forward layer with a gate (GEGLU: Shazeer, GLU Variants Improve
Transformer, 2020).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.core.errors import FedvlmError
from fedvlm.core.trees import Tree
from fedvlm.models.adapt.layers import fitting_heads, layer, layer_norm, linear, norm

SITES = ("q", "k", "v", "o")


def attention_tree(
    name: str, width: int, generator: torch.Generator, *, source: int = 0, bias: bool = True
) -> Tree:
    """Return ``{name}.{q|k|v|o}.weight`` ``[width, in]`` and ``.bias`` ``[width]`` (zero).

    q, k and v uniform in +-sqrt(6 / (fan in + fan out)), fan out that of the three together where
    all read the same width; o uniform in +-1/sqrt(width).

    Args:
        name: what the tensors' names begin with.
        width: of queries and of the output.
        generator: of the run's start.
        source: width of what k and v read; 0: ``width``.
        bias: whether there are biases.
    """
    tree: Tree = {}
    for site in SITES:
        into = source or width if site in "kv" else width
        out = 3 * width if source in (0, width) else width
        bound = width**-0.5 if site == "o" else (6 / (into + out)) ** 0.5
        weight = (torch.rand(width, into, generator=generator) * 2 - 1) * bound
        tree[f"{name}.{site}.weight"] = weight
        if bias:
            tree[f"{name}.{site}.bias"] = torch.zeros(width)
    return tree


def attend(
    p: Tree, name: str, heads: int, q: Tensor, kv: Tensor, mask: Tensor | None = None,
    values: Tensor | None = None,
) -> Tensor:
    """Return ``softmax(Q K^T / sqrt(width / heads)) V W_o + b_o`` for every client.

    Args:
        p: the tree of ``attention_tree``, ``[K, ...]``.
        name: as there.
        heads: they share the width evenly.
        q: queries ``[K, ..., m, width]``.
        kv: what keys and values are made of, ``[K, ..., n, source]``; its axes before n are those
            of ``q`` or 1.
        mask: ``[..., m, n]`` bool; False: this query does not see that row.
        values: what values are made of, like ``kv``; None: ``kv``.

    Returns:
        ``[K, ..., m, width]``.

    Raises:
        FedvlmError: the width is no multiple of the heads.
    """
    width = q.shape[-1]
    if width % heads:
        raise FedvlmError(f"attention '{name}' of width {width} cannot have {heads} heads")

    def split(x: Tensor) -> Tensor:  # [K, ..., rows, width] -> [K, ..., heads, rows, dim]
        return x.unflatten(-1, (heads, width // heads)).transpose(-2, -3)

    lead = torch.broadcast_shapes(q.shape[:-2], kv.shape[:-2])
    read = kv if values is None else values
    parts = [split(linear(p, f"{name}.{s}", x)) for s, x in (("q", q), ("k", kv), ("v", read))]
    query, key, value = (t.expand(*lead, *t.shape[-3:]) for t in parts)
    seen = None if mask is None else mask.unsqueeze(-3)
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
    return linear(p, f"{name}.o", mixed.transpose(-2, -3).flatten(-2))


def cross_tree(name: str, width: int, ff: int, generator: torch.Generator) -> Tree:
    """Return a block: ``{name}.norm.{query|key|ff}``, ``{name}.attn``, ``{name}.{ff1|ff2}``.

    Args:
        name: what the tensors' names begin with.
        width: of queries, keys and output.
        ff: width of the feed-forward layer over that.
        generator: of the run's start.
    """
    return {
        **norm(f"{name}.norm.query", width), **norm(f"{name}.norm.key", width),
        **attention_tree(f"{name}.attn", width, generator), **norm(f"{name}.norm.ff", width),
        **layer(f"{name}.ff1", (2 * ff * width, width), generator),
        **layer(f"{name}.ff2", (width, ff * width), generator),
    }


def cross_attend(
    p: Tree, name: str, heads: int, q: Tensor, kv: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Return ``x + W2 (v * gelu(g))``, ``(v, g) = W1 LN(x)``, ``x = MHA(LN(q), LN(kv))``.

    Args:
        p: the tree of ``cross_tree``, ``[K, ...]``.
        name: as there.
        heads: most heads of the attention; fewer where they do not divide the width.
        q: queries ``[K, ..., m, width]``.
        kv: what they read, ``[K, n, width]``.
        mask: as for ``attend``.

    Returns:
        ``[K, ..., m, width]``.
    """
    key = layer_norm(p, f"{name}.norm.key", kv)
    key = key.reshape(len(key), *[1] * (q.dim() - 3), *key.shape[1:])
    heads = fitting_heads(q.shape[-1], heads)
    x = attend(p, f"{name}.attn", heads, layer_norm(p, f"{name}.norm.query", q), key, mask)
    return feed_forward(p, name, x)


def feed_forward(p: Tree, name: str, x: Tensor) -> Tensor:
    """Return the second half of ``cross_attend``: ``x + W2 (v * gelu(g)), (v, g) = W1 LN(x)``."""
    value, gate = linear(p, f"{name}.ff1", layer_norm(p, f"{name}.norm.ff", x)).chunk(2, -1)
    return x + linear(p, f"{name}.ff2", value * F.gelu(gate))
