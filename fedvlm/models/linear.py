"""Products with frozen weights: the fastest exact kernel, and no gradient for the weights.

PyTorch sends float32 products to MKL, which uses half of the vector width of AMD processors
(measured on a Zen 5 core: 120 GF/s; oneDNN, which PyTorch brings along, 265 GF/s, the same
float32 arithmetic up to the order of sums). The choice depends on the build and the processor
only, so the same machine always gives the same bits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@lru_cache(maxsize=1)
def onednn_available() -> bool:
    """Tell whether oneDNN's float32 product can be called here (AVX-512 processors)."""
    op = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return bool(op is not None and wide and torch.backends.mkldnn.is_available())


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias`` without autograd: [..., in], [out, in] -> [..., out]."""
    if x.dtype is torch.float32 and x.device.type == "cpu" and onednn_available():
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return out
    return F.linear(x, weight, bias)


class _FrozenLinear(torch.autograd.Function):
    """``linear`` whose backward is one product with the transposed (never copied) weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.x_dtype = x.dtype
        return linear(x.to(weight.dtype), weight, bias).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        # Not ``linear``: where a second derivative is asked for, this product needs one too.
        return frozen_linear(grads[0].to(weight.dtype), weight.t()).to(ctx.x_dtype), None, None


def frozen_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias`` in the type of ``x``, differentiable in ``x`` only.

    Args:
        x: [..., in].
        weight: [out, in]; the product is computed in its type (bf16: cast in, cast out).
        bias: [out] or None.
    """
    if not (torch.is_grad_enabled() and x.requires_grad):
        return linear(x.to(weight.dtype), weight, bias).to(x.dtype)
    out: Tensor = _FrozenLinear.apply(x, weight, bias)
    return out
