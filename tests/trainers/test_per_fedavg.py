"""Per-FedAvg: closed forms on the real class; its ports' defects."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fedvlm.check.world import BASE, CheckWorld, Setup
from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import Tree
from fedvlm.federation.batches import Batch, Step
from fedvlm.federation.context import Context
from fedvlm.federation.discovery import load_trainer
from fedvlm.models.towers import layers
from fedvlm.models.vlmodel import VLModel
from tests.trainers.toys import drive, leaves, own, personal, shared

META = {"ALPHA_LR": 0.1, "BETA_LR": 0.05}
FIXED = {"fo": 2.8, "hf": 2.578947368, "exact": 2.578947368}
MODES = list(FIXED)
SOON = META | {"BETA_LR": 0.5}  # one step a round: the same fixed points, in tens of rounds


@pytest.mark.parametrize("mode", MODES)
def test_fixed_point(mode: str) -> None:
    _, state = drive("Per-FedAvg", 40, options=SOON | {"MODE": mode})
    assert shared(state) == pytest.approx(FIXED[mode], abs=1e-8)


@pytest.mark.parametrize("delta", [1e-4, 1e-1, 10.0])
def test_hessian_free_is_exact_on_quadratics(delta: float) -> None:
    exact, free = (
        shared(drive("Per-FedAvg", 2, options=META | {"MODE": m, "DELTA": delta})[1])
        for m in ("exact", "hf")
    )
    assert free == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_alpha_zero_is_fedavg(mode: str) -> None:
    options = {"ALPHA_LR": 0.0, "BETA_LR": 0.05, "MODE": mode}
    _, state = drive("Per-FedAvg", 5, options=options, epochs=3)
    assert shared(state) == pytest.approx(shared(drive("FedAvg", 5, epochs=3, lr=0.05)[1]),
                                          abs=1e-12)


def test_beta_zero_is_the_runs_rate() -> None:
    ends = [shared(drive("Per-FedAvg", 3, options={"ALPHA_LR": 0.1, "BETA_LR": b}, lr=0.05)[1])
            for b in (0.0, 0.05)]
    assert ends[0] == ends[1] != 0


def test_evaluated_after_one_step_of_size_alpha() -> None:
    """b + (1 - alpha a) (w - b); not the plain rate 0.3, not w itself."""
    fed, state = drive("Per-FedAvg", 40, options=SOON | {"MODE": "exact", "STEPS": 1}, lr=0.3)
    assert personal(fed, state) == pytest.approx([2.321053, 3.005263], abs=1e-6)
    assert own(state) != personal(fed, state)  # evaluation leaves the state alone


@pytest.mark.parametrize(("steps", "factor"), [(0, 1.0), (3, 0.7**3)])
def test_number_of_adaptation_steps(steps: int, factor: float) -> None:
    """Also where one epoch has more steps than asked for."""
    options = META | {"STEPS": steps}
    fed, state = drive("Per-FedAvg", 1, options=options, sizes=(8, 8), batch=2)
    assert personal(fed, state)[1] == pytest.approx(4 + factor * (shared(state) - 4), abs=1e-12)


def test_outer_step_has_no_momentum_of_the_inner_one() -> None:
    """a = 1, w = 1, alpha 0.1: the outer direction is 0.9; a shared buffer makes it 1.8."""
    options = {"ALPHA_LR": 0.1, "BETA_LR": 1.0}
    fed, state = drive("Per-FedAvg", 0, options=options, momentum=0.9)
    ctx = fed.context([0], 1)  # client 0: a = 1, b = 0
    one = {"image.w": torch.ones(1, dtype=torch.float64)}
    new, _ = fed.trainer.client_update(ctx, {"w": one}, one)
    assert 1 - float(new["w"]["image.w"]) == pytest.approx(0.9, abs=1e-12)


@pytest.mark.parametrize(("mode", "count"), [("fo", 2), ("exact", 2), ("hf", 3)])
def test_batches_of_a_step_are_disjoint_and_drop_nothing(mode: str, count: int) -> None:
    cls = load_trainer("Per-FedAvg")
    seen: list[list[list[float]]] = []

    class Watched(cls):  # type: ignore[misc, valid-type]
        def client_update(self, ctx: Context, state: Any, received: Any) -> Any:
            loop = ctx.loop

            def watch(slots: Any, body: Any, **how: Any) -> Any:
                def spy(s: Any, batches: tuple[Batch, ...], step: Step) -> Any:
                    seen.append([b.x["id"][0].tolist() for b in batches])
                    return body(s, batches, step)

                return loop(slots, spy, **how)

            ctx.loop = watch  # type: ignore[method-assign]
            return super().client_update(ctx, state, received)

    fed, state = drive(Watched, 0, options=META | {"MODE": mode}, sizes=(13, 1), batch=2)
    fed.batcher.source.streams["id"] = torch.arange(14).double()
    fed.engine.run(
        fed.trainer, lambda ids: fed.context(ids, 1), fed.downloads(state, 1, [0]),
        fed.clients, {0: 0},
    )
    flat = [i for step in seen for batch in step for i in batch]
    assert {len(step) for step in seen} == {count}
    assert sorted(flat) == list(range(13))  # each sample once per epoch


def test_weights_are_even() -> None:
    """The paper's mean over clients, whatever their sizes."""
    _, state = drive("Per-FedAvg", 40, options=SOON, sizes=(3, 1), batch=100)
    assert shared(state) == pytest.approx(FIXED["fo"], abs=1e-8)


