"""Two methods over seeds and data sets, and the best of several: what their pairs tell apart.

A method's numbers are one mapping per data set, from a seed's key to its value. Only seeds that
both methods have are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import stdtr, stdtrit

from fedvlm.core.stats import mean, t_interval
from fedvlm.report.statistics.paired import wilcoxon
from fedvlm.report.statistics.pooled import LEVEL, detectable, pooled_variance, random_effects

SetNumbers = Sequence[Mapping[Any, float]]  # per data set: seed's key -> value
ROUNDING = 1e-9  # of a difference: seeds that differ by less agree


@dataclass(frozen=True)
class Contrast:
    """Differences B - A.

    Attributes:
        sets, pairs: data sets with a pair; pairs in all.
        mean: mean difference over the sets.
        low, high: its 95 % interval: over sets where there are several, else over seeds; None of
            one pair, and where all differences are one number other than zero: two seeds that
            happen to agree to the last digit shown would be certain.
        detectable: the smallest true difference seen with a probability of 80 %; None with them.
        wins, ties, losses: sets where B is above, equal to, below A; of an experiment on one set
            its seeds.
        p: Wilcoxon's signed-rank test over sets; None of fewer than six that differ.
    """

    sets: int
    pairs: int
    mean: float
    low: float | None
    high: float | None
    detectable: float | None
    wins: int
    ties: int
    losses: int
    p: float | None

    @property
    def apart(self) -> int:
        """1 where the interval lies above zero, -1 where below; 0 where it holds zero, or none."""
        if self.low is None or self.high is None:
            return 0
        return (self.low > 0) - (self.high < 0)

    @property
    def chance(self) -> float | None:
        """Two-sided p of the t test that goes with the interval; None without an interval."""
        if self.low is None or self.high is None:
            return None
        df = self.sets - 1 if self.sets > 1 else self.pairs - 1
        error = (self.high - self.low) / 2 / float(stdtrit(df, (1 + LEVEL) / 2))
        if not error:
            return 1.0 if not self.mean else 0.0
        return 2 * float(stdtr(df, -abs(self.mean) / error))


def contrast(a: SetNumbers, b: SetNumbers, exact: bool = False) -> Contrast | None:
    """Return what the pairs of two methods say; None where no data set has one.

    Over several sets: a random-effects mean (``pooled.random_effects``) of the sets' mean
    differences. The variance within sets is pooled over them: the two to five seeds of one set
    estimate none, and three seeds that happen to agree would take the whole mean.

    Args:
        exact: whether the numbers are counts (bytes, steps), which agree by nature: an interval
            of no width is believed.
    """
    sets = [[y[seed] - x[seed] for seed in sorted(x.keys() & y.keys(), key=str)]
            for x, y in zip(a, b, strict=True)]
    sets = [pairs for pairs in sets if pairs]
    if not sets:
        return None
    means = [mean(pairs) or 0.0 for pairs in sets]
    units = means if len(a) > 1 else sets[0]
    count = sum(map(len, sets))
    signs = (sum(x > 0 for x in units), sum(x == 0 for x in units), sum(x < 0 for x in units))
    if len(sets) == 1:
        half = t_interval(sets[0])
        if half is None or (not exact and _empty(half, means[0])):
            return Contrast(1, count, means[0], None, None, None, *signs, None)
        return Contrast(1, count, means[0], means[0] - half, means[0] + half,
                        detectable(count - 1) * _error(sets[0]), *signs, None)
    within = pooled_variance(sets)
    over = random_effects(means, [within / len(pairs) for pairs in sets])
    if over.high is not None and not exact and _empty(over.high - over.mean, over.mean):
        return Contrast(len(sets), count, over.mean, None, None, None, *signs, wilcoxon(means))
    return Contrast(len(sets), count, over.mean, over.low, over.high, over.detectable, *signs,
                    wilcoxon(means))


@dataclass(frozen=True)
class Leaders:
    """How several methods stand to the best of them, as places in the sequence of methods.

    Attributes:
        best: highest mean, over the data sets and the seeds that all compared methods share.
        peers, beaten, above: not significantly different from it by the paired interval,
            significantly below it, and above it though their mean is not.
        lacking: who is not compared: it has fewer than half of a data set's seeds.
    """

    best: int
    peers: list[int]
    beaten: list[int]
    above: list[int]
    lacking: list[int]


def leaders(
    methods: Sequence[SetNumbers], lower: bool = False, exact: bool = False
) -> Leaders | None:
    """Return the best method, and who is not significantly worse.

    A method differs significantly where the interval of its paired differences to the best excludes
    zero. The best is best by itself only where all others are, each at 5 %: for a claim against
    every other method that is an intersection-union test, which needs no correction for their
    number (Berger, Multiparameter Hypothesis Testing and Acceptance Sampling, 1982).

    Args:
        methods: each one's numbers, over the same data sets.
        lower: whether smaller is better.
        exact: see ``contrast``.

    Returns:
        None where fewer than two methods share a seed of every data set.
    """
    lacking = [at for at, one in enumerate(methods) if lacks(one, methods) is not None]
    there = [at for at in range(len(methods)) if at not in lacking]
    whole = dict(zip(there, common_seeds([methods[at] for at in there]), strict=True))
    if len(there) < 2 or not all(one for sets in whole.values() for one in sets):
        return None
    sign = -1 if lower else 1
    best = max(there, key=lambda at: sign * (mean(mean(v.values()) for v in whole[at]) or 0.0))
    places: dict[int, list[int]] = {0: [], 1: [], -1: []}
    for at in there:
        if at != best:
            seen = contrast(whole[at], whole[best], exact)
            places[seen.apart * sign if seen else 0].append(at)
    return Leaders(best, places[0], places[1], places[-1], lacking)


def lacks(one: SetNumbers, methods: Sequence[SetNumbers]) -> tuple[int, int, int] | None:
    """Return the first data set of which a method has fewer than half of the seeds of another.

    Returns:
        (data set's place, seeds it has, seeds of the most complete); None of none.
    """
    for place, seeds in enumerate(one):
        most = max(len(other[place]) for other in methods)
        if not seeds or 2 * len(seeds) < most:
            return place, len(seeds), most
    return None


def common_seeds(methods: Sequence[SetNumbers]) -> list[list[dict[Any, float]]]:
    """Return methods' numbers of the seeds that all of them have, data set by data set."""
    common = [set[Any].intersection(*map(set, column)) for column in zip(*methods, strict=True)]
    return [[{seed: one[seed] for seed in sorted(seeds, key=str)}
             for one, seeds in zip(sets, common, strict=True)] for sets in methods]


def _empty(half: float, centre: float) -> bool:
    """Return whether an interval is as wide as rounding and yet excludes zero."""
    return half <= ROUNDING * abs(centre) and centre != 0


def _error(pairs: Sequence[float]) -> float:
    """Return the standard error of a mean."""
    return (pooled_variance([pairs]) / len(pairs)) ** 0.5
