"""The pretend device itself: it tells what CUDA would refuse, wait for, or not repeat."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.device.card import pretend_card
from tests.device.tensor import OnDevice


def test_numbers_gradients_and_modules_follow() -> None:
    weight = torch.randn(4, 3)
    x = torch.randn(5, 4)
    with pretend_card() as tally:
        w = weight.to("cuda").requires_grad_(True)
        (x.to("cuda") @ w).square().sum().backward()
        assert isinstance(w.grad, OnDevice) and w.device == torch.device("cuda:0")
        there = w.grad.cpu()
        net = nn.Linear(4, 3).to("cuda").to(torch.bfloat16)
        net.weight.data = torch.ones(3, 4, device="cuda")
        assert net.weight.cpu().sum() == 12
    assert torch.allclose(there, 2 * x.mT @ (x @ weight)) and not tally.mixed
    assert tally.flops["job"] and tally.kernels["job"]


def test_what_is_counted() -> None:
    with pretend_card(cards=2) as tally:
        x = torch.zeros(3, device="cuda")
        x[x > 0]
        float(x.sum())
        x[[0, 1]]
        torch.where(torch.ones(3, dtype=torch.bool), x, x)
        x + torch.zeros(3, device="cuda:1")
        x.cumsum(0)
    assert sum(tally.reads.values()) == 2 and sum(tally.blocking.values()) == 1
    assert sum(tally.mixed.values()) == 2 and sum(tally.unsure.values()) == 1


def test_the_machine_is_as_before() -> None:
    made, there = torch.zeros, torch.cuda.is_available()
    with pretend_card():
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
        with pytest.raises(TypeError, match="numpy"):
            torch.zeros(1, device="cuda").numpy()
    assert torch.zeros is made and torch.cuda.is_available() == there