@pytest.mark.parametrize("mode", MODES)
def test_stacked_equals_one_by_one(mode: str) -> None:
    unequal = {"epochs": 2, "sizes": (9, 3), "batch": 2, "options": META | {"MODE": mode}}
    ends = [dict(leaves(drive("Per-FedAvg", 3, chunk=chunk, **unequal)[1])) for chunk in (1, 2)]
    assert {n: v.tolist() for n, v in ends[0].items()} == {
        n: v.tolist() for n, v in ends[1].items()
    }


# ---- exact: second derivatives through the towers ---------------------------------------------
@pytest.fixture(scope="module")
def prompts() -> CheckWorld:
    return CheckWorld(["PEFT.TEXT", "prompt", "PEFT.VISUAL", "feature"])


def exact(world: CheckWorld, **setup: Any) -> Any:
    return world.federation(
        load_trainer("Per-FedAvg"), Setup(opts={"MODE": "exact", "ALPHA_LR": 0.5}, **setup)
    )


@pytest.mark.parametrize(
    "opts", [["PEFT.TEXT", "lora"], ["PEFT.TEXT", "prompt", "PEFT.VISUAL", "feature"]]
)
def test_exact_is_refused_on_the_packed_tower(opts: list[str]) -> None:
    """Its attention would drop out of the Hessian in silence; said when the run is built."""
    with pytest.raises(ConfigError, match=r"MODE exact.*FED\.PLAIN True.*hf or fo"):
        exact(CheckWorld(opts), packed=True)


def test_exact_works_on_the_packed_tower_without_a_prompt() -> None:
    world = CheckWorld(["PEFT.TEXT", "none", "PEFT.VISUAL", "feature", "PEFT.HEAD", "linear"])
    assert exact(world, packed=True, rounds=1).run().round == 1


def test_exact_gradient_of_the_plain_towers_is_the_true_one(prompts: CheckWorld) -> None:
    """Against central differences of F(w - alpha grad F(w)) along its own direction."""
    fed = exact(prompts)
    ctx, trainer = fed.context([0], 1), fed.trainer
    batches = next(iter(fed.batcher.steps([0], 1, 1, 2, "w"))).batches
    draw = torch.Generator().manual_seed(3)
    w = {n: v[None] + 0.1 * torch.randn(v.shape, generator=draw).double()
         for n, v in fed.p0.items()}

    def value(p: Tree) -> float:
        u = trainer.inner(ctx, p, batches[0], "test")
        return float(trainer.loss(fed.model, u, batches[1]).detach())

    grads = trainer.exact(ctx, w, batches, "test")
    norm2 = sum(float(g.pow(2).sum()) for g in grads.values())
    h = 1e-4 / norm2**0.5
    up, down = ({n: v + s * h * grads[n] for n, v in w.items()} for s in (1, -1))
    assert (value(up) - value(down)) / (2 * h) == pytest.approx(norm2, rel=1e-5)
    first = trainer.fo(ctx, w, batches, "test")
    other = sum(float((g * first[n]).sum()) for n, g in grads.items())
    assert abs(other - norm2) > 1e-3 * norm2  # the Hessian's part is there


def frozen_product(x: torch.Tensor) -> Iterator[torch.Tensor]:
    weight = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    yield layers.frozen_linear(x, weight).pow(3).sum()
    yield torch.nn.functional.linear(x, weight).pow(3).sum()


def test_a_kernel_without_second_derivative_is_noticed_in_float32() -> None:
    """oneDNN's product has none: torch warns and goes on with zero. Elsewhere both agree."""
    module = sys.modules[load_trainer("Per-FedAvg").__module__]
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
    ours, plain = (
        torch.autograd.grad(out, x, create_graph=True)[0] for out in frozen_product(x)
    )
    module.refuse_once_only([plain, None])
    if not layers.onednn_available():
        pytest.skip("no oneDNN kernel on this processor")
    try:
        module.refuse_once_only([ours])
    except module.OnceOnly:
        return
    twice = [torch.autograd.grad(g.sum(), x, retain_graph=True)[0] for g in (ours, plain)]
    assert torch.allclose(*twice, rtol=1e-4)


def test_attention_without_second_derivative_is_noticed(prompts: CheckWorld) -> None:
    """The plain tower's own fused attention, without ``twice``."""
    module = sys.modules[load_trainer("Per-FedAvg").__module__]
    model = VLModel(prompts.backbone, BASE, packed=False)
    draw = torch.Generator().manual_seed(0)
    ctx = torch.randn(1, 4, prompts.backbone.text_width, generator=draw).double().requires_grad_()
    (grad,) = torch.autograd.grad(model.text(ctx).pow(3).sum(), ctx, create_graph=True)
    with pytest.raises(module.OnceOnly):
        module.refuse_once_only([grad])


def test_per_fedavg_gives_no_weight_to_a_client_without_samples() -> None:
    one = drive("Per-FedAvg", 1, sizes=(2, 2))[1]
    fed, state = drive("Per-FedAvg", 1, sizes=(0, 2))
    alone = float(fed.p0["image.w"])
    moved = float(state.server["w"]["image.w"])
    # client 0 has its optimum at the start: with two samples it stays there and halves the move
    assert moved == pytest.approx(2 * float(one.server["w"]["image.w"])) and moved != alone
