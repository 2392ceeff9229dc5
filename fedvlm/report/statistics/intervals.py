"""Intervals of a mean difference: on these data sets, on a new one, and for a winner among many.

*These sets*: the mean over exactly the data sets that were run; what varies is the seed and the
draw of test images. *A new set*: the difference that would be observed on one more data set of the
same kind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import nctdtrinc, stdtrit

LEVEL, POWER = 0.95, 0.8
SOURCES = 4  # independent sources of data that a prediction interval needs
SEEDS = 10  # that a claim needs; of fewer the number is printed


@dataclass(frozen=True)
class Component:
    """A variance of a mean as estimated, and the degrees of freedom of the estimate."""

    variance: float
    df: float


def seed_components(sets: Sequence[Sequence[float]]) -> list[Component]:
    """Return the variance components of the mean of several sets' means, from their seeds.

    A set of one value lends the variance within the others, pooled. Empty where no set has two.

    Args:
        sets: per data set the differences, one per seed; none empty.
    """
    several = [(len(one), _variance(one)) for one in sets if len(one) > 1]
    singles, df = len(sets) - len(several), sum(n - 1 for n, _ in several)
    return [Component((1 / n + singles * (n - 1) / df) * variance / len(sets) ** 2, n - 1)
            for n, variance in several]


def standard_error(components: Sequence[Component]) -> Component | None:
    """Return the sum of variance components with its degrees of freedom; None of none.

    Satterthwaite, An Approximate Distribution of Estimates of Variance Components (1946).
    """
    if not components:
        return None
    total = math.fsum(one.variance for one in components)
    squares = math.fsum(one.variance**2 / one.df for one in components)
    df = total**2 / squares if squares else math.fsum(one.df for one in components)
    return Component(total, max(df, min(one.df for one in components)))


def prediction_interval(effects: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % prediction interval of the effect on one more set; None below ``SOURCES``.

    mean +- t(k - 1) s sqrt(1 + 1/k) (Higgins, Thompson and Spiegelhalter, A Re-evaluation of
    Random-effects Meta-analysis, 2009, without weights).

    Args:
        effects: one per independent source.
    """
    k = len(effects)
    if k < SOURCES:
        return None
    centre = math.fsum(effects) / k
    half = float(stdtrit(k - 1, (1 + LEVEL) / 2)) * math.sqrt(_variance(effects) * (1 + 1 / k))
    return centre - half, centre + half


def quantile(df: float, among: int = 1) -> float:
    """Return how many standard errors a 95 % interval extends, of ``among`` at the same time.

    Sidak's bound of max-t, for any correlation of the differences and a standard error of each
    (Sidak, Rectangular Confidence Regions for the Means of Multivariate Normal Distributions,
    1967).
    """
    return float(stdtrit(df, (1 + LEVEL ** (1 / max(among, 1))) / 2))


def detectable(df: float) -> float:
    """Return how many standard errors a true mean must be from zero to be seen in 80 % of tries.

    Seen: a two-sided t test at 5 % with ``df`` degrees of freedom rejects zero on that side
    (Cohen, Statistical Power Analysis, 1988, 2.5, by the noncentral t distribution); 2.80 for many.
    """
    return float(nctdtrinc(df, 1 - POWER, stdtrit(df, (1 + LEVEL) / 2)))


def _variance(values: Sequence[float]) -> float:
    centre = math.fsum(values) / len(values)
    return math.fsum((x - centre) ** 2 for x in values) / (len(values) - 1)
