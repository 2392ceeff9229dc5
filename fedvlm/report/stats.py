"""Mean and spread over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def mean(values: Sequence[float]) -> float | None:
    """Return the arithmetic mean; None of no values."""
    return statistics.fmean(values) if values else None


def sample_std(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (divisor n - 1); None for fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else None


def population_std(values: Sequence[float]) -> float | None:
    """Return the population standard deviation (divisor n), as CoOp's script prints it."""
    return statistics.pstdev(values) if values else None


def t_interval(values: Sequence[float], level: float = 0.95) -> float | None:
    """Return half the width of Student's t-interval of the mean; None for fewer than two values.

    ``mean +- t_interval`` covers the mean of a normal distribution with probability ``level``.
    """
    spread = sample_std(values)
    if spread is None:
        return None
    from scipy.stats import t  # a second to import: only where it is asked for

    quantile = float(t.ppf((1 + level) / 2, len(values) - 1))
    return quantile * spread / math.sqrt(len(values))
