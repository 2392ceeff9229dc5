"""Optimisers against torch.optim, bit for bit; schedules against Dassl's closed form."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fedvlm.core import foreach
from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import State, Tree, stack
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


# ---- lists of tensors against the loops that stood here before ----------------------------------
def sgd_loop(rule: SGD, p: Tree, g: Tree, state: State, lr: list[float], t: int) -> Any:
    """One tensor, and where rates differ one client, after the other."""
    old, new, buffers = state.get("momentum", {}), {}, {}
    for name, grad in g.items():
        d = torch.add(grad, p[name], alpha=rule.weight_decay) if rule.weight_decay else grad
        if rule.momentum:
            buf = d.clone()
            if name in old:
                buf = torch.add(old[name] * rule.momentum, d, alpha=1 - rule.dampening)
            buffers[name] = buf
            d = torch.add(d, buf, alpha=rule.momentum) if rule.nesterov else buf
        new[name] = torch.stack(
            [torch.add(p[name][k], d[k], alpha=-rate) for k, rate in enumerate(lr)]
        )
    return new, ({"momentum": buffers} if rule.momentum else {})


def adam_loop(rule: Adam, p: Tree, g: Tree, state: State, lr: list[float], t: int) -> Any:
    """See ``sgd_loop``."""
    b1, b2 = rule.betas
    new, ms, vs = {}, {}, {}
    for name, grad in g.items():
        x = p[name]
        if rule.decoupled and rule.weight_decay:
            x = torch.stack([x[k] * (1 - rate * rule.weight_decay) for k, rate in enumerate(lr)])
        elif rule.weight_decay:
            grad = torch.add(grad, x, alpha=rule.weight_decay)
        zero = torch.zeros_like(grad)
        ms[name] = m = torch.lerp(state.get("m", {}).get(name, zero), grad, 1 - b1)
        v = state.get("v", {}).get(name, zero)
        vs[name] = v = torch.addcmul(v * b2, grad, grad, value=1 - b2)
        below = v.sqrt() / (1 - b2**t) ** 0.5 + rule.eps
        new[name] = torch.stack([
            torch.addcdiv(x[k], m[k], below[k], value=-(rate / (1 - b1**t)))
            for k, rate in enumerate(lr)
        ])
    return new, {"m": ms, "v": vs}


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rates", [[0.05] * 4, [0.05, 0.031, 0.05, 0.0007]])
@pytest.mark.parametrize("rule", [ours for ours, _ in CASES])
def test_lists_give_the_bits_of_the_loops(
    rule: Any, rates: list[float], dtype: torch.dtype, plain: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if plain:  # a build without torch._foreach_*
        for name in [n for n in dir(torch) if n.startswith("_foreach_")]:
            monkeypatch.delattr(torch, name)
    loop = sgd_loop if isinstance(rule, SGD) else adam_loop
    generator = torch.Generator().manual_seed(3)
    shapes = {"a": (37, 5), "b": (11,), "c": (), "late": (3, 2)}

    def draw() -> Tree:
        return {n: torch.randn(4, *s, generator=generator, dtype=dtype) for n, s in shapes.items()}

    one = other = draw()
    kept: State = {}
    before: State = {}
    for t in range(1, 6):
        g = {n: v for n, v in draw().items() if n != "late" or t > 2}  # no gradient at first
        rate = rates if t % 2 else torch.tensor(rates, dtype=torch.float64)
        new, kept = rule.step(one, g, kept, rate, t)
        old, before = loop(rule, other, g, before, rates, t)
        one, other = one | new, other | old
    for n, v in one.items():
        assert torch.equal(v, other[n]), n
    for slot, tree in kept.items():
        assert all(torch.equal(v, before[slot][n]) for n, v in tree.items()), slot


def test_length_of_a_list_tells_of_every_number() -> None:
    for bad in (torch.nan, torch.inf, -torch.inf):
        for at in (0, 3, 36):
            x = torch.ones(37)
            x[at] = bad
            fine, broken = foreach.norms([torch.ones(2, 2), x])
            assert float(fine) == 2.0 and not bool(torch.isfinite(broken))
    assert foreach.norms([]) == []


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
