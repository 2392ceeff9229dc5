"""Notes about baselines follow from their numbers; a false one is named."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from fedvlm.evaluation.references import suite
from fedvlm.runs.verify import beside

FOUND: dict[str, Any] = {
    "majority": {"kind": "alone", "personal": 40.0, "clients": []},
    "logreg": {"kind": "alone", "personal": 55.0, "clients": [
        {"client": 0, "accuracy": 60.0}, {"client": 1, "accuracy": 50.0}]},
    "afl": {"kind": "together", "personal": 58.0, "clients": []},
}
CLIENTS = [{"client": 0, "accuracy": 59.0}, {"client": 1, "accuracy": 55.0}]
RESULTS: dict[str, Any] = {
    "last": {"personal": 57.0, "clients": CLIENTS}, "references": FOUND,
    "gain": beside.gain(57.0, FOUND), "hurt": beside.hurt(CLIENTS, FOUND),
    "below": [{"reference": "afl", "personal": 58.0}], "spent": {"bytes_up": 4, "bytes_down": 4},
}


def test_kinds_are_those_of_the_evaluation() -> None:
    assert (beside.ALONE, beside.TOGETHER) == (suite.ALONE, suite.TOGETHER)


def test_what_follows_is_left_in_peace() -> None:
    assert list(beside.disagreements(RESULTS)) == []
    assert list(beside.disagreements({"last": RESULTS["last"], "gain": None})) == []


def test_older_results_counted_from_each_client_s_own_regression() -> None:
    """And said nothing where there was none, as of captions."""
    names = {"kind": "alone", "personal": 56.0, "clients": [
        {"client": 0, "accuracy": 20.0}, {"client": 1, "accuracy": 92.0}]}
    found = FOUND | {"logreg_names": names}
    old = beside.hurt(CLIENTS, FOUND, "logreg")
    assert beside.hurt(CLIENTS, found) != old == beside.hurt_as_told(old, CLIENTS, found)
    assert beside.hurt_as_told({"reference": "logreg_names"}, CLIENTS, found) == beside.hurt(
        CLIENTS, found)
    bare = {"zero_shot": FOUND["logreg"]}
    assert beside.hurt(CLIENTS, bare) is not None
    assert beside.hurt_as_told(None, CLIENTS, bare) is None
    captions = [row | {"i2t_r1": 3.0} for row in CLIENTS]
    assert beside.hurt(captions, bare) is None


@pytest.mark.parametrize(("change", "words"), [
    (lambda r: r["gain"].update(points=22.0), "gain is points 22, reference logreg"),
    (lambda r: r["gain"].update(reference="majority"), "the baselines give points 2, reference"),
    (lambda r: r.update(gain=None), "gain is None"),
    (lambda r: r["hurt"].update(share=0.0), "hurt is share 0"),
    (lambda r: r["hurt"].update(clients=[]), "the baselines give share 50, clients [0]"),
    (lambda r: r.update(below=[]), "below is nothing, the baselines give afl 58"),
    (lambda r: r["spent"].update(bytes_up=0, bytes_down=0), "below is afl 58, the baselines give "),
])  # fmt: skip
def test_what_does_not_is_named(change: Callable[[dict[str, Any]], Any], words: str) -> None:
    results = copy.deepcopy(RESULTS)
    change(results)
    (clause,) = beside.disagreements(results)
    assert words in clause
