"""Split attention, pre-cast layers and stacked LoRA equal the layers that they replace."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedvlm.models.towers import layers
from fedvlm.models.towers.layers import (
    SplitAttention,
    frozen_linear,
    onednn_available,
    split_attention,
)
from tests.models.toys import relative, toy


@pytest.mark.parametrize("masked", [True, False])
def test_split_equals_packed(masked: bool) -> None:
    packed = nn.MultiheadAttention(24, 3, batch_first=True).double().eval()
    nn.init.normal_(packed.in_proj_bias)
    nn.init.normal_(packed.out_proj.bias)
    x = torch.randn(2, 7, 24, dtype=torch.float64, requires_grad=True)
    mask = torch.full((7, 7), float("-inf"), dtype=torch.float64).triu(1) if masked else None
    expected, _ = packed(x, x, x, need_weights=False, attn_mask=mask)
    got, _ = SplitAttention(packed)(x, x, x, attn_mask=mask)
    torch.testing.assert_close(got, expected)
    grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (got, expected)]
    torch.testing.assert_close(*grads)


def test_peft_works_on_split_attention() -> None:
    from peft import LoraConfig, inject_adapter_in_model

    tower = toy(dtype=torch.float64).model.visual
    pixels = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    before = tower(pixels)
    assert split_attention(tower) == 2
    torch.testing.assert_close(tower(pixels), before)
    inject_adapter_in_model(LoraConfig(r=2, target_modules=["q_proj", "out_proj"]), tower)
    out = tower.double()(pixels)
    torch.testing.assert_close(out, before)  # identity at the start
    out.square().sum().backward()
    ups = {n: p.grad for n, p in tower.named_parameters() if "lora_B" in n}
    assert len(ups) == 4 and all(grad is not None and grad.norm() > 0 for grad in ups.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_frozen_linear_equals_linear(dtype: torch.dtype) -> None:
    layer = nn.Linear(9, 5).to(dtype)
    x = torch.randn(2, 3, 9, dtype=dtype, requires_grad=True)
    expected, got = layer(x), frozen_linear(x, layer.weight, layer.bias)
    probe = torch.randn_like(expected)
    wanted = torch.autograd.grad((expected * probe).sum(), [x, layer.weight])[0]
    (grad,) = torch.autograd.grad((got * probe).sum(), x)
    tolerance = 1e-6 if dtype is torch.float32 else 1e-14
    assert relative(got, expected) < tolerance and relative(grad, wanted) < tolerance
    assert torch.autograd.grad(
        frozen_linear(x, layer.weight).sum(), layer.weight, allow_unused=True
    ) == (None,)


@pytest.mark.skipif(not onednn_available(), reason="no oneDNN product on this processor")
def test_both_kernels_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = torch.randn(33, 70), torch.randn(50, 70), torch.randn(50)
    fast = layers.linear(x, weight, bias)
    monkeypatch.setattr(layers, "onednn_available", lambda: False)
    assert relative(fast, layers.linear(x, weight, bias)) < 1e-6
    # True single precision: a bf16 or tf32 kernel would be off by 1e-3.
    exact = x.double() @ weight.double().T + bias.double()
    assert relative(fast.double(), exact) < 1e-6
