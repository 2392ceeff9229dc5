"""Adapters on joint-embedding features and their fusion, batched over a leading client axis.

Dynamic visual fusion: a per-sample softmax over several views of one feature (FedTV, DVF).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedvlm.core.trees import Tree
from fedvlm.models.adapt.layers import layer, linear

OUTPUTS = ("softmax", "sigmoid", "residual")


def gate_adapter(name: str, width: int, output: str, generator: torch.Generator) -> Tree:
    """Return the two square weights ``{name}.fc1.weight``, ``{name}.fc2.weight`` ``[d, d]``.

    Uniform in +-1/sqrt(d), torch's default for a linear layer. For ``residual`` the second is
    zero, so that the start is the frozen feature bit for bit.
    """
    tree: Tree = {}
    for part in ("fc1", "fc2"):
        tree |= layer(f"{name}.{part}", (width, width), generator, bias=False)
    if output == "residual":
        tree[f"{name}.fc2.weight"].zero_()
    return tree


def apply_gate(p: Tree, name: str, x: Tensor, output: str) -> Tensor:
    """Return the adapted features ``[K, B, d]`` of ``x [K, B, d]``.

    h = W2 relu(W1 x); ``softmax``: softmax_channels(h) * x (FedTV as published), ``sigmoid``:
    sigmoid(h) * x, ``residual``: x + h.
    """
    h = linear(p, f"{name}.fc2", torch.relu(linear(p, f"{name}.fc1", x)))
    if output == "softmax":
        return torch.softmax(h, -1) * x
    if output == "sigmoid":
        return torch.sigmoid(h) * x
    return x + h


def fusion_weights(
    name: str, width: int, hidden: int, key_bias: bool, generator: torch.Generator
) -> Tree:
    """Return query and key maps ``[hidden, width]`` with biases ``[hidden]``, torch's default init.

    The key bias cancels in the softmax; without ``key_bias`` it does not exist.
    """
    tree: Tree = {}
    for part in ("query", "key"):
        tree |= layer(f"{name}.{part}", (hidden, width), generator)
    if not key_bias:
        del tree[f"{name}.key.bias"]
    return tree


def fuse(
    p: Tree, name: str, x: Tensor, views: Sequence[Tensor], scaled: bool = False
) -> tuple[Tensor, Tensor]:
    """Fuse ``views`` (each ``[K, B, d]``) with a query from ``x [K, B, d]``.

    q = Wq x + bq, k_j = Wk x_j + bk, w = softmax_j(q . k_j), z = sum_j w_j x_j; ``scaled``
    divides the scores by sqrt(hidden).

    Returns:
        z ``[K, B, d]``, not normalised, and the weights ``[K, B, J]``.
    """
    q = linear(p, f"{name}.query", x)
    stacked = torch.stack(list(views), 2)  # [K, B, J, d]
    key = stacked @ p[f"{name}.key.weight"].mT.unsqueeze(1)
    if f"{name}.key.bias" in p:
        key = key + p[f"{name}.key.bias"][:, None, None]
    scores = (key * q.unsqueeze(2)).sum(-1)
    if scaled:
        scores = scores / q.shape[-1] ** 0.5
    weights = torch.softmax(scores, -1)
    return (weights.unsqueeze(-1) * stacked).sum(2), weights
