"""Knobs: what a card may declare, what it may not, and that every card's are real."""

from __future__ import annotations

import pytest

from fedvlm.config.keys import default_schema
from fedvlm.config.knobs import MOST, Knob, read_knobs
from fedvlm.config.option import Option, Schema, declare
from fedvlm.core.errors import ConfigError
from fedvlm.federation.cards import card_of, fields, trainer_files
from fedvlm.federation.discovery import load_trainer


def schema() -> Schema:
    return declare(default_schema(), "TRAINER.TOY", {
        "MU": Option(0.1, "a weight", low=0.0, high=10.0), "STEPS": Option(2, "steps", low=1),
        "RULE": Option("mean", "a rule", choices=("mean", "median")),
    })


def test_ranges_whole_numbers_words_and_what_is_fixed() -> None:
    text = "MU 0.001 to 1 log; STEPS 1 to\n    5; OPTIM.NAME sgd."
    mu, steps, name = read_knobs(text, "Toy", schema())
    assert mu == Knob("TRAINER.TOY.MU", (), 0.001, 1.0, log=True)
    assert steps == Knob("TRAINER.TOY.STEPS", (), 1.0, 5.0, whole=True)
    assert name == Knob("OPTIM.NAME", ("sgd",)) and name.fixed and not mu.fixed
    (rule,) = read_knobs("RULE mean | median", "Toy", schema())
    assert rule.choices == ("mean", "median") and str(rule) == "TRAINER.TOY.RULE mean | median"
    assert str(mu) == "TRAINER.TOY.MU 0.001 to 1 log"
    assert read_knobs("none.", "Toy", schema()) == read_knobs("", "Toy", schema()) == ()


@pytest.mark.parametrize(("text", "told"), [
    ("NU 0.1 to 1", "'NU', which is not a key"),
    ("MUU 0.1 to 1", "did you mean 'MU'"),
    ("MU 1 to 0.1", "is not a range"),
    ("MU 0 to 1 log", "log only above 0"),
    ("MU 0.1 to 11", "TRAINER.TOY.MU"),
    ("STEPS 0 to 3", "TRAINER.TOY.STEPS"),
    ("RULE mean | mode", "TRAINER.TOY.RULE"),
    ("MU 0.1 to 1; STEPS 1 to 2; RULE mean | median", "more than 2 knobs"),
])
def test_what_a_card_may_not_say_is_one_sentence(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_knobs(text, "Toy", schema())
    assert told in str(refusal.value) and str(refusal.value).startswith("Toy: Knobs in its card")


def test_every_card_declares_at_most_two_knobs_of_its_own_inside_their_bounds() -> None:
    """The parser refuses keys that are none and ends outside of an option's bounds."""
    numbers = {}
    for name in trainer_files():
        trainer = load_trainer(name)
        own = f"TRAINER.{trainer.name.upper()}"
        knobs = read_knobs(
            fields(card_of(name))["Knobs"], trainer.name,
            declare(default_schema(), own, trainer.options),
        )
        searched = [knob.key for knob in knobs if not knob.fixed]
        assert all(key.startswith(f"{own}.") for key in searched), name
        numbers[name] = len(searched)
    assert max(numbers.values()) == MOST and len(numbers) > 40
