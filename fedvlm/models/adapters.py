"""Feature adapters on joint-embedding features, batched over a leading client axis."""

from __future__ import annotations

import torch
from torch import Tensor

Tree = dict[str, Tensor]

OUTPUTS = ("softmax", "sigmoid", "residual")


def gate_adapter(name: str, width: int, output: str, generator: torch.Generator) -> Tree:
    """Return the two square weights ``{name}.fc1.weight``, ``{name}.fc2.weight`` ``[d, d]``.

    Uniform in +-1/sqrt(d), torch's default for a linear layer. For ``residual`` the second is
    zero, so that the start is the frozen feature bit for bit.
    """
    bound = width**-0.5

    def uniform() -> Tensor:
        return (torch.rand(width, width, generator=generator) * 2 - 1) * bound

    first, second = uniform(), uniform()
    if output == "residual":
        second = torch.zeros_like(second)
    return {f"{name}.fc1.weight": first, f"{name}.fc2.weight": second}


def apply_gate(p: Tree, name: str, x: Tensor, output: str) -> Tensor:
    """Return the adapted features ``[K, B, d]`` of ``x [K, B, d]``.

    h = W2 relu(W1 x); ``softmax``: softmax_channels(h) * x (FedTV as published), ``sigmoid``:
    sigmoid(h) * x, ``residual``: x + h.
    """
    hidden = torch.relu(x @ p[f"{name}.fc1.weight"].mT)
    h = hidden @ p[f"{name}.fc2.weight"].mT
    if output == "softmax":
        return torch.softmax(h, -1) * x
    if output == "sigmoid":
        return torch.sigmoid(h) * x
    return x + h
