"""Paired statistics of two runs: the same clients, the same seeds, or the same test images.

Every difference is B - A. Clients and seeds count equally, as in ``personal``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedvlm.core.rng import numpy_stream
from fedvlm.core.stats import mean, sample_std, t_interval

LEVEL = 0.95
RESAMPLES = 10_000
FEWEST = 6  # a two-sided signed-rank test of fewer differences cannot reach 0.05 (5 give 0.0625)
FEWEST_BOOTSTRAP = 10  # of three values the percentile bootstrap is [smallest, largest]
BOOTSTRAP_SEED = 0
METHODS = (
    f"95 % intervals of the mean difference: Student's t, and the percentile bootstrap "
    f"({RESAMPLES:,} resamples, seed {BOOTSTRAP_SEED}) from {FEWEST_BOOTSTRAP} pairs on; p: "
    f"Wilcoxon's signed-rank test, two-sided, zero differences left out, from {FEWEST} others on; "
    "nothing is corrected for several comparisons"
)

Interval = tuple[float, float]


@dataclass(frozen=True)
class Paired:
    """Differences B - A of paired numbers.

    Attributes:
        n: pairs.
        a, b, difference: means.
        std: sample standard deviation of the differences; None of one pair.
        t: Student's t-interval of the mean difference; None of one pair.
        bootstrap: its percentile bootstrap interval; None below ``FEWEST_BOOTSTRAP`` pairs.
        wins, ties, losses: pairs where B is above, equal to, below A.
        wilcoxon: two-sided p of the signed-rank test; None below ``FEWEST`` unequal pairs.
    """

    n: int
    a: float
    b: float
    difference: float
    std: float | None
    t: Interval | None
    bootstrap: Interval | None
    wins: int
    ties: int
    losses: int
    wilcoxon: float | None


@dataclass(frozen=True)
class McNemar:
    """Two classifiers on the same images.

    Attributes:
        n: images.
        both, only_a, only_b, neither: how many were classified rightly by whom.
        p: exact two-sided McNemar test: ``only_b`` of ``only_a + only_b`` against one half.
    """

    n: int
    both: int
    only_a: int
    only_b: int
    neither: int
    p: float


def pair_statistics(a: Sequence[float], b: Sequence[float]) -> Paired | None:
    """Return the statistics of the pairs ``(a[i], b[i])``; None of no pairs.

    Raises:
        ValueError: the lengths differ.
    """
    differences = [y - x for x, y in zip(a, b, strict=True)]
    centre = mean(differences)
    if centre is None:
        return None
    half = t_interval(differences, LEVEL)
    return Paired(
        len(differences), mean(a) or 0.0, mean(b) or 0.0, centre, sample_std(differences),
        None if half is None else (centre - half, centre + half), bootstrap(differences),
        sum(d > 0 for d in differences), sum(d == 0 for d in differences),
        sum(d < 0 for d in differences), wilcoxon(differences),
    )


def bootstrap(differences: Sequence[float]) -> Interval | None:
    """Return the percentile bootstrap interval of the mean; None below ``FEWEST_BOOTSTRAP`` values.

    Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13. The resamples are
    a function of the number of values alone: the same input gives the same interval.
    """
    if len(differences) < FEWEST_BOOTSTRAP:
        return None
    n = len(differences)
    stream = numpy_stream(BOOTSTRAP_SEED, "report.compare.bootstrap", n)
    values = np.asarray(differences, dtype=np.float64)
    size = max(1, 1_000_000 // n)  # resamples at once: a million numbers
    means = np.concatenate([
        values[stream.integers(0, n, (min(size, RESAMPLES - at), n))].mean(axis=1)
        for at in range(0, RESAMPLES, size)
    ])
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def wilcoxon(differences: Sequence[float]) -> float | None:
    """Return the two-sided p of Wilcoxon's signed-rank test (1945), zeros left out.

    None where fewer than ``FEWEST`` differences are not zero. Exact up to 50 values without ties.
    """
    unequal = [d for d in differences if d != 0]
    if len(unequal) < FEWEST:
        return None
    from scipy.stats import wilcoxon as test  # start-up: 1 s of comparisons without a test

    return float(test(unequal).pvalue)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Return p values adjusted for how many there are; None stays None and counts for nothing.

    Holm, A Simple Sequentially Rejective Multiple Test Procedure (1979): the smallest of m is
    multiplied by m, the next by m - 1, ..., never below the one before, never above 1.
    """
    order = sorted((p, at) for at, p in enumerate(values) if p is not None)
    adjusted: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (p, at) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p))
        adjusted[at] = highest
    return adjusted


def mcnemar(a_right: Sequence[bool], b_right: Sequence[bool]) -> McNemar:
    """Return McNemar's exact test (1947) of paired right and wrong answers.

    Raises:
        ValueError: the lengths differ.
    """
    from scipy.stats import binomtest  # start-up: 1 s of comparisons without a test

    pairs = [(bool(x), bool(y)) for x, y in zip(a_right, b_right, strict=True)]
    only_a, only_b = pairs.count((True, False)), pairs.count((False, True))
    p = float(binomtest(only_b, only_a + only_b, 0.5).pvalue) if only_a + only_b else 1.0
    both, neither = pairs.count((True, True)), pairs.count((False, False))
    return McNemar(len(pairs), both, only_a, only_b, neither, p)
