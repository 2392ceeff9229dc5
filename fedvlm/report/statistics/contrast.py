"""Two methods over seeds and data sets, and the best of several: what their pairs tell apart.

A method's numbers are one mapping per data set, from a seed's key to its value. Only seeds that
both methods have are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import stdtr

from fedvlm.core.stats import mean
from fedvlm.report.statistics.images import Answers, image_component
from fedvlm.report.statistics.intervals import (
    Component,
    detectable,
    prediction_interval,
    quantile,
    seed_components,
    standard_error,
)

SetNumbers = Sequence[Mapping[Any, float]]  # per data set: seed's key -> value
SetAnswers = Sequence[Mapping[Any, Answers]]  # per data set: seed's key -> answers by client
ROUNDING = 1e-9  # of a difference: seeds that differ by less agree
EXACT, BOUND, SEEDS_ALONE = "image by image", "bound", ""


@dataclass(frozen=True)
class Contrast:
    """Differences B - A.

    Attributes:
        sets, pairs: data sets with a pair; pairs in all; seeds: the fewest of a set.
        mean: mean difference over exactly these sets, each counted alike.
        low, high: its 95 % interval on these sets; None of one pair, and where all differences are
            one number other than zero: two seeds that happen to agree to the last digit shown
            would be certain.
        error, df: its standard error and degrees of freedom; None with the interval.
        images: whether test images are in it: ``EXACT``, ``BOUND`` or ``SEEDS_ALONE``.
        detectable: the smallest true difference seen with a probability of 80 %; None with them.
        wins, ties, losses: sets where B is above, equal to, below A; of an experiment on one set
            its seeds.
        sources: independent sources of data among the sets.
        least, most: the smallest and largest mean difference of a set.
        ahead: 95 % prediction interval of the difference on a new set; None below four sources.
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
    error: float | None = None
    df: float | None = None
    seeds: int = 0
    images: str = SEEDS_ALONE
    sources: int = 1
    least: float = 0.0
    most: float = 0.0
    ahead: tuple[float, float] | None = None

    @property
    def apart(self) -> int:
        """1 where the interval lies above zero, -1 where below; 0 where it holds zero, or none."""
        if self.low is None or self.high is None:
            return 0
        return (self.low > 0) - (self.high < 0)

    @property
    def apart_ahead(self) -> int:
        """The same of a new set."""
        return (self.ahead[0] > 0) - (self.ahead[1] < 0) if self.ahead else 0

    @property
    def chance(self) -> float | None:
        """Two-sided p of the t test that goes with the interval; None without an interval."""
        if self.error is None or self.df is None:
            return None
        if not self.error:
            return 1.0 if not self.mean else 0.0
        return 2 * float(stdtr(self.df, -abs(self.mean) / self.error))

    def apart_among(self, many: int) -> int:
        """Return ``apart`` where this is one of ``many`` differences to one rival, by max-t."""
        if self.error is None or self.df is None:
            return 0
        if abs(self.mean) <= quantile(self.df, many) * self.error:
            return 0
        return 1 if self.mean > 0 else -1

    def apart_of_best(self, methods: int) -> int:
        """Return ``apart`` where A or B is the best of ``methods`` by the same numbers (max-t).

        The pair is chosen after looking, so it counts as one of all pairs.
        """
        return self.apart_among(methods * (methods - 1) // 2)


def contrast(
    a: SetNumbers, b: SetNumbers, exact: bool = False, sources: Sequence[str] = (),
    answers: tuple[SetAnswers, SetAnswers] | None = None,
) -> Contrast | None:
    """Return what the pairs of two methods say; None where no data set has one.

    On these sets: the mean of the sets' mean differences; its variance is that of the seeds within
    each set and of the test images, degrees of freedom by Satterthwaite. On a new set: a
    prediction interval over the sources' mean differences (``intervals``).

    Args:
        exact: whether the numbers are counts (bytes, steps), which agree by nature: an interval
            of no width is believed.
        sources: per data set where its images are from; empty: each has its own.
        answers: of both methods, where the numbers are means over clients of their accuracy in
            percent.
    """
    places, sets = [], []
    for at, (x, y) in enumerate(zip(a, b, strict=True)):
        pairs = [y[seed] - x[seed] for seed in sorted(x.keys() & y.keys(), key=str)]
        if pairs:
            places.append(at)
            sets.append(pairs)
    if not sets:
        return None
    means = [mean(pairs) or 0.0 for pairs in sets]
    by_source: dict[str, list[float]] = {}
    for at, number in zip(places, means, strict=True):
        by_source.setdefault(sources[at] if sources else str(at), []).append(number)
    units = means if len(a) > 1 else sets[0]
    signs = (sum(x > 0 for x in units), sum(x == 0 for x in units), sum(x < 0 for x in units))
    centre = mean(means) or 0.0
    images, kind = _images(answers, places)
    seeds = seed_components(sets)
    total = standard_error([*seeds, *images]) if seeds else None
    error = None if total is None else total.variance**0.5
    if total is None or error is None or (
            not exact and error <= ROUNDING * abs(centre) and centre):
        total = error = None
        kind = SEEDS_ALONE
    df = None if total is None else total.df
    half = None if error is None or df is None else quantile(df) * error
    return Contrast(
        len(sets), sum(map(len, sets)), centre,
        None if half is None else centre - half, None if half is None else centre + half,
        None if error is None or df is None else detectable(df) * error, *signs, error, df,
        min(map(len, sets)), kind, len(by_source), min(means), max(means),
        prediction_interval([mean(each) or 0.0 for each in by_source.values()]),
    )


def _images(
    answers: tuple[SetAnswers, SetAnswers] | None, places: Sequence[int]
) -> tuple[list[Component], str]:
    """Return the test images' components of the mean over some sets, and how they are known."""
    if answers is None:
        return [], SEEDS_ALONE
    found = [image_component(answers[0][at], answers[1][at]) for at in places]
    parts = [one for one in found if one is not None]
    if len(parts) < len(places):
        return [], SEEDS_ALONE
    share = 1 / len(places) ** 2
    components = [Component(one.variance * share, one.df) for one, _ in parts if one.variance]
    return components, EXACT if all(known for _, known in parts) else BOUND


@dataclass(frozen=True)
class Leaders:
    """How several methods stand to the best of them, as places in the sequence of methods.

    Attributes:
        best: highest mean, over the data sets and the seeds that all compared methods share.
        peers, beaten: not significantly different from it, and significantly below it.
        lacking: who is not compared: it has fewer than half of a data set's seeds.
    """

    best: int
    peers: list[int]
    beaten: list[int]
    lacking: list[int]


def leaders(
    methods: Sequence[SetNumbers], lower: bool = False, exact: bool = False,
    answers: Sequence[SetAnswers] | None = None,
) -> Leaders | None:
    """Return the best method, and who is significantly worse on these data sets.

    Who is best is read off the same numbers, so a difference to it must exceed what the largest of
    all differences between so many equal methods reaches in 95 % of experiments
    (``Contrast.apart_of_best``): among equal methods somebody is called worse in at most 5 %.

    Args:
        methods: each one's numbers, over the same data sets.
        lower: whether smaller is better.
        exact, answers: see ``contrast``; answers of each method.

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
    peers, beaten = [], []
    for at in there:
        if at != best:
            seen = contrast(whole[at], whole[best], exact,
                            answers=(answers[at], answers[best]) if answers else None)
            apart = seen.apart_of_best(len(there)) * sign if seen else 0
            (beaten if apart > 0 else peers).append(at)
    return Leaders(best, peers, beaten, lacking)


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
