"""The space of a search: the same for every method, and its card's knobs."""

from __future__ import annotations

import pytest

from fedvlm.config.knobs import Knob
from fedvlm.sweep.tune.space import space_of

CONFIG = {"OPTIM.NAME": "sgd", "OPTIM.LR": 0.02, "OPTIM.HEAD.LR": 0.0, "FED.LOCAL_EPOCHS": 1,
          "TRAINER.TOY.MU": 0.1}
MU = Knob("TRAINER.TOY.MU", (), 0.01, 1.0, log=True)
FIXED = Knob("OPTIM.NAME", ("sgd",))


def keys(space: object) -> list[str]:
    return [knob.key for knob in space.knobs]  # type: ignore[attr-defined]


def test_optimiser_a_rate_for_each_role_local_epochs_and_the_knobs() -> None:
    space = space_of([MU], {"adapter", "head"}, CONFIG, set())
    assert keys(space) == [
        "OPTIM.NAME", "OPTIM.LR", "OPTIM.HEAD.LR", "FED.LOCAL_EPOCHS", "TRAINER.TOY.MU",
    ]
    assert space.rates == ("OPTIM.LR", "OPTIM.HEAD.LR") and not space.constants


def test_what_the_plan_or_the_card_fixes_is_not_searched() -> None:
    fixed = {"FED.LOCAL_EPOCHS", "TRAINER.TOY.MU"}
    assert keys(space_of([MU], {"head"}, CONFIG, fixed)) == ["OPTIM.NAME", "OPTIM.LR"]
    plain = space_of([FIXED, MU], {"adapter", "head"}, CONFIG, {"FED.LOCAL_STEPS"})
    assert keys(plain) == ["OPTIM.LR", "TRAINER.TOY.MU"] and plain.constants == {
        "OPTIM.NAME": "sgd",
    }
    assert keys(space_of([], (), CONFIG, set())) == []  # it takes no step


def test_adamw_gets_a_tenth_of_the_rate_and_numbers_three_digits() -> None:
    space = space_of([MU], {"head"}, CONFIG, {"FED.LOCAL_EPOCHS"})
    point = {"OPTIM.NAME": "sgd", "OPTIM.LR": 0.123456, "TRAINER.TOY.MU": 0.5}
    words = {"OPTIM.NAME": "sgd", "OPTIM.LR": "0.123", "TRAINER.TOY.MU": "0.5"}
    assert space.settings(point) == words
    adamw = space.settings(point | {"OPTIM.NAME": "adamw"})
    assert adamw == words | {"OPTIM.NAME": "adamw", "OPTIM.LR": "0.0123"}


def test_the_method_as_it_comes_is_a_point_or_lies_outside() -> None:
    space = space_of([MU], {"adapter", "head"}, CONFIG, set())
    assert space.point(CONFIG) == {
        "OPTIM.NAME": "sgd", "OPTIM.LR": 0.02, "OPTIM.HEAD.LR": 0.02,  # 0: as the others
        "FED.LOCAL_EPOCHS": "1", "TRAINER.TOY.MU": 0.1,
    }
    adamw = space.point(CONFIG | {"OPTIM.NAME": "adamw"})
    assert adamw is not None and adamw["OPTIM.LR"] == pytest.approx(0.2)
    assert space.point(CONFIG | {"OPTIM.LR": 50.0}) is None
    assert space.point(CONFIG | {"FED.LOCAL_EPOCHS": 3}) is None
    assert space.point(CONFIG | {"OPTIM.NAME": "adam"}) is None
