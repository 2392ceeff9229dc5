"""Paired differences over seeds and sets, and who differs significantly from the best."""

from __future__ import annotations

import math

import pytest
from scipy.stats import t

from fedvlm.report.statistics.contrast import BOUND, SEEDS_ALONE, Leaders, contrast, leaders
from fedvlm.report.statistics.contrast import SetNumbers as Sets
from fedvlm.report.statistics.images import ClientAnswers


def numbers(*sets: list[float]) -> list[dict[int, float]]:
    """Return one mapping per set, seeds 1, 2, ..."""
    return [dict(enumerate(values, start=1)) for values in sets]


def ranks(*methods: Sets, lower: bool = False, exact: bool = False) -> tuple[int, list[int]] | None:
    """Return the best and its peers, where all can be compared and nobody lacks seeds."""
    seen = leaders(methods, lower, exact)
    assert seen is None or not seen.lacking
    return None if seen is None else (seen.best, seen.peers)


def test_of_one_set_the_seeds_are_the_pairs() -> None:
    seen = contrast(numbers([50, 60, 70]), numbers([51, 62, 73]))
    half = t.ppf(0.975, 2) / math.sqrt(3)  # differences 1, 2, 3
    assert seen is not None and (seen.sets, seen.pairs, seen.mean) == (1, 3, 2.0)
    assert (seen.low, seen.high) == pytest.approx((2 - half, 2 + half)) and seen.apart == 0
    assert (seen.wins, seen.ties, seen.losses) == (3, 0, 0)


def test_these_sets_and_a_new_one_are_two_questions() -> None:
    """+1, +2, -6, +7 in every seed, give or take 1: sure of these sets, of no fifth."""
    b = numbers(*([x - 1, x, x + 1] for x in (1.0, 2.0, -6.0, 7.0)))
    a = [dict.fromkeys(one, 0.0) for one in b]
    seen = contrast(a, b)
    assert seen is not None and (seen.sets, seen.pairs, seen.seeds, seen.mean) == (4, 12, 3, 1.0)
    half = t.ppf(0.975, 8) * math.sqrt(1 / 3) / 2  # four variances of 1, each of 2 df
    assert (seen.low, seen.high) == pytest.approx((1 - half, 1 + half)) and seen.apart == 1
    spread = math.sqrt((0 + 1 + 49 + 36) / 3)
    half = t.ppf(0.975, 3) * spread * math.sqrt(1.25)
    assert seen.ahead == pytest.approx((1 - half, 1 + half)) and seen.apart_ahead == 0
    assert (seen.least, seen.most, seen.wins, seen.losses) == (-6, 7, 3, 1)
    one = contrast(a, b, sources=("CIFAR", "CIFAR", "DTD", "EuroSAT"))
    assert one is not None and (one.sources, one.ahead, one.apart) == (3, None, 1)


def test_a_set_is_not_weighed_by_how_well_its_seeds_happen_to_agree() -> None:
    a = numbers([0.0, 0.0], [0.0, 0.0])
    seen = contrast(a, numbers([9.0, 9.0], [0.0, 2.0]))
    assert seen is not None and seen.mean == pytest.approx(5.0)


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
    assert leaders([a, b]) == Leaders(0, [], [1], [])
    assert leaders([b, a], lower=True) == Leaders(0, [], [1], [])
    late = [{1: 99.0}]  # a third of the seeds: of nobody's best
    assert leaders([late, a, b]) == Leaders(1, [], [2], [0])
    assert leaders([late, late, b]) is None


def test_the_best_of_many_must_be_further_away_than_one_of_two() -> None:
    """At 5 degrees of freedom: significant of two methods (p 0.02), not of the best of 16."""
    low, high = numbers([0.0, 1.0, 2.0, 3.0, 1.5, 2.5]), numbers([2.0, 4.4, 3.0, 4.2, 5.0, 3.4])
    seen = contrast(low, high)
    assert seen is not None and seen.apart == 1 and seen.apart_of_best(2) == 1
    assert seen.apart_of_best(16) == 0 and seen.apart_among(1) == 1 and seen.apart_among(40) == 0
    assert ranks(low, high) == (1, []) and ranks(*[low] * 15, high) == (15, list(range(15)))


def test_test_images_widen_what_all_seeds_share() -> None:
    """p(1-p) of 0.5 and 0.8 over 100 images: (0.25 + 0.16) / 100 beside the seeds' variance."""
    a, b = numbers([50.0, 50.0]), numbers([79.0, 81.0])
    counts = [{s: {"0": ClientAnswers(100, r)} for s in (1, 2)} for r in (50, 80)]
    plain, wide = contrast(a, b), contrast(a, b, answers=([counts[0]], [counts[1]]))
    assert plain is not None and plain.images == SEEDS_ALONE and plain.error == pytest.approx(1.0)
    assert wide is not None and wide.images == BOUND
    assert wide.error == pytest.approx(math.sqrt(1 + 41.0))
    unlike = [{1: {"9": ClientAnswers(100, 80)}}]
    other = contrast(a, b, answers=([counts[0]], unlike))
    assert other is not None and other.images == SEEDS_ALONE, "other clients: nothing to pair"


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
