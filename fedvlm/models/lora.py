"""Low-rank updates for several clients at once: one frozen product, then two batched ones."""

from __future__ import annotations

from torch import Tensor

from fedvlm.models.linear import frozen_linear


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
