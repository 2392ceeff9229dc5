"""Notes that compare a method with its baselines, on numbers made up."""

from __future__ import annotations

from typing import Any

import pytest

from fedvlm.evaluation.references.suite import NAMES
from fedvlm.job.results import against
from fedvlm.runs.verify import beside
from fedvlm.runs.verify.answer import BASELINES, federation_answer

FOUND: dict[str, dict[str, Any]] = {
    name: {"kind": kind, "personal": value, "personal_worst": 1.0, "how": "",
           "clients": [{"client": c, "accuracy": a} for c, a in enumerate(each)]}
    for name, kind, value, each in [
        ("majority", "alone", 40.0, (40.0, 40.0, None)), ("zero_shot", "alone", None, ()),
        ("logreg", "alone", 55.0, (60.0, 50.0, None)), ("afl", "together", 58.0, (58.0,) * 3),
        ("pooled", "bound", 90.0, (90.0,) * 3),
    ]
}
CLIENTS = [{"client": 0, "accuracy": 59.0}, {"client": 1, "accuracy": 50.0},
           {"client": 2, "accuracy": None}]


def said(personal: float, kind: str = "together") -> list[tuple[str, float]]:
    return [(one["reference"], one["personal"])
            for one in against.below("FedAvg", personal, FOUND, kind)]


def test_below_what_is_of_its_kind_the_best_first() -> None:
    assert said(41.2) == [("afl", 58.0), ("logreg", 55.0)]
    assert said(41.2, "alone") == [("logreg", 55.0)]  # AFL is no reference of who sends nothing
    assert said(58.0) == [] and said(58.0 - 1e-12) == []  # equal; the bound is nobody's kind
    assert against.below("FedAvg", None, FOUND, "together") == []
    sentence = against.below("FedAvg", 41.2, FOUND, "alone")[0]["sentence"]
    assert sentence == "FedAvg personal accuracy 41.2 is below local logistic regression 55.0"


def test_gain_is_over_the_best_alone() -> None:
    gain = beside.gain(57.0, FOUND)
    assert gain == {
        "points": 2.0, "reference": "logreg", "personal": 55.0, "untuned": "method"
    }
    only = {"majority": FOUND["majority"]}
    assert (beside.gain(30.0, only) or {})["points"] == -10.0
    assert (beside.gain(30.0, only) or {})["untuned"] == "both"
    assert beside.gain(None, FOUND) is None and beside.gain(1.0, {}) is None


def test_whom_federation_hurts() -> None:
    """Client 0 has more alone; client 1 the same; client 2 has no test image."""
    assert beside.hurt(CLIENTS, FOUND) == {
        "share": 50.0, "clients": [0], "of": 2, "reference": "logreg"
    }
    assert beside.hurt(CLIENTS, {}) is None and beside.hurt([], FOUND) is None


def test_every_reference_has_words() -> None:
    assert set(BASELINES) == set(NAMES) and set(against.ROWS) < set(NAMES)
    rows = against.table_rows(FOUND)
    assert list(rows) == ["most frequent class", "logistic regression", "AFL (together)",
                          "pooled (bound)"]
    assert rows["AFL (together)"] == {"personal": 58.0, "personal_worst": 1.0}
    assert rows["pooled (bound)"]["personal"] == pytest.approx(90.0)


def records(*personal: float) -> list[dict[str, Any]]:
    return [{"personal": value} for value in (0.0, *personal)]


def answer(personal: float, sent: int = 1) -> dict[str, Any] | None:
    """Return the answer of ten clients with a hundred test images each."""
    found = {
        name: {"kind": kind, "personal": value, "personal_balanced": value,
               "clients": [{"client": c, "n": 100, "accuracy": value} for c in range(10)]}
        for name, kind, value in (("logreg", "alone", 60.0), ("afl", "together", 80.0),
                                  ("pooled", "bound", 90.0))
    }
    rows = [{"client": c, "n": 100, "accuracy": personal} for c in range(10)]
    return federation_answer({
        "last": {"personal": personal, "personal_balanced": personal, "clients": rows},
        "references": found, "spent": {"bytes_up": sent, "bytes_down": 0},
    })


RISING = records(10, 20, 30, 40, 50, 60, 70, 72)
FLAT = records(*[70.0] * 8)
AFL = {"afl": {"personal": 80.0}}


@pytest.mark.parametrize(("personal", "history", "trainer", "flags"), [
    (72.0, RISING, "FedTV", ["--rounds", "16"]),
    (72.0, FLAT, "FedTV", ["--trainer", "FedAvg", "--peft", "head"]),
    (50.0, FLAT, "FedTV", ["--trainer", "LocalOnly", "--peft", "head"]),
    (50.0, records(10, 50), "FedTV", ["--trainer", "LocalOnly", "--peft", "head"]),  # too short
    (72.0, FLAT, "FedAvg", ["--trainer", "AFL"]),
])
def test_the_next_step(
    personal: float, history: list[dict[str, Any]], trainer: str, flags: list[str]
) -> None:
    step = against.next_step(answer(personal), AFL, history, trainer, "head", 0.5)
    assert step is not None and step["flags"] == flags


def test_no_next_step_where_nothing_cheap_helps() -> None:
    assert against.next_step(answer(92.0), AFL, RISING, "FedTV", "", 0.5) is None  # above the bound
    assert against.next_step(answer(50.0, sent=0), AFL, FLAT, "LocalOnly", "head", 0.5) is None
    assert against.next_step(None, AFL, FLAT, "FedTV", "", 0.5) is None


def test_accuracy_rises_by_quarters() -> None:
    assert against.last_rise(RISING) == 71.0 - 55.0
    assert against.last_rise(FLAT) == 0.0 and against.last_rise(records(1, 2, 3)) == 0.0


def test_a_mad_rate_is_named() -> None:
    """Guessing among ten classes has a loss of 2.3; three times that is no training."""
    found = AFL | {"chance": {"personal": 10.0}}
    for loss, flags in ((40.0, ["--lr", "0.05"]), (6.8, ["--trainer", "LocalOnly", "--peft",
                                                         "head"])):
        history = [*FLAT[:-1], {"personal": 20.0, "train": {"0": {"w/loss": loss}}}]
        step = against.next_step(answer(20.0), found, history, "FedAvg", "head", 0.5)
        assert step is not None and step["flags"] == flags


def test_models_worse_than_untrained_ones_say_a_lower_rate() -> None:
    found = AFL | {"chance": {"personal": 10.0}}
    for start, loss, flags in ((60.0, 2.8, ["--lr", "0.05"]), (60.0, 1.0, None), (20.0, 2.8, None)):
        history = [{"personal": start}, *FLAT[1:-1],
                   {"personal": 20.0, "train": {"0": {"w/loss": loss}}}]
        step = against.next_step(answer(20.0), found, history, "FedAvg", "head", 0.5)
        assert step is not None
        assert step["flags"] == (flags or ["--trainer", "LocalOnly", "--peft", "head"])
