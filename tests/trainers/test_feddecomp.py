"""FedDecomp: shared and private parts in turn."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedvlm.check.invariants import run as check
from fedvlm.check.world import CheckWorld, Setup
from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import Tree, expand
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.optim import Schedule
from fedvlm.federation.rounds import Federation
from tests.federation.toys import quadratic

from .toys import shared, toy

FedDecomp = load_trainer("FedDecomp")
BOTH = ["PEFT.VISUAL", "feature", "PEFT.WIDTH", "6"]
LORA = ["PEFT.TEXT", "lora", "PEFT.VISUAL", "lora", "PEFT.RANK", "3", "PEFT.ALPHA", "5"]
G, L = "image.g", "image.private.l"


@pytest.fixture(scope="module")
def world() -> CheckWorld:
    return CheckWorld(BOTH)


def start(self: Any, model: Any, generator: torch.Generator) -> Tree:
    return {G: torch.zeros(()).double(), L: torch.zeros(()).double()}


def total(self: Any, p: Tree) -> torch.Tensor:
    return p[G] + p[L]


def test_private_then_shared_on_the_split_toy() -> None:
    made = toy("FedDecomp", trainables=start, value=total)
    state = quadratic(made, 1, epochs=2).run()
    assert float(state.clients[1]["w"][L]) == pytest.approx(1.2, abs=1e-12)
    assert shared(state, G) == pytest.approx(0.42, abs=1e-12)
    assert L not in state.server["w"]


def test_mean_is_uniform() -> None:
    made = toy("FedDecomp", trainables=start, value=total)
    state = quadratic(made, 1, epochs=2, sizes=(3, 1)).run()
    assert shared(state, G) == pytest.approx(0.42, abs=1e-12)


def test_the_released_mean_has_the_old_part_of_clients_that_rest() -> None:
    moved = {}
    for variant in ("published", "fixed"):
        made = toy("FedDecomp", trainables=start, value=total, options={"VARIANT": variant})
        state = quadratic(made, 1, epochs=2, frac=0.5, first_round_all=False,
                          wells=((1.0, 3.0), (2.0, 3.0))).run()
        moved[variant] = shared(state, G)
    assert moved["fixed"] != 0
    assert moved["published"] == pytest.approx(moved["fixed"] / 2, abs=1e-12)


def test_private_epochs_are_counted() -> None:
    made = toy("FedDecomp", trainables=start, value=total, options={"PRIVATE_EPOCHS": 2})
    state = quadratic(made, 1, epochs=5).run()
    left = 4 * 0.7**2  # what client 1 lacks after two private steps
    assert float(state.clients[1]["w"][L]) == pytest.approx(4 - left, abs=1e-12)
    assert shared(state, G) == pytest.approx((left - left * 0.7**3) / 2, abs=1e-12)


def test_the_shared_part_goes_on_with_the_clock() -> None:
    made = toy("FedDecomp", trainables=start, value=total)
    schedule = Schedule(0.1, "single_step", 2, (1,), 0.5)
    state = quadratic(made, 1, epochs=2, schedule=schedule).run()
    assert float(state.clients[1]["w"][L]) == pytest.approx(1.2, abs=1e-12)
    assert shared(state, G) == pytest.approx(0.5 * 0.05 * 3 * 2.8, abs=1e-12)


def test_no_epoch_left_for_the_shared_part_is_refused() -> None:
    with pytest.raises(ConfigError, match="set --local-epochs 2 or more"):
        quadratic(toy("FedDecomp"), 1, epochs=1).run()


def test_start_is_that_of_the_shared_parts_alone(world: CheckWorld) -> None:
    fed, plain = world.federation(FedDecomp), world.federation(load_trainer("PromptFL"))
    x = {"features": world.features[None]}
    p = expand(fed.p0, 1)
    assert set(fed.groups.personal) == {
        "image.private.down", "image.private.up", "text.ctx.private.left",
        "text.ctx.private.right",
    }
    whole = fed.trainer.predict(fed.model, p, x)
    bare = {n: v for n, v in p.items() if n in fed.groups.shared}
    assert torch.equal(whole, plain.trainer.predict(plain.model, bare, x))


def test_private_parts_are_small_and_used(world: CheckWorld) -> None:
    run = world.record(FedDecomp, Setup(opts={"RANK": 2}))
    own = run.states[-1].clients[0]["w"] | run.events[-1].updates.messages()[0]
    term = own["text.ctx.private.left"] @ own["text.ctx.private.right"]
    assert torch.linalg.matrix_rank(term) == 2
    assert own["image.private.down"].shape[0] == 2
    x = {"features": world.features[None]}
    p = expand(own, 1)
    whole = run.fed.trainer.predict(run.fed.model, p, x)
    for part in ("text.ctx.private.left", "image.private.up"):
        without = run.fed.trainer.predict(run.fed.model, p | {part: torch.zeros_like(p[part])}, x)
        assert float((whole - without).abs().max()) > 1e-6


def test_linear_head_has_a_private_term() -> None:
    world = CheckWorld(["PEFT.TEXT", "none", "PEFT.VISUAL", "none", "PEFT.HEAD", "linear"])
    run = world.record(FedDecomp, Setup(rounds=2, opts={"RANK": 2}))
    own = run.states[-1].clients[0]["w"]
    assert {n for n in own if ".private." in n} == {
        "head.weight.private.left", "head.weight.private.right"
    }
    assert float(own["head.weight.private.left"].abs().max()) > 0
    assert set(run.events[-1].updates.params) == {"head.weight"}
    assert len(run.events[-1].updates) == 4


def drawn(fed: Federation, k: int = 2) -> Tree:
    """Return random values in every trainable tensor, for ``k`` clients."""
    draw = torch.Generator().manual_seed(4)
    return {n: 0.3 * torch.randn(k, *v.shape, generator=draw).double() for n, v in fed.p0.items()}


def test_private_lora_adds_its_product_to_the_shared_one() -> None:
    """W = S + BA: the features are those of one LoRA whose product is the sum of both."""
    world = CheckWorld(LORA)
    fed = world.federation(FedDecomp, Setup(opts={"RANK": 2}))
    p, x = drawn(fed), {"pixels": world.pixels[None, :3].repeat(2, 1, 1, 1, 1)}
    assert {n for n in p if n.startswith("image.private.")} == {
        n.replace("image.lora", "image.private.lora") for n in p if n.startswith("image.lora")
    }
    assert p["image.private.lora.0.q.A"].shape[1] == 2
    whole: Tree = {}
    for site in (n.removesuffix(".A") for n in p if n.endswith(".A") and ".private." not in n):
        own = site.replace(".lora.", ".private.lora.")
        both = p[site + ".B"] @ p[site + ".A"] + p[own + ".B"] @ p[own + ".A"]
        eye = torch.eye(both.shape[-1]).double().expand(2, -1, -1)
        whole |= {site + ".A": eye, site + ".B": both}
    found = fed.trainer.predict(fed.model, p, x)
    plain = world.federation(load_trainer("FedAvg")).trainer  # its LoRA alone, of full rank
    wanted = plain.predict(fed.model, whole, x)
    assert float((found - wanted).abs().max()) < 1e-10
    bare = {n: v for n, v in p.items() if ".private." not in n}
    assert float((found - plain.predict(fed.model, bare, x)).abs().max()) > 1e-3


def test_private_lora_starts_without_effect_and_stays() -> None:
    world = CheckWorld(LORA)
    run = world.record(FedDecomp, Setup(rounds=1, opts={"RANK": 2}))
    fed, own = run.fed, run.states[-1].clients[0]["w"]
    bare = world.federation(load_trainer("FedAvg"))
    x, p = {"pixels": world.pixels[None, :3]}, expand(fed.p0, 1)
    shared_only = {n: v for n, v in p.items() if n in fed.groups.shared}
    whole = fed.trainer.predict(fed.model, p, x)
    plain = bare.trainer.predict(bare.model, shared_only, x)
    assert torch.allclose(whole, plain, 0, 1e-12)
    private = [n for n in fed.p0 if ".private.lora." in n]
    assert set(fed.groups.personal) == set(private) and len(private) == len(fed.p0) // 2
    assert all(float((own[n] - fed.p0[n]).abs().max()) > 0 for n in private if n.endswith(".B"))
    assert not any(".private." in n for n in run.events[0].updates.params)


def test_private_lora_keeps_the_invariants() -> None:
    found = check("FedDecomp", LORA)
    assert {o.name: o.detail for o in found if o.state == "broken"} == {}


def test_frozen_factors_are_the_shared_ones_only() -> None:
    groups = CheckWorld([*LORA, "PEFT.LORA_AVG", "freeze_a"]).federation(FedDecomp).groups
    assert {n for n, g in groups.of.items() if g == "frozen"} == {
        n for n in groups.of if n.endswith(".A") and ".private." not in n
    }


def test_a_private_rank_above_the_tower_is_refused() -> None:
    world = CheckWorld([*LORA, "TRAINER.FEDDECOMP.RANK", "17"])
    with pytest.raises(ConfigError, match=r"TRAINER.FEDDECOMP.RANK 17 is above 16"):
        world.federation(FedDecomp)


def test_clients_that_did_not_work_are_not_averaged() -> None:
    """The authors' server averages the models of all clients, stale ones included."""
    made = toy("FedDecomp", trainables=start, value=total)
    fed = quadratic(made, 1, epochs=2, frac=0.5, first_round_all=False)
    (client,) = fed.plan.sample(1)
    state = fed.run()
    assert shared(state, G) == float(state.clients[client]["w"][G])
    assert shared(state, G) == pytest.approx((0.0, 0.84)[client], abs=1e-12)
