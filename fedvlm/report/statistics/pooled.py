"""A mean over data sets: random effects, with an interval that few data sets deserve.

Each set has an effect of its own (``y_i = mu + set_i + error_i``); asked for is ``mu``, that of a
set not yet seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import nctdtrinc, stdtrit

LEVEL, POWER = 0.95, 0.8
_HALVINGS = 200  # of the interval that holds the spread between sets: more than a float has bits


@dataclass(frozen=True)
class Pooled:
    """A random-effects mean.

    Attributes:
        n: data sets.
        mean: of the effects.
        low, high: its 95 % interval; None of one set.
        spread: estimated standard deviation between sets (tau).
        detectable: smallest true mean that such an interval excludes zero for with a probability
            of 80 %; None of one set.
    """

    n: int
    mean: float
    low: float | None
    high: float | None
    spread: float
    detectable: float | None


def random_effects(effects: Sequence[float], variances: Sequence[float]) -> Pooled:
    """Return the random-effects mean of several data sets.

    The variance between sets is Paule and Mandel's (Consensus Values and Weighting Factors, 1982),
    the interval Hartung and Knapp's (A Refined Method for the Meta-analysis of Controlled Clinical
    Trials, 2001): Student's t with n - 1 degrees of freedom around the weighted mean, never
    narrower than the one without spread between sets (their factor is kept from falling below 1,
    as Roever, Knapp and Friede advise for few sets, 2015).

    Args:
        effects: one per set.
        variances: of each effect as an estimate of its set's; all positive, or all zero where
            they are not known: then this is the t-interval over sets.

    Raises:
        ValueError: no set, lengths that differ, or variances that are neither.
    """
    if not effects or len(effects) != len(variances):
        raise ValueError("random effects want a variance for each of one or more effects")
    if min(variances) < 0 or (min(variances) == 0 < max(variances)):
        raise ValueError("variances must be all positive, or all zero")
    between = _between(effects, variances)
    weights = [1 / (v + between) for v in variances] if max(variances) + between else \
        [1.0] * len(effects)
    total = math.fsum(weights)
    mean = math.fsum(w * y for w, y in zip(weights, effects, strict=True)) / total
    df = len(effects) - 1
    if not df:
        return Pooled(1, mean, None, None, 0.0, None)
    factor = _heterogeneity(effects, weights) / df
    error = math.sqrt((max(factor, 1.0) if max(variances) else factor) / total)
    quantile = float(stdtrit(df, (1 + LEVEL) / 2))
    return Pooled(len(effects), mean, mean - quantile * error, mean + quantile * error,
                  math.sqrt(between), detectable(df) * error)


def detectable(df: int) -> float:
    """Return how many standard errors a true mean must be from zero to be seen in 80 % of tries.

    Seen: a two-sided t test at 5 % with ``df`` degrees of freedom rejects zero on that side
    (Cohen, Statistical Power Analysis, 1988, 2.5, by the noncentral t distribution); 2.80 for many.
    """
    return float(nctdtrinc(df, 1 - POWER, stdtrit(df, (1 + LEVEL) / 2)))


def pooled_variance(groups: Sequence[Sequence[float]]) -> float:
    """Return the variance within groups, over all of them; 0 where no group has two values."""
    df = sum(len(group) - 1 for group in groups if group)
    if not df:
        return 0.0
    centres = [math.fsum(group) / len(group) for group in groups if group]
    squares = [(x - m) ** 2 for m, group in zip(centres, filter(None, groups), strict=True)
               for x in group]
    return math.fsum(squares) / df


def _between(effects: Sequence[float], variances: Sequence[float]) -> float:
    """Return the variance between sets at which ``_heterogeneity`` is n - 1; 0 where none is."""
    df = len(effects) - 1
    if not df:
        return 0.0
    plain = math.fsum(effects) / len(effects)
    low, high = 0.0, math.fsum((y - plain) ** 2 for y in effects) / df  # no root lies above
    if not max(variances):
        return high
    if _heterogeneity(effects, [1 / v for v in variances]) <= df:
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        weights = [1 / (v + middle) for v in variances]
        low, high = (middle, high) if _heterogeneity(effects, weights) > df else (low, middle)
    return (low + high) / 2


def _heterogeneity(effects: Sequence[float], weights: Sequence[float]) -> float:
    """Return the weighted sum of squares around the weighted mean (Cochran's Q)."""
    total = math.fsum(weights)
    mean = math.fsum(w * y for w, y in zip(weights, effects, strict=True)) / total
    return math.fsum(w * (y - mean) ** 2 for w, y in zip(weights, effects, strict=True))
