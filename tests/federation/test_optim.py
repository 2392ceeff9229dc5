"""Optimisers against torch.optim, bit for bit; schedules against Dassl's closed form."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedvlm.core import foreach
from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import State, Tree, stack
from fedvlm.federation.optim import SGD, Adam, ByRole, Clipped, OptimSpec, RoleSpec, Schedule, clip

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


@pytest.mark.parametrize(("ours", "theirs"), CASES[:4])
def test_a_tensor_without_a_gradient_keeps_its_momentum(ours: Any, theirs: Any) -> None:
    """As in torch.optim: first both, then one and the other, then both again."""
    generator = torch.Generator().manual_seed(5)
    start = {n: torch.randn(4, generator=generator) for n in ("a", "b")}
    params = {n: torch.nn.Parameter(v.clone()) for n, v in start.items()}
    optimiser = theirs(list(params.values()))
    tree, state = stack([start]), State()
    for t, names in enumerate(("ab", "a", "a", "b", "ab"), 1):
        grads = {n: torch.randn(4, generator=generator) for n in names}
        for n, v in params.items():
            v.grad = grads[n].clone() if n in grads else None
        optimiser.step()
        new, state = ours.step(tree, stack([grads]), state, 0.05, t)
        assert set(new) == set(names)
        tree = tree | new
    for n, v in params.items():
        assert torch.equal(tree[n][0], v.detach()), n


def test_moments_of_a_tensor_without_a_gradient_stay() -> None:
    """Adam's, and those of a role's own rule beside one without a state."""
    p = {n: torch.ones(1, 3) for n in ("head.weight", "context.a", "context.b")}
    mixed = ByRole({"head": (Adam(), 0.1)}, SGD(), 0.05)
    for rule in (Adam(), mixed, Clipped(mixed, 1.0)):
        _, state = rule.step(p, {n: v * 2 for n, v in p.items()}, {}, 0.05, 1)
        before = {slot: tree["head.weight"].clone() for slot, tree in state.items()}
        assert set(before) == {"m", "v"}
        _, state = rule.step(p, {"context.a": p["context.a"]}, state, 0.05, 2)
        for slot, leaf in before.items():
            assert torch.equal(state[slot]["head.weight"], leaf)


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
            fine, broken = foreach.tensor_norms([torch.ones(2, 2), x])
            assert float(fine) == 2.0 and not bool(torch.isfinite(broken))
    assert foreach.tensor_norms([]) == []


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


# ---- roles and clipping -------------------------------------------------------------------------
NAMES = ("text.ctx", "image.adapter.down", "image.lora.0.q.A", "head.weight", "image.ln.0.1.bias")
BASE = OptimSpec("sgd", 0.05, 0.9, 5e-4)


def walk(spec: OptimSpec, rates: list[float], clients: int = 1) -> tuple[list[Tree], Tree]:
    """Return the trees (start, gradients at every step) of K clients and what ``spec`` makes."""
    generator = torch.Generator().manual_seed(3)
    trees = [
        {n: torch.randn(clients, 7, 3, generator=generator, dtype=torch.float64) for n in NAMES}
        for _ in range(len(rates) + 1)
    ]
    rule, tree, state = spec.build(), trees[0], State()
    for t, (rate, g) in enumerate(zip(rates, trees[1:], strict=True), start=1):
        new, state = rule.step(tree, g, state, rate, t)
        tree = tree | new
    return trees, tree


def groups_of_torch(trees: list[Tree], how: dict[str, dict[str, Any]], rule: Any) -> Tree:
    """Return what a ``torch.optim`` with a parameter group per tensor makes of one client."""
    params = {n: torch.nn.Parameter(v[0].clone()) for n, v in trees[0].items()}
    optimiser = rule([{"params": [p], **how.get(n, {})} for n, p in params.items()])
    for g in trees[1:]:
        for n, p in params.items():
            p.grad = g[n][0].clone()
        optimiser.step()
    return {n: p.detach() for n, p in params.items()}


@pytest.mark.parametrize(("name", "rule"), [
    ("sgd", lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=5e-4)),
    ("adam", lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=5e-4)),
    ("adamw", lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=5e-4)),
])
def test_roles_are_the_parameter_groups_of_torch_optim(name: str, rule: Any) -> None:
    roles = {"lora": RoleSpec(lr=0.3), "head": RoleSpec(lr=0.007, weight_decay=0.1),
             "tower": RoleSpec(weight_decay=0.0)}
    trees, ours = walk(replace(BASE, name=name, roles=roles), [0.05] * 5)
    theirs = groups_of_torch(trees, {
        "image.lora.0.q.A": {"lr": 0.3}, "head.weight": {"lr": 0.007, "weight_decay": 0.1},
        "image.ln.0.1.bias": {"weight_decay": 0.0},
    }, rule)
    assert list(ours) == list(theirs)
    for n, v in theirs.items():
        assert torch.equal(ours[n][0], v), n


def test_two_rates_by_hand() -> None:
    p = {"text.ctx": torch.zeros(1, 1).double(), "head.weight": torch.zeros(1, 1).double()}
    g = {n: torch.full((1, 1), 2.0).double() for n in p}
    plain = OptimSpec("sgd", 0.1, 0.0, 0.0, roles={"head": RoleSpec(lr=0.4)}).build()
    assert {n: float(v) for n, v in plain.step(p, g, {}, 0.1, 1)[0].items()} == {
        "text.ctx": -0.2, "head.weight": -0.8}
    adam = OptimSpec("adam", 0.1, weight_decay=0.0, roles={"head": RoleSpec(lr=0.4)}).build()
    new = {n: float(v) for n, v in adam.step(p, g, {}, 0.1, 1)[0].items()}
    assert new == pytest.approx({"text.ctx": -0.1, "head.weight": -0.4}, abs=1e-8)
    both = OptimSpec("sgd", 0.1, 0.0, 0.0, roles={"head": RoleSpec("adam")}).build()
    new = {n: float(v) for n, v in both.step(p, g, {}, 0.1, 1)[0].items()}
    assert new == pytest.approx({"text.ctx": -0.2, "head.weight": -0.1}, abs=1e-8)


def test_a_roles_rate_follows_the_schedule() -> None:
    """Half of the base rate is half of the role's; in stacked clients of other epochs as well."""
    roles = {"head": RoleSpec(lr=0.4)}
    p = {n: torch.zeros(2, 1).double() for n in ("text.ctx", "head.weight")}
    g = {n: torch.ones(2, 1).double() for n in p}
    rule = OptimSpec("sgd", 0.1, 0.0, 0.0, roles=roles).build()
    for rate in ([0.1, 0.05], torch.tensor([0.1, 0.05], dtype=torch.float64)):
        new, _ = rule.step(p, g, {}, rate, 1)
        assert new["text.ctx"].flatten().tolist() == [-0.1, -0.05]
        assert new["head.weight"].flatten().tolist() == [-0.4, -0.2]


