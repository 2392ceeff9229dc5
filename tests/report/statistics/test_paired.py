"""Paired statistics against closed forms."""

from __future__ import annotations

import math

import pytest

from fedvlm.report.statistics.paired import bootstrap, holm, mcnemar, pair_statistics, wilcoxon


def test_mean_difference_and_t_interval() -> None:
    found = pair_statistics([10.0, 20.0, 30.0, 5.0], [11.0, 22.0, 33.0, 5.0])
    assert found is not None
    assert (found.n, found.difference, found.a, found.b) == (4, 1.5, 16.25, 17.75)
    assert found.std == pytest.approx(math.sqrt(5 / 3))
    half = 3.182446305284263 * math.sqrt(5 / 3) / 2  # t(0.975, 3 degrees of freedom)
    assert found.t == pytest.approx((1.5 - half, 1.5 + half))
    assert (found.wins, found.ties, found.losses) == (3, 1, 0)
    assert found.wilcoxon is None  # three unequal pairs


def test_one_pair_has_no_interval_and_none_has_nothing() -> None:
    found = pair_statistics([1.0], [3.0])
    assert found is not None and found.difference == 2.0
    assert found.std is None and found.t is None and found.bootstrap is None
    assert pair_statistics([], []) is None
    with pytest.raises(ValueError):
        pair_statistics([1.0], [])


def test_equal_numbers() -> None:
    found = pair_statistics([5.0] * 8, [5.0] * 8)
    assert found is not None
    assert found.t == (0.0, 0.0) and found.bootstrap is None and found.ties == 8
    assert found.wilcoxon is None


def test_bootstrap() -> None:
    assert bootstrap([0.0, 1.0] * 4 + [1.0]) is None  # nine: too narrow to be shown
    values = [float(i % 10) for i in range(400)]
    low, high = bootstrap(values) or (0.0, 0.0)
    half = 1.959963984540054 * math.sqrt(8.25 / 400)
    assert (low, high) == pytest.approx((4.5 - half, 4.5 + half), abs=0.05 * half)
    assert bootstrap(values) == (low, high)  # a function of the values


def test_signed_rank() -> None:
    assert wilcoxon([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == pytest.approx(2 / 64)
    assert wilcoxon([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0]) == pytest.approx(2 / 64)
    assert wilcoxon([1.0, 2.0, 3.0, 4.0, 5.0, 0.0]) is None
    # sum of negative ranks 1: two of the 64 sign patterns have it or less, and as many mirrored
    assert wilcoxon([-1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == pytest.approx(4 / 64)


def test_holm() -> None:
    assert holm([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == []


def test_mcnemar() -> None:
    a = [True] * 4 + [True] + [False] * 5 + [False] * 2
    b = [True] * 4 + [False] + [True] * 5 + [False] * 2
    found = mcnemar(a, b)
    assert (found.n, found.both, found.only_a, found.only_b, found.neither) == (12, 4, 1, 5, 2)
    assert found.p == pytest.approx(2 * (1 + 6) / 64)
    assert mcnemar(a, a).p == 1.0
