"""The invariant of weights: what cards and rules say, and that wrong ones are caught."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from fedvlm.check.compare import Broken
from fedvlm.check.weights import ServerRound, agree_with_card, card_weightings, g16_weights
from fedvlm.check.world import CheckWorld
from fedvlm.federation.aggregation.updates import Updates
from fedvlm.federation.cards import fields, trainer_files
from fedvlm.federation.context import OWN
from fedvlm.federation.discovery import load_trainer

from .broken_trainers import Good

TRAINERS = sorted(trainer_files())
# Whose server makes something of the uploads that no mean by samples or clients is: their cards
# give it in words of their own.
OTHER = {"afl", "fedas", "fedpft", "fedproto", "fedtv", "hetlora", "tofa"}
# Tensors of the server that G16 does not recompute: its reasons, by method.
REASONS = {
    "afl": {"w/.*"}, "tofa": {r"w/head\.(visual|bias)"}, "thorki": {"weight"},
    "fedpft": {"w/.*"},
}


@pytest.fixture(scope="module")
def world() -> CheckWorld:
    return CheckWorld()


@pytest.mark.parametrize("name", TRAINERS)
def test_the_card_names_the_weighting(world: CheckWorld, name: str) -> None:
    cls = load_trainer(name)
    card = fields(sys.modules[cls.__module__].__doc__ or "")
    if card["Shared"].startswith("none") or name in OTHER:
        return
    assert card_weightings(cls)[:1] == [cls(world.config(cls)).weighting]


def test_few_tensors_have_a_reason_in_the_place_of_a_rule(world: CheckWorld) -> None:
    found: dict[str, set[str]] = {}
    for name in TRAINERS:
        cls = load_trainer(name)
        assert "G16" not in cls.exempt, name
        rules = cls(world.config(cls)).server_rules
        words = {key for key, rule in rules.items() if isinstance(rule, str)}
        found |= {name: words} if words else {}
    assert found == REASONS


@pytest.fixture
def carded(monkeypatch: pytest.MonkeyPatch) -> Callable[..., type[Good]]:
    """What makes a trainer whose module has a card."""
    def make(equations: str, **more: Any) -> type[Good]:
        module = ModuleType("tests_card")
        module.__doc__ = f"Mine: one.\n\nEquations: {equations}\nShared: text.ctx\n"
        monkeypatch.setitem(sys.modules, "tests_card", module)
        return type("Mine", (Good,), {"__module__": "tests_card", **more})

    return make


@pytest.mark.parametrize(
    ("equations", "named"),
    [
        ("min_w sum_k p_k F_k(w); server\n    w = sum_k\n    p_k w_k.", ["samples"]),
        ("min sum_k p_k F; server g = mean_k g_k.", ["uniform"]),
        ("server: x <- mean_S(y); VARIANT fixed: sum_k p_k y.", ["uniform", "samples"]),
        ("CE; sum_k p_k.", []),
    ],
)
def test_what_a_card_names(
    carded: Callable[..., type[Good]], equations: str, named: list[str]
) -> None:
    assert card_weightings(carded(equations)) == named


def test_a_card_of_another_weighting_is_caught(
    carded: Callable[..., type[Good]], world: CheckWorld
) -> None:
    said = "server w = sum_k p_k w_k."
    agree_with_card(carded(said), "samples")
    agree_with_card(carded(said), OWN)
    agree_with_card(carded("by FedAvg."), "uniform")
    with pytest.raises(Broken, match=r"says? that the server weighs by samples, .* 'uniform'"):
        g16_weights(world, carded(said, weighting="uniform"))


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        ({"w/.*": " "}, "'w/text.ctx' has a server rule without a reason"),
        ({"w/.*": "x", "w/text.*": "y"}, "'w/text.ctx' has 2 server_rules"),
        ({"w/.*": lambda s: s.sent("prototype")}, "needs 'prototype', which nobody sent"),
        ({"w/text.*": lambda s: s.after("w", "none")}, "'w/text.ctx' needs one of 'w/none'"),
    ],
)
def test_a_rule_that_says_nothing_is_refused(
    world: CheckWorld, rules: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(Broken, match=re.escape(sentence)):
        g16_weights(world, type("Mine", (Good,), {"server_rules": rules}))


def test_a_wrong_rule_is_caught(world: CheckWorld) -> None:
    rules = {"w/.*": lambda s: s.mean(by=torch.ones(4))}
    with pytest.raises(Broken, match=r"'w/text.ctx' is .* off its server rule"):
        g16_weights(world, type("Mine", (Good,), {"server_rules": rules}))


def test_a_reason_is_taken_and_a_weight_held_to_the_samples(world: CheckWorld) -> None:
    g16_weights(world, type("Mine", (Good,), {"server_rules": {"w/.*": "a student's"}}))
    with pytest.raises(Broken, match="client 0 of 7 samples weighs 8"):
        g16_weights(world, type("Mine", (Good,), {
            "server_rules": {"weight": "of some"}, "weighting": OWN,
            "client_update": lambda self, ctx, state, received: (
                state, ctx.upload(received, ctx.sizes + 1)
            ),
        }))


@pytest.mark.parametrize(
    ("name", "opts"),
    [
        ("AFL", "VARIANT published"), ("TOFA", "VARIANT published"),
        ("FedTV", "VARIANT fixed"), ("Hermes", "OVERLAP coverage"),
        ("FedMGP", "WEIGHTING samples"), ("FedCLIP", "VARIANT fixed"),
        ("APFL", "VARIANT published"),
    ],
)
def test_methods_with_weights_of_their_own_keep_it(name: str, opts: str) -> None:
    """With unequal clients; as they come they do in ``test_invariants``."""
    key, _, value = opts.partition(" ")
    g16_weights(CheckWorld([f"TRAINER.{name.upper()}.{key}", value]), load_trainer(name))


def test_rules_of_lora_have_tests_of_their_own() -> None:
    g16_weights(CheckWorld(["PEFT.VISUAL", "lora", "PEFT.TEXT", "none", "PEFT.LORA_AVG", "fair"]),
                load_trainer("FedAvg"))


def test_arithmetic() -> None:
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    sent = Updates((0, 2), {"x": rows}, torch.tensor([1.0, 3.0]))
    one = ServerRound(None, "w", "x", 1, 2, {"w": {"x": rows[0]}}, sent,  # type: ignore[arg-type]
                      torch.tensor([True, False]), (5, 2, 9), None)  # type: ignore[arg-type]
    assert one.mean().tolist() == [2.5, 3.5] and one.old.tolist() == [1.0, 2.0]
    assert one.total(one.sent(), one.first).tolist() == [1.0, 2.0]
    assert one.mean(by=torch.tensor([[1.0, 0.0], [1.0, 2.0]])).tolist() == [2.0, 4.0]
    assert one.sizes.tolist() == [5.0, 9.0] and one.members == 3
