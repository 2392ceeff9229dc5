"""Random-effects means against closed forms and simulation-free identities."""

from __future__ import annotations

import math

import pytest
from scipy.stats import nct, t

from fedvlm.report.statistics.pooled import detectable, pooled_variance, random_effects


def test_without_variances_it_is_the_t_interval_over_sets() -> None:
    pooled = random_effects([1.0, 2.0, 6.0], [0.0] * 3)
    half = t.ppf(0.975, 2) * math.sqrt(7.0) / math.sqrt(3)  # sample variance 7
    assert (pooled.n, pooled.mean, pooled.spread) == (3, 3.0, math.sqrt(7.0))
    assert (pooled.low, pooled.high) == pytest.approx((3 - half, 3 + half))


def test_equal_variances_move_the_spread_alone() -> None:
    """With weights that are equal the interval depends on the sample variance, 7, only."""
    plain, some = random_effects([1.0, 2.0, 6.0], [0.0] * 3), random_effects([1, 2, 6], [3.0] * 3)
    assert some.spread == pytest.approx(2.0)  # 7 = 4 between + 3 within
    assert (some.low, some.high) == pytest.approx((plain.low, plain.high))


def test_sets_that_agree_are_not_narrower_than_their_seeds_allow() -> None:
    pooled = random_effects([1.0, 1.0, 1.0, 1.0], [4.0] * 4)
    half = t.ppf(0.975, 3) * math.sqrt(4.0 / 4)
    assert pooled.spread == 0.0 and pooled.high == pytest.approx(1 + half)


def test_unequal_variances_solve_paule_and_mandels_equation() -> None:
    effects, variances = [0.0, 4.0, 10.0, 3.0], [1.0, 2.0, 8.0, 0.5]
    pooled = random_effects(effects, variances)
    weights = [1 / (v + pooled.spread**2) for v in variances]
    mean = sum(w * y for w, y in zip(weights, effects)) / sum(weights)
    assert pooled.mean == pytest.approx(mean)
    assert sum(w * (y - mean) ** 2 for w, y in zip(weights, effects)) == pytest.approx(3.0)
    assert pooled.high == pytest.approx(mean + t.ppf(0.975, 3) / math.sqrt(sum(weights)))


def test_one_set_has_a_mean_alone_and_wrong_input_is_refused() -> None:
    one = random_effects([2.0], [1.0])
    assert (one.mean, one.low, one.high, one.detectable) == (2.0, None, None, None)
    for effects, variances in (([], []), ([1.0], []), ([1.0, 2.0], [0.0, 1.0]), ([1.0], [-1.0])):
        with pytest.raises(ValueError):
            random_effects(effects, variances)


def test_detectable_effect_is_seen_in_80_percent() -> None:
    for df in (2, 3, 10):
        assert nct.sf(t.ppf(0.975, df), df, detectable(df)) == pytest.approx(0.8, abs=1e-6)
    assert detectable(10**6) == pytest.approx(1.959964 + 0.841621, abs=1e-4)
    pooled = random_effects([1.0, 2.0, 6.0], [0.0] * 3)
    assert pooled.detectable == pytest.approx(detectable(2) * math.sqrt(7 / 3))


def test_pooled_variance() -> None:
    assert pooled_variance([[1.0, 3.0], [5.0], [2.0, 2.0, 5.0]]) == pytest.approx((2 + 6) / 3)
    assert pooled_variance([[1.0], []]) == 0.0
