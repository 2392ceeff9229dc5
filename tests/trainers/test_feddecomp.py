"""FedDecomp: shared and private parts in turn (personalized_fl.md 1b, 5.3)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedvlm.check.world import Setup, World
from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import Tree, expand
from fedvlm.federation.discovery import load_trainer
from tests.federation.toys import quadratic

from .toys import shared, toy

FedDecomp = load_trainer("FedDecomp")
BOTH = ["PEFT.VISUAL", "feature", "PEFT.WIDTH", "6"]
G, L = "image.g", "image.private.l"


@pytest.fixture(scope="module")
def world() -> World:
    return World(BOTH)


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


def test_private_epochs_are_counted() -> None:
    made = toy("FedDecomp", trainables=start, value=total, options={"PRIVATE_EPOCHS": 2})
    state = quadratic(made, 1, epochs=5).run()
    left = 4 * 0.7**2  # what client 1 lacks after two private steps
    assert float(state.clients[1]["w"][L]) == pytest.approx(4 - left, abs=1e-12)
    assert shared(state, G) == pytest.approx((left - left * 0.7**3) / 2, abs=1e-12)


def test_no_epoch_left_for_the_shared_part_is_refused() -> None:
    with pytest.raises(ConfigError, match="set --local-epochs 2 or more"):
        quadratic(toy("FedDecomp"), 1, epochs=1).run()


def test_start_is_that_of_the_shared_parts_alone(world: World) -> None:
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


def test_private_parts_are_small_and_used(world: World) -> None:
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
    world = World(["PEFT.TEXT", "none", "PEFT.VISUAL", "none", "PEFT.HEAD", "linear"])
    run = world.record(FedDecomp, Setup(rounds=2, opts={"RANK": 2}))
    own = run.states[-1].clients[0]["w"]
    assert {n for n in own if ".private." in n} == {
        "head.weight.private.left", "head.weight.private.right"
    }
    assert float(own["head.weight.private.left"].abs().max()) > 0
    assert set(run.events[-1].updates.params) == {"head.weight"}
    assert len(run.events[-1].updates) == 4


def test_without_any_private_part_it_is_refused() -> None:
    world = World(["PEFT.TEXT", "lora", "PEFT.VISUAL", "none", "PEFT.RANK", "2"])
    with pytest.raises(ConfigError, match="FedDecomp has no private part"):
        world.federation(FedDecomp)


def test_clients_that_did_not_work_are_not_averaged() -> None:
    """The authors' server averages the models of all clients, stale ones included."""
    made = toy("FedDecomp", trainables=start, value=total)
    fed = quadratic(made, 1, epochs=2, frac=0.5, first_round_all=False)
    (client,) = fed.plan.sample(1)
    state = fed.run()
    assert shared(state, G) == float(state.clients[client]["w"][G])
    assert shared(state, G) == pytest.approx((0.0, 0.84)[client], abs=1e-12)
