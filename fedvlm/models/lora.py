"""Low-rank updates for several clients at once: one frozen product, then two batched ones."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedvlm.models.linear import frozen_linear

FACTOR_A, FACTOR_B = ".A", ".B"


def lora_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float = 1.0
) -> Tensor:
    """``x W^T + bias + scale * (x A_k^T) B_k^T`` for every client k; W is frozen.

    Args:
        x: [K, ..., in].
        weight: [out, in], shared by all clients, without gradient.
        bias: [out] or None.
        a: [K, r, in].
        b: [K, out, r].
        scale: LoRA's alpha / r.

    Returns:
        [K, ..., out].
    """
    flat = x.flatten(1, -2)
    update = flat.bmm(a.mT).bmm((scale * b).mT)
    return frozen_linear(x, weight, bias) + update.view(*x.shape[:-1], b.shape[1])


def is_factor(name: str) -> bool:
    """Tell whether a tensor is one of LoRA's two factors."""
    return ".lora." in name and name.endswith((FACTOR_A, FACTOR_B))


def sites(names: Mapping[str, Tensor]) -> list[str]:
    """Return the LoRA sites of a tree: names without ``.A`` and ``.B``, in the tree's order."""
    return [n.removesuffix(FACTOR_A) for n in names if is_factor(n) and n.endswith(FACTOR_A)]


def products(tree: Mapping[str, Tensor], scale: float = 1.0) -> dict[str, Tensor]:
    """Return ``scale B A`` ``[..., out, in]`` of each site: what LoRA adds to the weights."""
    return {s: scale * tree[s + FACTOR_B] @ tree[s + FACTOR_A] for s in sites(tree)}


def mix_peft(
    alpha: Tensor, v: Mapping[str, Tensor], w: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the tree whose effect is ``alpha v + (1 - alpha) w``, exactly, for LoRA too.

    Plain tensors are mixed. For LoRA the product is: ``[aB_v, (1-a)B_w] [A_v; A_w]`` of rank
    r_v + r_w equals ``a B_v A_v + (1-a) B_w A_w``; mixed factors would not (62 % off in a random
    example, ``personalized_fl.md`` 2.2). The result runs like any other tree.

    Args:
        alpha: ``[K]``; gradients reach it and both trees.
        v, w: trees of equal names, ``[K, ...]``; LoRA ranks may differ.
    """
    out = {}
    for name, own in v.items():
        a = alpha.reshape(-1, *([1] * (own.dim() - 1)))
        if not is_factor(name):
            out[name] = a * own + (1 - a) * w[name]
        elif name.endswith(FACTOR_A):
            out[name] = torch.cat([own, w[name]], -2)
        else:
            out[name] = torch.cat([a * own, (1 - a) * w[name]], -1)
    return out
