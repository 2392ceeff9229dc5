"""Mean and spread: the one set of them, for clients, seeds, data sets and attempts alike.

None stands for a value that does not exist; it is left out. Sums are exact before they are rounded
(``math.fsum``), so that no order of the values moves a bit of a mean.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable


def mean(values: Iterable[float | None]) -> float | None:
    """Return the unweighted arithmetic mean; None of no values."""
    there = present(values)
    return math.fsum(there) / len(there) if there else None


def sample_std(values: Iterable[float | None]) -> float | None:
    """Return the sample standard deviation (divisor n - 1); None of fewer than two values."""
    there = present(values)
    return statistics.stdev(there) if len(there) > 1 else None


def population_std(values: Iterable[float | None]) -> float | None:
    """Return the population standard deviation (divisor n) as NumPy sums it; None of no values."""
    import numpy as np  # start-up: 0.1 s of verbs that show no spread over clients

    there = present(values)
    return float(np.std(there)) if there else None


def t_interval(values: Iterable[float | None], level: float = 0.95) -> float | None:
    """Return half the width of Student's t-interval of the mean; None of fewer than two values.

    ``mean +- t_interval`` covers the mean of a normal distribution with probability ``level``.
    """
    there = present(values)
    spread = sample_std(there)
    if spread is None:
        return None
    from scipy.special import stdtrit  # start-up: 0.1 s of tables without intervals

    quantile = float(stdtrit(len(there) - 1, (1 + level) / 2))
    return quantile * spread / math.sqrt(len(there))


def present(values: Iterable[float | None]) -> list[float]:
    """Return the values that exist."""
    return [float(value) for value in values if value is not None]
