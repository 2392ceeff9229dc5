"""Notes that compare a method with its baselines, on numbers made up."""

from __future__ import annotations

from typing import Any

import pytest

from fedvlm.evaluation.references.suite import NAMES
from fedvlm.job.results import against
from fedvlm.runs.verify import beside

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


def test_one_sentence() -> None:
    last = {"personal": 41.2}
    worse = {"below": against.below("FedAvg", 41.2, FOUND, "together"), "last": last}
    (line,) = against.sentences("FedAvg", worse)
    assert line == ("FedAvg personal accuracy 41.2 is below these baselines: AFL (ridge "
                    "regression, one round) 58.0, local logistic regression 55.0")
    alone = {"below": against.below("FedAvg", 41.2, FOUND, "alone"), "last": last}
    (line,) = against.sentences("FedAvg", alone)
    assert line == ("FedAvg personal accuracy 41.2 is below this baseline: local logistic "
                    "regression 55.0")
    better = {"below": [], "gain": beside.gain(59.0, FOUND), "hurt": beside.hurt(CLIENTS, FOUND)}
    (line,) = against.sentences("FedAvg", better)
    assert line == ("FedAvg personal accuracy is 4.0 points above the best baseline without "
                    "communication: local logistic regression 55.0; 1 of 2 clients are below "
                    "their local logistic regression")
    assert against.sentences("FedAvg", {}) == []


def test_every_reference_has_words() -> None:
    assert set(against.WORDS) == set(NAMES) and set(against.ROWS) < set(NAMES)
    rows = against.table_rows(FOUND)
    assert list(rows) == ["most frequent class", "logistic regression", "AFL (together)",
                          "pooled (bound)"]
    assert rows["AFL (together)"] == {"personal": 58.0, "personal_worst": 1.0}
    assert rows["pooled (bound)"]["personal"] == pytest.approx(90.0)
