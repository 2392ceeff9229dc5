"""On CUDA a rule's step starts one kernel for all tensors, however their gradients lie."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.core import foreach
from fedvlm.core.trees import State, Tree
from fedvlm.federation.local.gradients import compute_gradient
from fedvlm.federation.optim import SGD, Adam
from tests.device.card import pretend_card
from tests.device.tensor import host_of

RULES = (SGD(0.9, 5e-4), Adam(weight_decay=1e-3), Adam(weight_decay=1e-2, decoupled=True))
MOST = 12  # kernels of a rule on tensors in rows, however many they are


def draw(tensors: int, odd: int, seed: int, device: str) -> Tree:
    """Return leaves of which the first ``odd`` lie transposed."""
    made = torch.Generator().manual_seed(seed)
    flat = [torch.randn(3, 4, 5, generator=made).to(device) for _ in range(tensors)]
    return {f"t{i}": x.mT.contiguous().mT if i < odd else x for i, x in enumerate(flat)}


def steps(rule: Any, tensors: int, odd: int, device: str, count: Any) -> tuple[Tree, int]:
    """Return tensors after three steps from an expanded start, and kernels of the last step."""
    p: Tree = {n: v[:1].expand(3, -1, -1) for n, v in draw(tensors, 0, 1, device).items()}
    state: State = {}
    spent = 0
    for t in range(1, 4):
        g = draw(tensors, odd, t + 1, device)
        before = count()
        p, state = rule.step(p, g, state, 0.01, t)
        spent = count() - before
    return p, spent


@pytest.mark.parametrize("rule", RULES)
def test_kernels_do_not_grow_with_the_tensors(rule: Any) -> None:
    plain, _ = steps(rule, 40, 3, "cpu", int)
    with pretend_card() as tally:
        ours, spent = steps(rule, 40, 3, "cuda", lambda: tally.kernels["job"])
        _, fewer = steps(rule, 10, 3, "cuda", lambda: tally.kernels["job"])
    assert spent == fewer <= MOST + 3  # a copy of each gradient that lies transposed
    for name, v in plain.items():
        assert torch.equal(host_of(ours[name]), v), name


def test_gradients_of_transposed_weights_lie_in_rows() -> None:
    def loss(_: Any, p: Tree, batch: Any) -> Tensor:
        return (batch.x["features"] @ p["w"].mT).square().sum((1, 2))

    grads = []
    for device in ("cpu", "cuda"):
        with pretend_card():
            made = torch.Generator().manual_seed(1)
            w, x = (torch.randn(2, n, 5, generator=made).to(device) for n in (4, 3))
            batch: Any = type("Batch", (), {"x": {"features": x}, "y": torch.zeros(2, 3)})()
            model: Any = None
            grads.append(compute_gradient(model, {"w": w}, loss, batch, ["w"]).grads["w"])
    cpu, there = grads
    assert torch.equal(host_of(there), cpu) and there.is_contiguous()


def test_a_list_in_two_layouts_is_counted_tensor_by_tensor() -> None:
    with pretend_card() as tally:
        x = [torch.zeros(4, 5, device="cuda") for _ in range(7)]
        before = tally.kernels["job"]
        foreach.add(x, x)
        assert tally.kernels["job"] - before == 1
        turned = [torch.zeros(5, 4, device="cuda").mT, *x[1:]]
        before = tally.kernels["job"]
        foreach.add(x, turned)
        assert tally.kernels["job"] - before == 7
        assert len(foreach.in_rows(x)) == 7 and foreach.in_rows(x)[0] is x[0]
