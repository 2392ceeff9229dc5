"""Dynamic visual fusion: a per-sample softmax over several views of one feature (FedTV, DVF)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Tree = dict[str, Tensor]


def fusion_weights(
    name: str, width: int, hidden: int, key_bias: bool, generator: torch.Generator
) -> Tree:
    """Return query and key maps ``[hidden, width]`` with biases ``[hidden]``, torch's default init.

    The key bias cancels in the softmax; without ``key_bias`` it does not exist.
    """
    bound = width**-0.5

    def uniform(*shape: int) -> Tensor:
        return (torch.rand(shape, generator=generator) * 2 - 1) * bound

    tree = {
        f"{name}.query.weight": uniform(hidden, width),
        f"{name}.query.bias": uniform(hidden),
        f"{name}.key.weight": uniform(hidden, width),
        f"{name}.key.bias": uniform(hidden),
    }
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
    q = x @ p[f"{name}.query.weight"].mT + p[f"{name}.query.bias"].unsqueeze(1)
    stacked = torch.stack(list(views), 2)  # [K, B, J, d]
    key = stacked @ p[f"{name}.key.weight"].mT.unsqueeze(1)
    if f"{name}.key.bias" in p:
        key = key + p[f"{name}.key.bias"][:, None, None]
    scores = (key * q.unsqueeze(2)).sum(-1)
    if scaled:
        scores = scores / q.shape[-1] ** 0.5
    weights = torch.softmax(scores, -1)
    return (weights.unsqueeze(-1) * stacked).sum(2), weights
