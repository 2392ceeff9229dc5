"""Optimisers against torch.optim, bit for bit; schedules against Dassl's closed form."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import State, stack
from fedvlm.federation.optim import SGD, Adam, OptimSpec, Schedule

CASES: list[tuple[Any, Any]] = [
    (SGD(), lambda p: torch.optim.SGD(p, lr=0.05)),
    (SGD(0.9, 5e-4), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=5e-4)),
    (SGD(0.9, 5e-4, nesterov=True), lambda p: torch.optim.SGD(
        p, lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)),
    (SGD(0.9, 0.0, dampening=0.1), lambda p: torch.optim.SGD(
        p, lr=0.05, momentum=0.9, dampening=0.1)),
    (Adam(weight_decay=0.01), lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=0.01)),
    (Adam(weight_decay=0.01, decoupled=True), lambda p: torch.optim.AdamW(
        p, lr=0.05, weight_decay=0.01)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("ours", "theirs"), CASES)
def test_one_client_equals_torch_optim_bit_for_bit(ours: Any, theirs: Any, dtype: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (37, 5), "b": (11,), "c": ()}
    start = {n: torch.randn(s, generator=generator, dtype=dtype) for n, s in shapes.items()}
    grads = [{n: torch.randn(s, generator=generator, dtype=dtype) for n, s in shapes.items()}
             for _ in range(7)]
    params = {n: torch.nn.Parameter(v.clone()) for n, v in start.items()}
    optimiser = theirs(list(params.values()))
    tree, state = stack([start]), State()
    for t, g in enumerate(grads, 1):
        for n, v in params.items():
            v.grad = g[n].clone()
        optimiser.step()
        new, state = ours.step(tree, stack([g]), state, [0.05], t)
        tree = tree | new
    for n, v in params.items():
        assert torch.equal(tree[n][0], v.detach()), n


@pytest.mark.parametrize("ours", [SGD(0.9, 5e-4), Adam(weight_decay=0.01, decoupled=True)])
def test_stacked_clients_with_own_rates_equal_one_by_one(ours: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    trees = [{"a": torch.randn(19, 3, generator=generator)} for _ in range(3)]
    grads = [{"a": torch.randn(19, 3, generator=generator)} for _ in range(3)]
    rates = [0.1, 0.1, 0.01]
    together, _ = ours.step(stack(trees), stack(grads), {}, rates, 1)
    for k in range(3):
        alone, _ = ours.step(stack([trees[k]]), stack([grads[k]]), {}, [rates[k]], 1)
        assert torch.equal(alone["a"][0], together["a"][k])


def test_schedules() -> None:
    linear = Schedule(0.1, "cosine", max_epoch=6, warmup_epoch=2)
    assert linear(0) == 1e-5
    assert linear(1) == pytest.approx(0.05)
    assert linear(2) == pytest.approx(0.1)
    assert linear(5) == pytest.approx(0.05 * (1 + math.cos(math.pi * 3 / 6)))
    constant = Schedule(0.1, "cosine", max_epoch=4, warmup_epoch=1, warmup_type="constant")
    assert [constant(e) for e in range(3)] == pytest.approx([1e-5, 0.1, 0.0853553390593])
    assert Schedule(0.1, "single_step", max_epoch=10, stepsize=(4,))(9) == pytest.approx(1e-3)
    assert Schedule(0.1, "single_step", max_epoch=10)(9) == 0.1
    assert Schedule(0.1, "multi_step", stepsize=(2, 5))(5) == pytest.approx(1e-3)
    assert Schedule(0.1)(99) == 0.1


def test_unknown_optimiser_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'adamw'"):
        OptimSpec("adanw").build()
