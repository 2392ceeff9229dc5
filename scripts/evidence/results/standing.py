"""How the methods of a lane that train the same stand: who is best, and how sure that is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evidence.results.claims import (
    BEST_ALONE,
    Side,
    by_set,
    difference,
    numbers_of,
    side_of,
)
from evidence.results.lanes import bare, below
from fedvlm.core.stats import mean
from fedvlm.report.collect import as_float
from fedvlm.report.statistics.contrast import Contrast, common_seeds, contrast, lacks
from fedvlm.report.tables.papers import source_of
from fedvlm.runs.finished import FinishedRun

CONTROLS = ("LocalOnly", "FedAvg", "PromptFL")
PERSONAL, NEW = "personal", "new"
# What every method should be above: reference, number, words.
BELOW = (
    ("logreg", PERSONAL, "logistic regression (each client on its own images)"),
    ("zero_shot", "new", "the zero-shot model on unseen classes"),
    ("zero_shot", "hm2", "the zero-shot model's harmonic mean of base and new classes (hm2)"),
    ("zero_shot", "cm", "the zero-shot model's mean of personal and hm2 (cm)"),
)
ZERO_SHOT = "zero_shot"
EQUAL = 1e-9  # right answers
MOST = 6  # methods named one by one
Sets = Sequence[Mapping[Any, float]]  # per data set: seeds -> value


@dataclass(frozen=True)
class Standing:
    """Methods of a lane that train the same, over the data sets and seeds that all of them have.

    Attributes:
        lane, title: where, and what is trained.
        means: over the data sets, the highest first, in percent.
        apart: what each other's paired difference to the best is, best minus other.
        gains: method -> collaboration gain in points: ``contrast`` with none; only of methods that
            send anything.
        set_by_set: of the gains on single data sets, over seeds alone, how many are significantly
            above none, not significantly different, below.
        sets, seeds: data sets; the most seeds of one; values: what ``means`` are of.
        lacking: who is left out -> why; thin: data sets left out, which few methods have yet.
        alike: whether the methods do train the same; if not, none is called the best of them.
        metric: what is compared: ``PERSONAL``, or ``NEW`` where every run has it; then the gain is
            over the zero-shot model, on the same classes.
        senders: the methods that send anything; over_local: each other's paired difference to
            LocalOnly, where the row has it.
    """

    lane: str
    title: str
    means: Mapping[str, float]
    apart: Mapping[str, Contrast]
    gains: Mapping[str, Contrast]
    set_by_set: tuple[int, int, int]
    sets: int
    seeds: int
    values: Mapping[str, Sets]
    lacking: Mapping[str, str] = field(default_factory=dict)
    thin: Sequence[str] = ()
    alike: bool = True
    metric: str = PERSONAL
    senders: frozenset[str] = frozenset()
    over_local: Mapping[str, Contrast] = field(default_factory=dict)

    @property
    def best(self) -> str:
        """The method with the highest mean."""
        return next(iter(self.means))

    @property
    def beaten(self) -> list[str]:
        """The methods significantly below the best one, which was chosen among them (max-t)."""
        return [m for m, seen in self.apart.items() if seen.apart_of_best(len(self.means)) > 0]

    @property
    def peers(self) -> list[str]:
        """The others."""
        return [m for m in self.apart if m not in self.beaten]

    def gain_of(self, method: str) -> int:
        """Return whether a gain is above none, below, or neither, among all gains of the row."""
        seen = self.gains.get(method)
        return seen.apart_among(len(self.gains)) if seen else 0

    def above_local(self, local: str) -> list[str]:
        """Return the methods significantly above LocalOnly, of all compared with it (max-t)."""
        return [m for m, seen in self.over_local.items()
                if m != local and seen.apart_among(len(self.over_local)) > 0]

    def short(self, method: str) -> str:
        """Return a label without what the method trains, where no other goes by the rest of it."""
        return method if [bare(m) for m in self.means].count(bare(method)) > 1 else bare(method)


def standing_of(
    lane: str, title: str, runs: Sequence[FinishedRun], alike: bool = True
) -> Standing | None:
    """Return how methods stand; None of fewer than two that share their data sets.

    The data set is the unit: where a lane has several columns of one (shots), its value is their
    mean, seed by seed. Of a lane that is not complete: the data sets that more than half as many
    methods have as the commonest; who lacks one of them, or has fewer than half of the seeds of
    another, is left out by name; of all others the seeds that they share.
    """
    metric = NEW if all(run.value(NEW) is not None for run in runs) else PERSONAL
    none_of = BEST_ALONE if metric == PERSONAL else ZERO_SHOT
    told = [run for run in runs if as_float(run.value(metric)) is not None]
    numbers = {m: numbers_of([run for run in told if run.method == m], lambda r: r.value(metric))
               for m in dict.fromkeys(run.method for run in told)}
    count = Counter(place for sets in numbers.values() for place in sets)
    places = sorted((p for p in count if 2 * count[p] > max(count.values())), key=str)
    rows = {m: [sets.get(p, {}) for p in places] for m, sets in numbers.items()}
    lacking = {m: f"{gap[1]} of {gap[2]} seeds of {places[gap[0]][0]}" for m, row in rows.items()
               if (gap := lacks(row, list(rows.values())))}
    names = [m for m in numbers if m not in lacking]
    common = dict(zip(names, common_seeds([rows[m] for m in names]), strict=True))
    cells = {(p, seeds) for sets in common.values()
             for p, one in zip(places, sets, strict=True) for seeds in one}
    whole = {m: list(by_set(dict(zip(places, sets, strict=True)), cells).values())
             for m, sets in common.items()}
    if len(whole) < 2 or not all(one for sets in whole.values() for one in sets):
        return None
    means = {m: mean(mean(one.values()) for one in sets) or 0.0 for m, sets in whole.items()}
    means = dict(sorted(means.items(), key=lambda kv: -kv[1]))
    best = next(iter(means))
    sources = [source_of(name) for name in dict.fromkeys(p[0] for p in places)]
    sides = {m: side_of([r for r in runs if r.method == m], metric) for m in means}

    def against(a: str, b: str) -> Contrast | None:
        told = [sides[m].by_set(places, cells) for m in (a, b)]
        full = all(len(one) == len(whole[m]) for one, m in zip(told, (a, b), strict=True))
        return contrast(whole[a], whole[b], sources=sources,
                        answers=(told[0], told[1]) if full else None)

    apart = {m: seen for m in means if m != best and (seen := against(m, best)) is not None}
    local = next((m for m in means if bare(m) == CONTROLS[0]), "")
    over = {m: seen for m in means
            if local and m != local and (seen := against(local, m)) is not None}
    senders = {run.method for run in runs if run.totals().get("bytes_up")}
    gains, single = {}, []
    for method in means:
        here = [run for run in runs if run.method == method]
        own, none = sides[method], side_of(here, metric, none_of)
        if method not in senders or any(p not in none.numbers for p in places):
            continue
        own, none = (replace(one, numbers={p: one.numbers[p] for p in places})
                     for one in (own, none))
        seen = difference(own, none)
        if seen is not None:
            gains[method] = seen
            alone = [difference(*(replace(one, numbers={p: one.numbers[p]})
                                  for one in (own, none))) for p in places]
            single += [one.apart for one in alone if one is not None]
    signs = (single.count(1), single.count(0), single.count(-1))
    return Standing(lane, title, means, apart, gains, signs, len(whole[best]),
                    max(len(one) for sets in whole.values() for one in sets), whole, lacking,
                    sorted({str(p[0]) for p in count if p not in places}), alike, metric,
                    frozenset(senders), over)


def sentences(one: Standing | None, runs: Sequence[FinishedRun]) -> list[str]:
    """Return the outcome as sentences: best method, significant differences, baselines above."""
    if one is None or not one.alike:
        return _below(one, runs)
    what = "" if one.metric == PERSONAL else " on classes that no client has"
    out = [f"Best{what}: {one.short(one.best)}, {one.means[one.best]:.1f}; significantly better on "
           "these data sets (paired, corrected for choosing the best) than "
           f"{len(one.beaten)} of the {len(one.apart)} others."]
    if what and one.gains:
        up = [one.short(m) for m in one.gains if one.gain_of(m) > 0]
        out.append(f"There significantly above the zero-shot model (by seeds alone): {len(up)} of "
                   f"{len(one.gains)}{named(up)}; the best by {one.gains[one.best].mean:+.1f} "
                   "points." if one.best in one.gains else "")
    if one.lacking:
        out.append("Not in this comparison nor in the first table: " + ", ".join(
            f"{m} ({why})" for m, why in one.lacking.items()) + ".")
    if one.thin:
        out.append("Data sets left out, because few methods have runs on them: "
                   f"{', '.join(one.thin)}.")
    for control in CONTROLS:
        name = next((m for m in one.means if re.fullmatch(rf"{control}( \[.*\])?", m)), None)
        if name is None or name == one.best:
            continue
        seen = {m: contrast(one.values[name], one.values[m]) for m in one.means if m != name}
        if one.over_local and bare(name) == CONTROLS[0]:
            seen = dict(one.over_local)
        sign = {m: c.apart_among(len(seen)) for m, c in seen.items() if c is not None}
        up = [one.short(m) for m in sign if sign[m] > 0]
        down = [one.short(m) for m in sign if sign[m] < 0]
        out.append(f"Compared with {one.short(name)} ({one.means[name]:.1f}), significantly "
                   f"better: {len(up)}{named(up)}; significantly worse: {len(down)}{named(down)}.")
    return out + _below(one, runs)


def _below(one: Standing | None, runs: Sequence[FinishedRun]) -> list[str]:
    out = []
    for reference, metric, words in BELOW:
        names, of = below(runs, reference, metric)
        names = [one.short(m) if one else m for m in names]
        if of and (names or metric == PERSONAL):
            out.append(f"{len(names)} of {of} methods are on average below {words}"
                       f"{named(names, MOST if metric == PERSONAL else len(names))}.")
    return out


def losers(own: Side, alone: Side) -> float | None:
    """Return the share of clients with fewer right answers than alone, mean over sets, percent."""
    shares: dict[Any, dict[Any, float]] = {}
    for place, seeds in own.answers.items():
        for seed, told in seeds.items():
            other = alone.answers.get(place, {}).get(seed, {})
            both = [(one.right, other[client].right) for client, one in told.items()
                    if client in other]
            if both:
                shares.setdefault(place, {})[seed] = 100 * sum(
                    a < b - EQUAL for a, b in both) / len(both)
    return mean_of_sets(Side(shares, {}))


def mean_of_sets(side: Side) -> float | None:
    """Return the mean over data sets of a side's means; of several columns the mean."""
    sets: dict[Any, list[float]] = {}
    for place, numbers in side.numbers.items():
        sets.setdefault(place[0], []).append(mean(numbers.values()) or 0.0)
    return mean(mean(each) for each in sets.values())


def named(names: Sequence[str], most: int = MOST) -> str:
    """Return names in brackets; of many, and of none, nothing."""
    return f" ({', '.join(names)})" if 0 < len(names) <= most else ""
