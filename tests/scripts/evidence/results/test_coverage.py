"""Intervals hold the truth as often as they say, and equal methods have no winner."""

from __future__ import annotations

import pytest

from evidence.commands import main
from evidence.results.coverage import coverage, false_winners, new_set


def test_ten_seeds_hold_the_truth_and_images_are_part_of_it() -> None:
    """150 draws: three standard errors are 5 points; seeds alone are too sure."""
    seen = coverage(4, 10, 150)
    assert seen.held["named"] >= 90 and seen.held["bits"] >= 95 and seen.held["counts"] >= 95
    assert seen.width["seeds"] < seen.width["named"] < seen.width["bits"] < seen.width["counts"]
    assert new_set(4, 5, 400)[0] >= 92


def test_sixteen_equal_methods_have_a_winner_in_at_most_one_try_of_twenty() -> None:
    seen = false_winners(4, 5, 150)
    assert seen["rival, uncorrected"] > 8, "what choosing the best of 16 does without correction"
    assert max(seen["rival, max-t"], seen["worse"], seen["new set"]) <= 5


@pytest.mark.slow
@pytest.mark.parametrize("sets", [1, 2, 4])
@pytest.mark.parametrize("seeds", [10, 20])
def test_coverage_of_all_designs_of_ten_seeds_or_more(sets: int, seeds: int) -> None:
    """At least 0.93, as intervals of ten seeds or more promise."""
    seen = coverage(sets, seeds, 1000)
    assert min(seen.held[kind] for kind in ("named", "bits", "counts")) >= 93.0
    assert min(new_set(k, seeds, 4000)[0] for k in (4, 6, 10)) >= 93.0


@pytest.mark.slow
@pytest.mark.parametrize(("sets", "seeds"), [(1, 5), (2, 5), (4, 3), (4, 5), (4, 10)])
def test_false_winners_of_all_designs(sets: int, seeds: int) -> None:
    seen = false_winners(sets, seeds, 1000)
    assert max(seen["rival, max-t"], seen["worse"], seen["new set"]) <= 5.0 + 1.4


def test_the_command_prints_every_design(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coverage", "--draws", "2"]) == 0
    told = capsys.readouterr().out
    assert "images, named" in told and "    4    10" in told and "16 equal methods" in told
