"""Mean and spread: closed forms, and the bits of what they took the place of."""

from __future__ import annotations

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvlm.core.stats import drop_missing, mean, population_std, sample_std, t_interval

numbers = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30)


def test_over_clients() -> None:
    values = [50.0, None, 100.0, 75.0]
    assert drop_missing(values) == [50.0, 100.0, 75.0] and mean(values) == 75.0
    assert population_std(values) == pytest.approx(np.std([50, 100, 75]))
    assert sample_std(values) == 25.0
    for fn in (mean, sample_std, population_std, t_interval):
        assert fn([None, None]) is None and fn([]) is None


def test_one_value_has_a_mean_and_no_sample_spread() -> None:
    assert mean([3]) == 3.0 and population_std([3.0]) == 0.0
    assert sample_std([3.0]) is None and t_interval([3.0]) is None


@settings(deadline=None)
@given(numbers)
def test_the_bits_are_those_of_the_functions_that_were_many(values: list[float]) -> None:
    assert mean(values) == math.fsum(values) / len(values) == statistics.fmean(values)
    assert sample_std(values) == statistics.stdev(values)
    assert population_std(values) == float(np.std(values))
    assert mean(iter(values)) == mean(values)


def test_the_order_of_the_values_moves_no_bit_of_a_mean() -> None:
    values = [1e16, 1.0, -1e16, 0.1, 0.2]
    assert len({mean(order) for order in itertools.permutations(values)}) == 1
    assert mean(values) == 1.3 / 5  # a plain sum from the left gives 0.06


def test_students_interval() -> None:
    # t(0.975, 2) = 4.302652...; the deviations of 1, 2, 3 have a standard deviation of 1
    assert t_interval([1.0, 2.0, 3.0]) == pytest.approx(4.302652729911275 / math.sqrt(3))
    assert t_interval([1.0, 2.0, 3.0], level=0.5) == pytest.approx(0.816496580927726 / math.sqrt(3))
