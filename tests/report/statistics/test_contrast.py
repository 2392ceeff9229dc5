"""Paired differences over seeds and sets, and who differs significantly from the best."""

from __future__ import annotations

import math

import pytest
from scipy.stats import t

from fedvlm.report.statistics.contrast import Leaders, contrast, leaders
from fedvlm.report.statistics.contrast import SetNumbers as Sets


def numbers(*sets: list[float]) -> list[dict[int, float]]:
    """Return one mapping per set, seeds 1, 2, ..."""
    return [dict(enumerate(values, start=1)) for values in sets]


def ranks(*methods: Sets, lower: bool = False, exact: bool = False) -> tuple[int, list[int]] | None:
    """Return the best and its peers, where all can be compared and nobody is above the best."""
    seen = leaders(methods, lower, exact)
    assert seen is None or not (seen.above or seen.lacking)
    return None if seen is None else (seen.best, seen.peers)


def test_of_one_set_the_seeds_are_the_pairs() -> None:
    seen = contrast(numbers([50, 60, 70]), numbers([51, 62, 73]))
    half = t.ppf(0.975, 2) / math.sqrt(3)  # differences 1, 2, 3
    assert seen is not None and (seen.sets, seen.pairs, seen.mean) == (1, 3, 2.0)
    assert (seen.low, seen.high) == pytest.approx((2 - half, 2 + half)) and seen.apart == 0
    assert (seen.wins, seen.ties, seen.losses, seen.p) == (3, 0, 0, None)


def test_several_sets_are_the_units_however_many_seeds_they_have() -> None:
    a = numbers([0.0] * 5, [0.0] * 5, [0.0] * 5)
    seen = contrast(a, numbers([1.0] * 5, [2.0] * 5, [-6.0] * 5))
    half = t.ppf(0.975, 2) * math.sqrt(19) / math.sqrt(3)  # 1, 2, -6: sample variance 19
    assert seen is not None and (seen.sets, seen.pairs, seen.mean) == (3, 15, -1.0)
    assert (seen.low, seen.high) == pytest.approx((-1 - half, -1 + half))
    assert (seen.wins, seen.ties, seen.losses, seen.p) == (2, 0, 1, None)


def test_a_set_is_not_weighed_by_how_well_its_seeds_happen_to_agree() -> None:
    a = numbers([0.0, 0.0], [0.0, 0.0])
    seen = contrast(a, numbers([9.0, 9.0], [0.0, 2.0]))
    assert seen is not None and seen.mean == pytest.approx(5.0)


def test_signed_ranks_from_six_sets_on() -> None:
    a, b = numbers(*[[0.0]] * 6), numbers(*[[float(i)] for i in range(1, 7)])
    assert contrast(a[:5], b[:5]).p is None
    assert contrast(a, b).p == pytest.approx(2 / 64)


def test_only_common_seeds_and_sets_are_paired() -> None:
    seen = contrast([{1: 1.0, 2: 2.0}, {1: 5.0}], [{2: 3.0, 3: 9.0}, {2: 5.0}])
    assert seen is not None and (seen.sets, seen.pairs, seen.mean, seen.low) == (1, 1, 1.0, None)
    assert contrast([{1: 1.0}], [{2: 1.0}]) is None


def test_the_best_is_alone_only_where_all_others_are_told_apart() -> None:
    best, noisy, worse = numbers([80, 82, 81]), numbers([79, 83, 80]), numbers([70, 72.1, 71])
    assert ranks(worse, best, noisy) == (1, [2])
    assert ranks(best, worse) == (0, [])
    assert ranks(best, worse, lower=True) == (1, [])
    assert ranks(best, best) == (0, [1])  # equal: nothing to tell
    assert ranks(numbers([1.0]), numbers([2.0])) == (1, [0])  # one seed tells nothing
    assert leaders([best, [{}]]) is None and leaders([best, [{9: 1.0}]]) is None


def test_the_best_is_so_over_the_seeds_that_all_compared_have() -> None:
    """With B's fourth seed its mean would be 81, and A, above it in every pair, a peer."""
    a, b = [{1: 80.0, 2: 80.0, 3: 80.1}], [{1: 78.0, 2: 78.2, 3: 77.9, 4: 90.0}]
    assert leaders([a, b]) == Leaders(0, [], [1], [], [])
    assert leaders([b, a], lower=True) == Leaders(0, [], [1], [], [])
    late = [{1: 99.0}]  # a third of the seeds: of nobody's best
    assert leaders([late, a, b]) == Leaders(1, [], [2], [], [0])
    assert leaders([late, late, b]) is None


def test_who_is_above_the_best_in_pairs_is_no_peer() -> None:
    """One seed of a sixth set moves the plain mean below zero, and hardly the pooled one."""
    b = numbers(*[[4.0, -2.0] * 15] * 5, [-5.5])
    a = [dict.fromkeys(one, 0.0) for one in b]
    assert leaders([a, b]) == Leaders(0, [], [], [1], [])
    assert leaders([a, b], lower=True) == Leaders(1, [], [], [0], [])


@pytest.mark.parametrize("sets", [1, 2])
def test_seeds_that_happen_to_agree_are_no_certainty(sets: int) -> None:
    """0.3 - 0.1 and 0.6 - 0.4 differ in the last bit alone; equal methods do have [0, 0]."""
    low, high = numbers(*[[0.1, 0.4]] * sets), numbers(*[[0.3, 0.6]] * sets)
    seen = contrast(low, high)
    assert seen is not None and seen.mean == pytest.approx(0.2)
    assert (seen.low, seen.high, seen.detectable, seen.apart) == (None, None, None, 0)
    assert ranks(low, high) == (1, [0]) and ranks(low, high, exact=True) == (1, [])
    same = contrast(low, low)
    assert same is not None and (same.low, same.high, same.detectable) == (0, 0, 0)
