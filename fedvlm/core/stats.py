"""Mean and spread: the one set of them, for clients, seeds, data sets and attempts alike.

None stands for a value that does not exist; it is left out. Sums are exact before they are rounded
(``math.fsum``), so that no order of the values moves a bit of a mean.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TypeGuard

DECILE = 0.1
ENOUGH = 10  # draws of a cell, from which its own variance is used


def mean(values: Iterable[float | None]) -> float | None:
    """Return the unweighted arithmetic mean; None of no values."""
    there = drop_missing(values)
    return math.fsum(there) / len(there) if there else None


def sample_std(values: Iterable[float | None]) -> float | None:
    """Return the sample standard deviation (divisor n - 1); None of fewer than two values."""
    there = drop_missing(values)
    return statistics.stdev(there) if len(there) > 1 else None


def population_std(values: Iterable[float | None]) -> float | None:
    """Return the population standard deviation (divisor n) as NumPy sums it; None of no values."""
    import numpy as np  # start-up: 0.1 s of verbs that show no spread over clients

    there = drop_missing(values)
    return float(np.std(there)) if there else None


def worst(values: Iterable[float | None]) -> float | None:
    """Return the smallest value."""
    return min(drop_missing(values), default=None)


def worst_decile(values: Iterable[float | None]) -> float | None:
    """Return the mean of the lowest tenth of the values, of one value at least (rounded up)."""
    ascending = sorted(drop_missing(values))
    return mean(ascending[: math.ceil(DECILE * len(ascending))]) if ascending else None


def quartiles(values: Iterable[float | None]) -> tuple[float | None, float | None, float | None]:
    """Return lower quartile, median and upper quartile, between neighbours by straight lines."""
    there = drop_missing(values)
    if not there:
        return None, None, None
    import numpy as np  # start-up: 0.1 s of verbs that show no spread over clients

    low, middle, high = np.quantile(there, (0.25, 0.5, 0.75)).tolist()
    return low, middle, high


def pooled_accuracy(correct: Sequence[int], counts: Sequence[int]) -> float | None:
    """Return accuracy over all samples of all clients together (``personal_micro``)."""
    total = sum(counts)
    return 100.0 * sum(correct) / total if total else None


def harmonic_mean(*values: float | None) -> float | None:
    """Return the harmonic mean; 0 if any value is 0, None if any is missing.

    Raises:
        ValueError: no values, or a negative one.
    """
    there = drop_missing(values)
    if not values or any(v < 0 for v in there):
        raise ValueError(f"no harmonic mean of {values}")
    if len(there) < len(values):
        return None
    return 0.0 if 0 in there else len(there) / math.fsum(1.0 / v for v in there)


def cm(personal: float | None, hm2: float | None) -> float | None:
    """Return ``(personal + hm2) / 2``."""
    return None if personal is None or hm2 is None else (personal + hm2) / 2


def t_interval(values: Iterable[float | None], level: float = 0.95) -> float | None:
    """Return half the width of Student's t-interval of the mean; None of fewer than two values.

    ``mean +- t_interval`` covers the mean of a normal distribution with probability ``level``.
    """
    there = drop_missing(values)
    spread = sample_std(there)
    if spread is None:
        return None
    return _quantile(len(there) - 1, level) * spread / math.sqrt(len(there))


def pooled_interval(several: Iterable[tuple[int, float]], draws: int) -> float | None:
    """Return half the width of Student's 95 % t-interval of a mean of ``draws`` values.

    The variance of a value is pooled over several means, where each has few values.

    Args:
        several: of each mean the number of its values and its standard error.

    Returns:
        None where no mean has two values.
    """
    pairs = [(n, error) for n, error in several if n > 1]
    if not pairs:
        return None
    df = sum(n - 1 for n, _ in pairs)
    variance = math.fsum((n - 1) * n * error**2 for n, error in pairs) / df
    return _quantile(df, 0.95) * math.sqrt(variance / draws)


def cell_interval(own: tuple[int, float], alike: Iterable[tuple[int, float]]) -> float | None:
    """Return half the width of the 95 % interval of a cell's mean over draws.

    From ``ENOUGH`` draws on of the cell's own variance; below, pooled over cells that are alike,
    which assumes that their variances are equal.

    Args:
        own: number of the cell's draws, and the standard error of their mean.
        alike: the same of each cell to pool with, this one included.
    """
    return pooled_interval([own] if own[0] >= ENOUGH else alike, own[0])


def _quantile(df: int, level: float) -> float:
    from scipy.special import stdtrit  # start-up: 0.1 s of tables without intervals

    return float(stdtrit(df, (1 + level) / 2))


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value that a file holds is a number; a truth value is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def drop_missing(values: Iterable[float | None]) -> list[float]:
    """Return the values that exist."""
    return [float(value) for value in values if value is not None]
