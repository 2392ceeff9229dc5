"""Numbers computed again from the clients' rows."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

from fedvlm.runs.verify.numbers import problems, protocol_problems

RECORD: dict[str, Any] = {
    "round": 3, "personal": 50.0, "personal_std": 50.0, "personal_worst": 0.0,
    "personal_worst_decile": 0.0, "personal_micro": 75.0, "base_all": 40.0, "new": 60.0,
    "hm2": 48.0, "hm3": 3 / (1 / 50 + 1 / 40 + 1 / 60), "cm": 49.0, "global": 30.0,
    "target.Cars": 10.0, "target.Pets": 20.0, "targets": 15.0, "unseen_clients": 25.0,
    "train": {"0": {"loss": 140.0, "new": -3.0}},
    "clients": [
        {"client": 0, "n": 3, "correct": 3, "accuracy": 100.0, "base_all": 40.0, "new": 60.0},
        {"client": 1, "n": 1, "correct": 0, "accuracy": 0.0, "base_all": 40.0, "new": 60.0},
        {"client": 2, "n": 0, "correct": 0, "accuracy": None, "base_all": None, "new": None},
    ],
    "unseen_clients_rows": [{"client": 9, "n": 4, "correct": 1, "accuracy": 25.0}],
}


def said(**changes: Any) -> str:
    record = copy.deepcopy(RECORD)
    for place, value in changes.items():
        *path, name = place.split("__")
        node: Any = record
        for part in path:
            node = node[int(part) if part.isdigit() else part]
        node[name] = value
    return "; ".join(problems(record))


def test_true_numbers_are_left_in_peace() -> None:
    assert said() == ""


@pytest.mark.parametrize(("place", "value", "words"), [
    ("personal", 924.0, "personal is 924.0: not a percentage"),
    ("personal", 50.1, "personal is 50.1, its clients' rows give 50.0"),
    ("personal", None, "personal is None, its clients' rows give 50.0"),
    ("personal_std", 1.0, "personal_std"), ("personal_worst", 1.0, "personal_worst"),
    ("personal_worst_decile", 1.0, "decile"), ("personal_micro", 74.0, "give 75.0"),
    ("base_all", 41.0, "base_all"), ("new", 61.0, "new"),
    ("hm2", 49.0, "hm2 is 49.0, its clients' rows give 4"),
    ("hm3", 49.0, "hm3"), ("cm", 50.0, "give 49.0"), ("targets", 16.0, "give 15.0"),
    ("unseen_clients", 26.0, "unseen_clients is 26.0"), ("global", -1.0, "not a percentage"),
    ("global", math.nan, "global is nan"), ("global", True, "not a percentage"),
    ("target.Cars", 101.0, "target.Cars is 101.0: not a percentage"),
    ("clients__0__correct", 4, "client 0 has 4 correct of 3"),
    ("clients__0__correct", 2, "client 0 has 2 correct of 3, accuracy 100.0"),
    ("clients__1__n", -1, "client 1 has 0 correct of -1"),
    ("clients__1__client", 0, "client 0 appears twice"),
    ("clients__2__accuracy", 0.0, "client 2 has 0 correct of 0, accuracy 0.0"),
    ("clients__1", "row", "clients.1 is not a client row"),
    ("clients__1__client", [1], "clients.1: client [1] is not a number"),
    ("unseen_clients_rows__0__accuracy", 26.0, "client 9 has 1 correct of 4"),
])  # fmt: skip
def test_a_number_that_cannot_be_is_named(place: str, value: Any, words: str) -> None:
    if place == "clients__1":
        record = copy.deepcopy(RECORD)
        record["clients"][1] = value
        assert words in "; ".join(problems(record))
    else:
        assert words in said(**{place: value})


@pytest.mark.parametrize(("place", "words"), [
    ("clients__0__correct", "client 0 has a number of 1,329 bits correct of 3"),
    ("clients__0__n", "client 0 has 3 correct of a number of 1,329 bits"),
    ("clients__0__accuracy", "accuracy is a number of 1,329 bits: not a percentage"),
    ("personal", "personal is a number of 1,329 bits, its clients' rows give 50.0"),
])
def test_a_number_that_no_float_holds_is_named(place: str, words: str) -> None:
    assert words in said(**{place: 10**400})


def test_confusion_counts_are_no_percentages() -> None:
    counts = {"personal": [[0, 0, 140], [1, -1, 3]], "global": [[1, 0, 924]]}
    assert said(confusion=counts) == ""
    assert list(problems({"last": RECORD, "confusion": counts})) == []


def test_numbers_of_a_section_are_found_wherever_they_stand() -> None:
    results = {"references": {"ridge": RECORD | {"personal_micro": 1.0}}, "table": [{"new": 101}]}
    assert list(problems(results)) == [
        "table.0.new is 101: not a percentage",
        "references.ridge.personal_micro is 1.0, its clients' rows give 75.0",
    ]


def test_a_protocol_of_another_config_is_named() -> None:
    identity = {"config": {"SEED": 1, "FED.ROUNDS": 5}, "data": "d", "backbone": "b"}
    protocol = {"seed": 1, "rounds": 5, "data_digest": "d", "shots": 16}
    assert list(protocol_problems(protocol, identity)) == []
    (clause,) = protocol_problems(protocol | {"seed": 2}, identity)
    assert clause == "protocol.seed is 2, the manifest says 1"
    assert len(list(protocol_problems(protocol | {"data_digest": "e", "rounds": 6}, identity))) == 2


@pytest.mark.parametrize(("key", "value"), [
    ("held_out", "sketch"), ("server_holdout", 2), ("unseen_clients", 3), ("views", 4),
    ("targets", "Digits"), ("cohort", 5), ("setting", "personal"),
    ("partition", "dirichlet-1-K60-f1"), ("partition", "dirichlet-1-K6-f0.5"), ("proxy", "images"),
])  # fmt: skip
def test_what_the_protocol_says_follows_from_the_config(key: str, value: object) -> None:
    """Also where the config lacks the key: then it is at its neutral value."""
    identity = {"config": {"FED.CLIENTS": 6, "FED.FRAC": 1.0, "DATASET.SUBSAMPLE_CLASSES": "base"}}
    protocol = {"setting": "base2new", "partition": "dirichlet-1-K6-f1", "held_out": "",
                "proxy": "", "server_holdout": 0, "unseen_clients": 0, "cohort": 0,
                "targets": "", "views": 1}
    assert list(protocol_problems(protocol, identity)) == []
    (clause,) = protocol_problems(protocol | {key: value}, identity)
    assert clause.startswith(f"protocol.{key} is {value!r}, the manifest says ")