def test_roles_that_change_nothing_are_todays_rule() -> None:
    same = {"head": RoleSpec("sgd", 0.05, 5e-4), "lora": RoleSpec()}
    assert replace(BASE, roles=same).build() == BASE.build() == SGD(0.9, 5e-4)
    assert torch.equal(walk(replace(BASE, roles=same), [0.05] * 3)[1]["text.ctx"],
                       walk(BASE, [0.05] * 3)[1]["text.ctx"])


@pytest.mark.parametrize("most", [0.5, 3.0, 1e3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clipping_is_torchs_own(most: float, dtype: Any) -> None:
    grads = {n: v.to(dtype) for n, v in walk(BASE, [0.1])[0][1].items()} | {"s": torch.ones(1)}
    ours = clip(grads, most)
    leaves = [torch.nn.Parameter(torch.zeros_like(v[0])) for v in grads.values()]
    for leaf, v in zip(leaves, grads.values(), strict=True):
        leaf.grad = v[0].clone()
    torch.nn.utils.clip_grad_norm_(leaves, most)
    for leaf, (n, v) in zip(leaves, ours.items(), strict=True):
        assert leaf.grad is not None
        assert torch.allclose(v[0], leaf.grad, rtol=1e-6 if n == "s" or dtype is torch.float32
                              else 1e-13, atol=0), n


def test_each_client_is_clipped_by_its_own_norm() -> None:
    g = {"a": torch.tensor([[3.0], [0.3], [30.0]]).double(),
         "b": torch.tensor([[4.0], [0.4], [torch.inf]]).double()}
    out = clip(g, 1.0)
    assert out["a"][:2].flatten().tolist() == pytest.approx([0.6, 0.3], rel=1e-6)
    assert out["b"][:2].flatten().tolist() == pytest.approx([0.8, 0.4], rel=1e-6)
    assert not bool(out["b"][2].isfinite())
    assert float(g["a"][0]) == 3.0 and clip({}, 1.0) == {}


def test_a_clipped_step_of_stacked_clients_is_that_of_each_alone() -> None:
    spec = replace(BASE, clip=0.7, roles={"head": RoleSpec("adam", 0.01)})
    trees, together = walk(spec, [0.05] * 4, clients=3)
    rule = spec.build()
    for k in range(3):
        tree, state = {n: v[k : k + 1] for n, v in trees[0].items()}, State()
        for t, g in enumerate(trees[1:], start=1):
            new, state = rule.step(tree, {n: v[k : k + 1] for n, v in g.items()}, state, 0.05, t)
            tree = tree | new
        for n, v in tree.items():
            assert torch.allclose(v[0], together[n][k], rtol=1e-13, atol=1e-15), n


@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_with_steps_of_each_client_is_each_clients_own(decoupled: bool) -> None:
    rule = Adam(weight_decay=0.01, decoupled=decoupled)
    start = {"a": torch.ones(2, 3).double()}
    g = {"a": torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.1, -1.0]]).double()}
    state = {s: {"a": torch.full((2, 3), 0.2).double()} for s in ("m", "v")}
    new, _ = rule.step(start, g, state, 0.05, torch.tensor([4.0, 9.0], dtype=torch.float64))
    for k, t in enumerate((4, 9)):
        def one(tree: Tree, k: int = k) -> Tree:
            return {n: v[k : k + 1] for n, v in tree.items()}

        alone, _ = rule.step(one(start), one(g), {s: one(v) for s, v in state.items()}, 0.05, t)
        assert torch.allclose(alone["a"][0], new["a"][k], rtol=1e-14, atol=0)


def test_what_has_a_state() -> None:
    assert BASE.stateful and OptimSpec("adam").stateful
    bare = OptimSpec("sgd", momentum=0.0)
    assert not bare.stateful
    assert replace(bare, roles={"head": RoleSpec("adam")}).stateful
