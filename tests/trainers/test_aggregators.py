"""Which rules by name and server optimisers each method allows, and that they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from fedvlm.check.world import CheckWorld
from fedvlm.core.errors import ConfigError
from fedvlm.federation.aggregation.rules import EVERY, AggregateSpec
from fedvlm.federation.aggregation.server_optim import SERVER_OPTIMS, ServerOptimSpec
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.rounds import RoundFinished, check_aggregation

METHODS = [load_trainer(stem).name for stem in trainer_files()]
WITHOUT_PROXY = ("TRAINER.HEART-PFL.AKT", "no")
NO_RULE = {"Hermes": (), "FedProto": (), "SCAFFOLD": ("mean",), "FedDyn": ("mean",),
           "FedAS": ("mean",), "FedFomo": (), "pFedMoAP": (), "AFL": (), "TOFA": (), "FedPFT": (),
           "HetLoRA": ("mean",), "TRIP": ()}
OWN_STEP = {*NO_RULE, "pFedMe", "PromptSRC"}


@pytest.fixture(scope="module")
def world() -> CheckWorld:
    return CheckWorld()


def allowed(world: CheckWorld, name: str, *opts: str) -> tuple[tuple[str, ...], bool]:
    cls = load_trainer(name)
    trainer = cls(CheckWorld(list(opts)).config(cls) if opts else world.config(cls))
    return tuple(trainer.aggregators), trainer.server_optim


@pytest.mark.parametrize("name", [n for n in METHODS if n != "HEART-PFL"])
def test_what_each_method_allows(world: CheckWorld, name: str) -> None:
    assert allowed(world, name) == (NO_RULE.get(name, EVERY), name not in OWN_STEP)


def test_distillation_learns_from_every_client(world: CheckWorld) -> None:
    assert allowed(world, "HEART-PFL") == (("mean",), False)  # the world's server has images
    assert allowed(world, "HEART-PFL", *WITHOUT_PROXY) == (EVERY, True)


def test_products_of_lora_have_no_rule_but_the_mean(world: CheckWorld) -> None:
    lora = ("PEFT.VISUAL", "lora", "PEFT.LORA_AVG")
    assert allowed(world, "FedAvg", *lora, "product_svd") == (("mean",), False)
    assert allowed(world, "FedAvg", *lora, "freeze_a") == (EVERY, True)
    assert allowed(world, "FedAvg", "PEFT.LORA_AVG", "product_svd") == (EVERY, True)  # no LoRA


def test_a_warm_up_allows_what_needs_no_received_body(world: CheckWorld) -> None:
    rules, optimiser = allowed(world, "LG-FedAvg", "TRAINER.LG-FEDAVG.WARMUP_ROUNDS", "2")
    assert set(EVERY) - set(rules) == {"clipped_mean", "similarity"} and not optimiser


def events(
    world: CheckWorld, name: str, rounds: int, **plan: Any
) -> tuple[dict[str, torch.Tensor], Sequence[RoundFinished]]:
    """Return the shared tensors after ``rounds`` and the events of the rounds."""
    fed = world.federation(load_trainer(name))
    fed.plan = replace(fed.plan, **plan)
    check_aggregation(fed.trainer, fed.plan)
    seen: list[RoundFinished] = []
    fed.subscribers.append(lambda e: seen.append(e) if isinstance(e, RoundFinished) else None)
    return fed.run(until=rounds).server["w"], seen[1:]


@pytest.fixture(scope="module")
def plainly(world: CheckWorld) -> Callable[[str], dict[str, torch.Tensor]]:
    """The shared tensors of a method after two rounds by its own rule, computed once."""
    return cache(lambda name: events(world, name, 2)[0])


@pytest.mark.parametrize("rule", EVERY)
@pytest.mark.parametrize("name", ["FedTV", "FedPer"])
def test_a_method_runs_by_every_rule(
    world: CheckWorld, plainly: Callable[[str], dict[str, torch.Tensor]], name: str, rule: str
) -> None:
    plain = plainly(name)
    found, seen = events(world, name, 2, aggregator=AggregateSpec(rule))
    assert found.keys() == plain.keys()
    same = all(torch.equal(found[n], plain[n]) for n in plain)
    assert same == (rule == "mean" and name == "FedPer")  # FedTV's own rule is not the mean
    assert ("aggregation_weights" in seen[1].report) == (rule == "similarity")
    told = seen[1].telltale
    assert told.clients == (0, 1, 2, 3) and min(told.norm) > 0
    for k, client in enumerate(told.clients):
        updates = seen[1].updates
        assert updates is not None
        gaps = [(updates.params[n] - updates.received[n])[client] for n in updates.params]
        norm = torch.cat([g.flatten() for g in gaps]).norm()
        assert told.norm[k] == pytest.approx(float(norm), rel=1e-12)


@pytest.mark.parametrize("kind", SERVER_OPTIMS)
def test_a_method_runs_behind_every_optimiser(
    world: CheckWorld, plainly: Callable[[str], dict[str, torch.Tensor]], kind: str
) -> None:
    plain = plainly("FedTV")
    found, _ = events(world, "FedTV", 2, server_optim=ServerOptimSpec(kind))
    assert any(not torch.equal(found[n], plain[n]) for n in plain)


def test_krum_takes_body_and_head_of_one_client_in_a_warm_up() -> None:
    world = CheckWorld(["TRAINER.LG-FEDAVG.WARMUP_ROUNDS", "2"])
    fed = world.federation(load_trainer("LG-FedAvg"))
    fed.plan = replace(fed.plan, aggregator=AggregateSpec("krum"))
    seen: list[RoundFinished] = []
    fed.subscribers.append(lambda e: seen.append(e) if isinstance(e, RoundFinished) else None)
    state = fed.run(until=1)
    updates = seen[1].updates
    assert updates is not None
    (chosen,) = seen[1].report["selected"]
    for slot, sent in (("w", updates.params), ("warm", updates.extras)):
        for name, value in state.server[slot].items():
            assert torch.equal(value, sent[name][chosen])


def test_refused_when_the_federation_is_built(world: CheckWorld) -> None:
    with pytest.raises(ConfigError, match="SCAFFOLD, as configured, allows auto, mean"):
        events(world, "SCAFFOLD", 1, aggregator=AggregateSpec("krum"))
    with pytest.raises(ConfigError, match="pFedMe, as configured, allows none"):
        events(world, "pFedMe", 1, server_optim=ServerOptimSpec("yogi"))
