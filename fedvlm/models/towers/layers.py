"""The layers of a frozen tower: products with frozen weights, split attention, pre-cast layers.

Products take the fastest exact kernel and give no gradient to the weights. PyTorch sends float32
products to MKL, which uses half of the vector width of AMD processors (measured on a Zen 5 core:
120 GF/s; oneDNN, which PyTorch brings along, 265 GF/s, the same float32 arithmetic up to the order
of sums). The choice depends on the build and the processor only, so the same machine always gives
the same bits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedvlm.models.towers.clip import is_quick_gelu
from fedvlm.models.towers.fold import QUICK_GELU


@lru_cache(maxsize=1)
def onednn_available() -> bool:
    """Tell whether oneDNN's float32 product can be called here (AVX-512 processors)."""
    op = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return bool(op is not None and wide and torch.backends.mkldnn.is_available())


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias`` without autograd: [..., in], [out, in] -> [..., out].

    A graph that is exported has the plain product: no other library knows oneDNN's.
    """
    fast = x.dtype is torch.float32 and x.device.type == "cpu" and onednn_available()
    if fast and not torch.compiler.is_exporting():
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


class SplitAttention(nn.Module):
    """Self-attention with separate q, k, v, o linears, equal to a packed MultiheadAttention.

    A drop-in for the ``attn`` of open_clip's blocks (batch first, no dropout). Adapters (LoRA) can
    wrap each linear; the attention itself is computed in the type of its input.

    Args:
        packed: the attention to split; its weights are copied.
    """

    def __init__(self, packed: nn.MultiheadAttention) -> None:
        super().__init__()
        width = packed.embed_dim
        self.num_heads = packed.num_heads
        weights = packed.in_proj_weight.detach().split(width)
        biases = packed.in_proj_bias.detach().split(width)
        layers = [_linear(w, b) for w, b in zip(weights, biases, strict=True)]
        self.q_proj, self.k_proj, self.v_proj = layers
        self.out_proj = _linear(packed.out_proj.weight, packed.out_proj.bias)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **_: Any
    ) -> tuple[Tensor, None]:
        """Attend: [n, L, width] -> ([n, L, width], None), like MultiheadAttention."""
        heads = (query.shape[0], -1, self.num_heads, query.shape[-1] // self.num_heads)
        q = self.q_proj(query).view(heads).transpose(1, 2)
        k = self.k_proj(key).view(heads).transpose(1, 2)
        v = self.v_proj(value).view(heads).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.out_proj(mixed.transpose(1, 2).reshape(query.shape)), None


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    out_features, in_features = weight.shape
    # Made on the meta device: its own random weights would cost time and random numbers.
    layer = nn.Linear(in_features, out_features, bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
    return layer


class CastLinear(nn.Module):
    """A frozen linear layer whose weights were cast once; its input and output keep their type.

    With float32 weights it is the same layer through the fastest kernel (``linear``).
    """

    def __init__(self, layer: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(layer.weight.detach().to(dtype), requires_grad=False)
        bias = None if layer.bias is None else layer.bias.detach().to(dtype)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features], in the type of ``x``."""
        return frozen_linear(x, self.weight, self.bias)


class CastConv(nn.Module):
    """A frozen convolution whose weights were cast once; its input and output keep their type."""

    def __init__(self, layer: nn.Conv2d, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = layer.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[n, in, H, W] -> [n, out, H', W'], in the type of ``x``."""
        out: Tensor = self.layer(x.to(self.layer.weight.dtype))
        return out.to(x.dtype)


def split_attention(module: nn.Module) -> int:
    """Replace, in place, every packed attention below ``module`` by a split one; return how many.

    peft's wrapper for packed attention updates q, k and v jointly and does nothing when it is aimed
    at ``out_proj``; on the split layers its plain ``lora.Linear`` works.
    """
    count = 0
    for name, child in module.named_children():
        if isinstance(child, nn.MultiheadAttention):
            setattr(module, name, SplitAttention(child))
            count += 1
        else:
            count += split_attention(child)
    return count


_AS_THEY_ARE = ("AttentionPool2d", "ShiftedWindowAttention", "ShiftedWindowAttentionV2")


def cast_linears(module: nn.Module, dtype: torch.dtype) -> None:
    """Remake, in place, a frozen tower's linear layers, convolutions and packed attentions.

    Weights are cast once to ``dtype``; norms, softmax, attention and the residual stream stay as
    they are. torch.autocast would cast the frozen weights at every call.
    With float32 nothing but the order of sums changes.
    """
    for name, child in module.named_children():
        if isinstance(child, nn.MultiheadAttention):
            if child.in_proj_weight is None:
                continue  # CoCa's pool, whose keys are of another width: stays as it is
            split = SplitAttention(child)
            cast_linears(split, dtype)
            setattr(module, name, split)
        elif type(child).__name__ in _AS_THEY_ARE:
            continue  # reads its linears' weights directly: stays fp32
        elif isinstance(child, nn.Linear):
            setattr(module, name, CastLinear(child, dtype))
        elif isinstance(child, nn.Conv2d) and dtype is not torch.float32:
            setattr(module, name, CastConv(child, dtype))
        else:
            if dtype is not torch.float32:
                _join_biases(child)
            _fold_quick_gelu(child)
            cast_linears(child, dtype)


def _join_biases(attn: nn.Module) -> None:
    """Give timm's EVA attention, in place, one layer with a bias for q, k and v.

    It keeps the biases of q and v beside the layer (k has none) and reads the layer's weight
    itself, which would be of another type than its input.
    """
    if type(attn).__qualname__ != "EvaAttention" or getattr(attn, "q_bias", None) is None:
        return
    eva: Any = attn
    bias = torch.cat([eva.q_bias, torch.zeros_like(eva.q_bias), eva.v_bias])
    eva.qkv = _linear(eva.qkv.weight, bias)
    eva.q_bias = eva.k_bias = eva.v_bias = None


def _fold_quick_gelu(mlp: nn.Module) -> None:
    """Turn an MLP's QuickGELU (three passes over memory) into SiLU (one): see ``fold``."""
    if not (isinstance(mlp, nn.Sequential) and is_quick_gelu(getattr(mlp, "gelu", None))):
        return
    fc, proj = mlp.get_submodule("c_fc"), mlp.get_submodule("c_proj")
    if not (isinstance(fc, nn.Linear) and isinstance(proj, nn.Linear)):
        return
    mlp.c_fc = _linear(*((t.double() * QUICK_GELU).to(t.dtype) for t in (fc.weight, fc.bias)))
    mlp.c_proj = _linear((proj.weight.double() / QUICK_GELU).to(proj.weight.dtype), proj.bias)
    mlp.gelu = nn.SiLU()
