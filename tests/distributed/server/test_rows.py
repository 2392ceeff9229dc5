"""Rows of numbers that cannot be true."""

from __future__ import annotations

from typing import Any

import pytest

from fedvlm.distributed.server.rows import find_outvoted_rows, odd_row
from fedvlm.federation.server import Measure

ROW: dict[str, Any] = {"client": 1, "n": 4, "correct": 3, "accuracy": 75.0, "macro_f1": 70.0,
                       "balanced": None}
CELLS = {"confusion.0.0": 3, "confusion.1.-1": 1}
WITHHELD = dict.fromkeys(ROW) | {"client": 1, "n": 0, "correct": 0, "absent": 2}


@pytest.mark.parametrize("row", [
    ROW, ROW | {"broken": 1}, ROW | CELLS, ROW | {"unseen": 5.0}, WITHHELD,
])  # fmt: skip
def test_rows_that_can_be_true_are_taken(row: dict[str, Any]) -> None:
    assert odd_row(row, 4, Measure(confusion=True, away=True)) == ""


def test_a_client_without_test_images_has_a_row() -> None:
    assert odd_row(ROW | {"n": 0, "correct": 0, "accuracy": None}, 0, Measure()) == ""


@pytest.mark.parametrize(("row", "why"), [
    ({"client": 1}, "its row lacks 'accuracy'"),
    (ROW | {"secret": 1}, "its row has metrics that were not requested"),
    (ROW | {"new": 50.0}, "its row has metrics that were not requested"),
    (ROW | {"n": 4.0}, "the counts of its row are not whole numbers"),
    (ROW | {"n": 10**12}, "its row counts 3 right of 1000000000000 images, and 4 were told"),
    (ROW | {"correct": 5}, "its row counts 5 right of 4 images, and 4 were told"),
    (ROW | {"accuracy": 1e6}, "'accuracy' of its row is not a percentage"),
    (ROW | {"accuracy": 80.0}, "the accuracy of its row is not that of its counts"),
    (ROW | {"accuracy": None}, "the accuracy of its row is not that of its counts"),
    (ROW | {"macro_f1": -1}, "'macro_f1' of its row is not a percentage"),
    (ROW | {"broken": 9}, "'broken' of its row is not a valid count of its images"),
    (ROW | {"confusion.a.b": 1}, "the confusion counts of its row are invalid"),
    (ROW | {"confusion.0.0": 1}, "the confusion counts of its row are not of its images"),
    (WITHHELD | {"accuracy": 50.0}, "its row says that it is absent, and has numbers"),
    (WITHHELD | {"absent": 1}, "its row says that it is absent, and has numbers"),
])  # fmt: skip
def test_rows_that_cannot_be_true_are_not(row: dict[str, Any], why: str) -> None:
    assert odd_row(row, 4, Measure(confusion=True)) == why
    assert odd_row(ROW | CELLS, 4, Measure()) == "its row has metrics that were not requested"
    assert odd_row(ROW, 4, Measure(calibration=True)) == "its row lacks 'ece'"


def test_bits_are_taken_where_they_are_asked_for_and_fit() -> None:
    """Three of four images right: bits from the highest of 48 on."""
    good, asked = ROW | {"right.0": 0b1011 << 44}, Measure(answers=True)
    assert odd_row(good, 4, asked) == "" == odd_row(ROW, 4, asked)
    assert odd_row(good, 4, Measure()) == "its row has metrics that were not requested"
    for bad in (0b1111 << 44, 1.5, -1, 1 << 48, None):
        assert odd_row(good | {"right.0": bad}, 4, asked) == "the bits of its row are not of its " \
            "images", bad
    assert odd_row(good | {"right.1": 0}, 4, asked).startswith("the bits")
    assert find_outvoted_rows({0: ROW, 1: good, 2: ROW}) == {}


def test_rows_with_other_names_than_most_are_not_taken() -> None:
    new = ROW | {"new": 1.0}
    assert find_outvoted_rows({0: ROW, 1: ROW | CELLS, 2: new}).keys() == {2}
    assert find_outvoted_rows({0: new, 1: new, 2: ROW}).keys() == {2}
    assert find_outvoted_rows({0: new, 1: ROW}).keys() == {0} and not find_outvoted_rows({})
