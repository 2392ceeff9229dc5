"""Metrics against scikit-learn and against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, recall_score

from fedvlm.core import stats
from fedvlm.evaluation import metrics

pairs = st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 6)), min_size=1, max_size=40)


@given(pairs)
@settings(max_examples=200, deadline=None)
def test_macro_f1_is_scikit_learns_over_the_classes_present(pairs: list[tuple[int, int]]) -> None:
    true, pred = np.array(pairs).T
    want = 100 * f1_score(true, pred, average="macro", labels=np.unique(true), zero_division=0)
    assert metrics.macro_f1(true, pred) == pytest.approx(want, abs=1e-9)


def test_macro_f1_by_hand() -> None:
    # class 0: 2 of 3 hit, predicted 2 times -> 4/5; class 1: 1 of 1 hit, predicted twice -> 2/3
    assert metrics.macro_f1([0, 0, 0, 1], [0, 0, 1, 1]) == pytest.approx(100 * (4 / 5 + 2 / 3) / 2)
    assert metrics.macro_f1([0, 0], [5, 5]) == 0.0
    assert metrics.macro_f1([], []) is None


def test_accuracy() -> None:
    assert metrics.accuracy([0, 1, 2, 2], [0, 1, 1, 2]) == 75.0
    assert metrics.accuracy([], []) is None
    with pytest.raises(ValueError, match="2 labels but 1 predictions"):
        metrics.accuracy([1, 2], [1])


def test_harmonic_means() -> None:
    assert stats.harmonic_mean(50.0, 100.0) == pytest.approx(200 / 3)
    assert stats.harmonic_mean(7.0) == 7.0
    assert stats.harmonic_mean(0.0, 90.0, 90.0) == 0.0
    assert stats.harmonic_mean(50.0, None) is None and stats.harmonic_mean(0.0, None) is None
    assert stats.harmonic_mean(40.0, 60.0) == pytest.approx(48.0)
    assert stats.harmonic_mean(90.0, 45.0, 30.0) == pytest.approx(45.0)
    assert stats.cm(90.0, 48.0) == 69.0 and stats.cm(None, 48.0) is None
    for bad in ((), (-1.0, 2.0)):
        with pytest.raises(ValueError, match="harmonic"):
            stats.harmonic_mean(*bad)


def test_over_clients() -> None:
    values = [50.0, None, 100.0, 75.0]
    assert stats.worst(values) == 50.0
    assert stats.worst_decile(values) == 50.0
    assert stats.worst_decile([float(v) for v in range(20)]) == 0.5
    assert stats.worst_decile([float(v) for v in range(21)]) == 1.0  # three of 21: rounded up
    for fn in (stats.worst, stats.worst_decile):
        assert fn([None, None]) is None and fn([]) is None
    assert stats.pooled_accuracy([1, 0, 9], [2, 0, 10]) == pytest.approx(1000 / 12)
    assert stats.pooled_accuracy([0], [0]) is None


@given(pairs)
@settings(max_examples=30, deadline=None)
def test_balanced_accuracy_is_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    true, pred = np.array(pairs).T
    want = recall_score(true, pred, average="macro", labels=np.unique(true), zero_division=0)
    assert metrics.balanced_accuracy(true, pred) == pytest.approx(100 * want, abs=1e-9)


def test_balanced_accuracy_by_hand() -> None:
    assert metrics.balanced_accuracy([0, 0, 0, 1], [0, 0, 0, 0]) == 50.0  # accuracy: 75
    assert metrics.balanced_accuracy([], []) is None


def test_calibration_error_by_hand() -> None:
    """Two in (9/15, 10/15], one right; one in the last bin, right; an edge belongs below."""
    found = metrics.calibration_error([True, False, True], [0.61, 0.65, 0.97])
    assert found == pytest.approx(100 * (abs(1 - 1.26) + (1 - 0.97)) / 3)
    assert metrics.calibration_error([True], [1.0]) == 0.0
    assert metrics.calibration_error([True, False], [0.2, 0.2 - 1e-9]) == pytest.approx(30.0)
    assert metrics.calibration_error([], []) is None


def test_quartiles() -> None:
    assert stats.quartiles([4.0, None, 1.0, 3.0, 2.0, 5.0]) == (2.0, 3.0, 4.0)
    assert stats.quartiles([None]) == (None, None, None)
