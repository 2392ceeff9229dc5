"""Intervals of a mean difference against closed forms and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import nct, t

from fedvlm.report.statistics.intervals import (
    Component,
    detectable,
    prediction_interval,
    quantile,
    seed_components,
    standard_error,
)


def test_sets_of_several_seeds_have_their_own_variances() -> None:
    """Sample variances 2 and 8 of 2 and 3 seeds: (2/2 + 8/3) / 4, Welch's degrees of freedom."""
    parts = seed_components([[1.0, 3.0], [0.0, 0.0, math.sqrt(24.0)]])
    assert [(p.variance, p.df) for p in parts] == [
        (pytest.approx(0.25), 1), (pytest.approx(2 / 3), 2)]
    total = standard_error(parts)
    assert total is not None and total.variance == pytest.approx(11 / 12)
    assert total.df == pytest.approx((11 / 12) ** 2 / (0.25**2 + (2 / 3) ** 2 / 2))


def test_a_set_of_one_seed_lends_the_others_variance() -> None:
    total = standard_error(seed_components([[1.0, 3.0], [9.0]]))
    assert total is not None and (total.variance, total.df) == (pytest.approx(0.75), 1)
    assert seed_components([[1.0], [2.0]]) == [] and standard_error([]) is None
    still = standard_error([Component(0.0, 2), Component(0.0, 3)])
    assert still is not None and (still.variance, still.df) == (0.0, 5)


def test_a_prediction_wants_four_sources() -> None:
    assert prediction_interval([1.0, 2.0, 6.0]) is None
    half = t.ppf(0.975, 3) * math.sqrt(29 / 3) * math.sqrt(1.25)  # of 1, 2, 3, 8
    assert prediction_interval([1.0, 2.0, 3.0, 8.0]) == pytest.approx((3.5 - half, 3.5 + half))


def test_a_winner_of_many_needs_more() -> None:
    assert quantile(7.0) == pytest.approx(t.ppf(0.975, 7))
    assert quantile(7.0, 16) == pytest.approx(t.ppf((1 + 0.95 ** (1 / 16)) / 2, 7))


def test_a_new_set_is_where_it_is_predicted() -> None:
    stream = np.random.default_rng(0)
    draws = stream.normal(2.0, 3.0, (2000, 5))
    held = [low <= new <= high for *effects, new in draws
            for low, high in [prediction_interval(effects) or (0, 0)]]
    assert 0.935 <= np.mean(held) <= 0.965


def test_detectable_effect_is_seen_in_80_percent() -> None:
    for df in (2, 3, 10):
        assert nct.sf(t.ppf(0.975, df), df, detectable(df)) == pytest.approx(0.8, abs=1e-6)
    assert detectable(10**6) == pytest.approx(1.959964 + 0.841621, abs=1e-4)
