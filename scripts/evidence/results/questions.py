"""What the first screen and the pages behind it say: the four questions, answered from standings.

Every number is of the cells; a sentence is made of counts and of the rows that it names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from evidence.results.claims import (
    BEST_ALONE,
    PERSONAL,
    Side,
    deal_of,
    difference,
    place_of,
    seeds_of,
    side_of,
)
from evidence.results.lanes import Lane, bare
from evidence.results.standing import Standing
from fedvlm.core.stats import mean
from fedvlm.report.statistics.contrast import Contrast
from fedvlm.report.tables.papers import dataset_name
from fedvlm.runs.finished import FinishedRun

BALANCED, WORST = "personal_balanced", "personal_worst"
VARIANTS = ("ablation", "unseen")  # settings about parts of a method, or other metrics
FEWEST = 3  # methods of a matrix
EQUAL = 1e-9  # right answers
AFL, SHARES = "afl", "afl_prior"  # references of one round, without training


@dataclass(frozen=True)
class Case:
    """The best method that communicates, of a row of a setting, beside alone and pooled.

    Attributes:
        lane, setting: its name and title; title: what is trained; clients: in words.
        method: short label, of how many that communicate; sure: of its gain among all (max-t).
        alone, together, pooled: personal accuracy in percent, mean over the sets.
        gain, balanced, worst: method minus the best baseline without collaboration; the interval of
            ``gain`` holds seeds and test images, of the others seeds alone.
        hurt: share of clients below that baseline, in percent, mean over the sets.
        by_set: data set, alone, together, pooled, gain.
        ridge, shares: what AFL and AFL plus class shares reach, in percent; None where no run has
            them. The latter is of any run, of any setting, with the same images, clients, backbone
            and seeds. beside: method minus AFL plus class shares, over the pairs that have both.
        deals: images, clients and seeds of its runs (``claims.deal_of``).
    """

    lane: str
    setting: str
    title: str
    clients: str
    method: str
    of: int
    sure: int
    alone: float | None
    together: float | None
    pooled: float | None
    gain: Contrast
    balanced: Contrast | None
    worst: Contrast | None
    hurt: float | None
    by_set: Sequence[tuple[str, float | None, float | None, float | None, Contrast | None]] = \
        field(default_factory=tuple)
    ridge: float | None = None
    shares: float | None = None
    beside: Contrast | None = None
    deals: frozenset[tuple[Any, ...]] = frozenset()

    @property
    def untrained(self) -> str:
        """What both references reach, in words."""
        return " / ".join("-" if x is None else f"{x:.1f}" for x in (self.ridge, self.shares))


def cases(standings: Sequence[Standing], lanes: Sequence[Lane]) -> list[Case]:
    """Return a row for each standing of methods that train the same and communicate."""
    by_name = {lane.name: lane for lane in lanes}
    return [_case(one, by_name[one.lane]) for one in standings
            if one.alike and one.gains and one.lane not in VARIANTS]


def _case(one: Standing, lane: Lane) -> Case:
    method = max(one.gains, key=lambda m: one.means[m])
    runs = [run for run in lane.runs if run.method == method]
    own, alone, pooled, ridge, shares = (
        side_of(runs, PERSONAL, key) for key in ("", BEST_ALONE, "pooled", AFL, SHARES))
    beside = [difference(side_of(runs, metric), side_of(runs, metric, BEST_ALONE))
              for metric in (BALANCED, WORST)]
    names = dict.fromkeys(place[0] for place in sorted(own.numbers, key=str))
    rows = []
    for name in names:
        sides = [Side({p: v for p, v in side.numbers.items() if p[0] == name}, side.answers)
                 for side in (alone, own, pooled)]
        before, after, whole = map(_mean, sides)
        rows.append((dataset_name(name), before, after, whole, difference(sides[1], sides[0])))
    configs = [run.identity_config() for run in runs]
    clients = sorted({int(config.get("FED.CLIENTS") or 0) for config in configs})
    return Case(
        one.lane, lane.title, one.title,
        " to ".join(map(str, dict.fromkeys((clients[0], clients[-1])))),
        one.short(method), len(one.gains), one.gain_of(method), _mean(alone), _mean(own),
        _mean(pooled), one.gains[method], beside[0], beside[1], _losers(own, alone), rows,
        _mean(ridge), _mean(shares), difference(own, shares), frozenset(map(deal_of, runs)))


def _losers(own: Side, alone: Side) -> float | None:
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
    return _mean(Side(shares, {}))


def _mean(side: Side) -> float | None:
    sets: dict[Any, list[float]] = {}
    for place, numbers in side.numbers.items():
        sets.setdefault(place[0], []).append(mean(numbers.values()) or 0.0)
    return mean(mean(each) for each in sets.values())


def first_cases(every: Sequence[Case]) -> list[Case]:
    """Return of each setting the row that reaches the most together."""
    best: dict[str, Case] = {}
    for case in every:
        if case.lane not in best or (case.together or 0) > (best[case.lane].together or 0):
            best[case.lane] = case
    return list(best.values())


def federate(every: Sequence[Case], first: Sequence[Case]) -> list[str]:
    """Answer whether clients should federate, from the settings' best rows: a line each."""
    if not first:
        return ["No setting has methods that communicate and a baseline without collaboration."]
    up = [c for c in first if c.sure > 0]
    down = [c for c in first if c.sure < 0]
    out = [f"Significantly better in {_named(up)}.{_alike(up)}",
           f"Significantly worse in {_named(down)}.{_alike(down)}",
           f"Undecided in {len(first) - len(up) - len(down)}."]
    if told := untrained(first):
        out.append(told)
    balanced = [c for c in first if c.balanced is not None]
    if balanced:
        gains = [c.balanced.mean for c in balanced if c.balanced]
        sides = [c.balanced.apart for c in balanced if c.balanced]
        out.append("Class-balanced accuracy counts rare classes like common ones. In it the same "
                   f"methods differ by {min(gains):+.1f} to {max(gains):+.1f} points from the best "
                   f"that each client reaches alone: significantly above it in {sides.count(1)} "
                   f"and below it in {sides.count(-1)} of {len(balanced)} settings (by seeds "
                   "alone, without correction for choosing).")
    hurt = [c for c in first if c.hurt is not None]
    if hurt:
        least, most = (f(hurt, key=lambda c: c.hurt or 0.0) for f in (min, max))
        out.append(f"Clients that reach more alone: {least.hurt:.1f} % at least ({least.method} in "
                   f"{least.setting}), {most.hurt:.1f} % at most ({most.method} in "
                   f"{most.setting}).")
    new = [c for c in every if c.gain.ahead]
    sure = [c for c in new if c.gain.apart_ahead > 0]
    few = len(every) - len(new)
    rest = f"; {few} comparisons have too few data sets for an interval" if few else ""
    if len(sure) < len(every):
        out.append("All this is about these data sets. For one more data set a gain can be "
                   f"promised in {len(sure) or 'none'} of the {len(new)} comparisons on four or "
                   f"more{rest}." if new else "All this is about these data sets. No comparison "
                   "has the four that a promise for one more needs.")
    return out


def _alike(some: Sequence[Case]) -> str:
    """Say that rows share images, clients and seeds, so that they are not as many cases."""
    groups: list[set[tuple[Any, ...]]] = []
    for case in some:
        near = [group for group in groups if group & case.deals]
        groups = [group for group in groups if group not in near]
        groups.append(set(case.deals).union(*near))
    if len(groups) == len(some):
        return ""
    return (f" These {len(some)} have images, clients and seeds in common: "
            f"{len(groups)} independent case{'s' * (len(groups) > 1)}, not {len(some)}.")


def untrained(first: Sequence[Case]) -> str:
    """Say where one round without training reaches as much as the best methods; '' of no run."""
    have = [(c, c.beside, c.shares) for c in first if c.beside and c.shares is not None]
    if not have:
        return ""
    above = [(c, seen, value) for c, seen, value in have if seen.mean <= 0]
    sure = sum(seen.apart < 0 for _, seen, _ in above)
    words = ", ".join(f"{value:.1f} % in {c.setting} ({c.method} {seen.mean:+.1f} points)"
                      for c, seen, value in above)
    return ("AFL plus each client's class shares, one round without training, is known for the "
            f"images and clients of {len(have)} of these settings and reaches at least as much as "
            f"the best method in {len(above)}, significantly more in {sure}"
            + (f": {words}." if words else ".")
            + " A personal head that does not beat it has not been shown to need its training.")


def with_what(standings: Sequence[Standing], unranked: int) -> list[str]:
    """Answer which method to take: who is best where, and who is as good; a line each."""
    every = [one for one in standings if one.alike]
    if not every:
        return ["No setting has tuned methods that train the same."]
    with_local = [one for one in every if one.over_local]
    above = [one for one in with_local if one.above_local("")]
    wins: dict[str, int] = {}
    for one in every:
        for method in (one.best, *one.peers):
            wins[one.short(method)] = wins.get(one.short(method), 0) + 1
    places = {name: sum(name in map(one.short, one.means) for one in every) for name in wins}
    most = sorted(wins, key=lambda name: (-wins[name], places[name], name))[:4]
    seen = [c.detectable for one in every for c in one.apart.values() if c.detectable is not None]
    out = [
        f"{len(every)} comparisons, each of methods that train the same parameters in the same "
        "setting.",
        "LocalOnly is the same parameters, each client trained alone. Some method is significantly "
        f"better than it in {len(above)} of the {len(with_local)} comparisons that have it.",
        "Best, or not significantly below the best: "
        + ", ".join(f"{name} in {wins[name]} of its {places[name]}" for name in most) + "."
        + (f" That is not the same as equally good: a difference must be {median(seen):.1f} "
           "points to be found (median)." if seen else "")]
    if any("(ft)" in name for name in most):
        out.append("(ft): with a final fine-tuning at each client.")
    if unranked:
        out.append(f"{unranked} runs of methods that were not tuned are not ranked.")
    return out


def at_our_place(
    standings: Sequence[Standing], lanes: Sequence[Lane], first: Sequence[Case]
) -> list[str]:
    """Answer what a run costs: bytes as sent, seconds, over all ranked methods; a line each.

    Args:
        first: the best method of each setting.
    """
    by_name = {lane.name: lane for lane in lanes}
    top = {(case.lane, case.title, case.method) for case in first}
    costs, best, ready, every = [], [], 0, 0
    for one in standings:
        if not one.alike or one.lane in VARIANTS:
            continue
        for method in sorted(one.senders & one.means.keys()):
            runs = [run for run in by_name[one.lane].runs if run.method == method]
            every += len(runs)
            ready += sum(map(_encoded_before, runs))
            sent = [s for run in runs if (s := sent_of(run)) is not None]
            if sent:
                costs.append((mean(sent) or 0.0, mean(run.seconds for run in runs) or 0.0,
                              one.short(method)))
                if (one.lane, one.title, one.short(method)) in top:
                    best.append(costs[-1])
    if not costs:
        return ["No run of these settings sent anything."]
    seconds = sorted(cost[1] for cost in costs)
    return [
        f"A CPU is enough. A run of all clients takes {seconds[0]:.0f} to {seconds[-1]:.0f} "
        "seconds on one core with these small backbones, which are frozen and encode each image "
        f"once. Encoding comes on top: {ready:,} of {every:,} runs found their images encoded.",
        f"A client sends and receives {_sent(costs)} in each round"
        + (f"; with the best method of a setting {_sent(best)}." if best else "."),
        "The same command runs in one process, in several, and at sites that keep their images."]


def _encoded_before(run: FinishedRun) -> bool:
    """Return whether a run's note says that all image features were there before it."""
    return any(re.match(r"image features: all .* from the (store|cache)", str(note))
               for note in run.info.get("notes", ()))


def _sent(costs: Sequence[tuple[float, float, str]]) -> str:
    ends = [f"{kb:,.{int(kb < 10)}f} kB ({name})" for kb, _, name in (min(costs), max(costs))]
    return " to ".join(dict.fromkeys(ends))


def sent_of(run: FinishedRun) -> float | None:
    """Return the kilobytes up and down that a client sends in a round; None of no round."""
    totals = run.totals()
    rounds = totals.get("client_rounds")
    if not rounds:
        return None
    return (totals.get("bytes_up", 0) + totals.get("bytes_down", 0)) / rounds / 1000


def unreliable(every: Sequence[Case]) -> str:
    """Say what is left of the gain where only a part of the clients answers in a round."""
    pairs = [(next((c for c in every if c.lane == "dirichlet" and c.title == part.title), None),
              part) for part in every if part.lane == "participation"]
    return " ".join(
        f"Where a part of the clients answers in each round ({part.title}), {part.method} is best "
        f"with a gain of {part.gain.mean:+.1f} points; with all of them {whole.method}, "
        f"{whole.gain.mean:+.1f}." for whole, part in pairs if whole)


Matrix = tuple[str, Sequence[str], Sequence[tuple[str, str, str, Sequence[str]]]]


def win_rates(parts: Iterable[tuple[str, str, Sequence[FinishedRun]]]) -> list[Matrix]:
    """Return a win-rate matrix for each set of trained parameters.

    Args:
        parts: (setting, what is trained, its ranked runs).

    Returns:
        Title, short names, and for each method its name, mean rate, cells and rates, as text.
    """
    cells: dict[str, dict[str, dict[Any, float]]] = {}
    for lane, title, runs in parts:
        for run in runs:
            value = run.value(PERSONAL)
            if value is not None:
                key = (lane, place_of(run), seeds_of(run))
                cells.setdefault(title, {}).setdefault(bare(run.method), {})[key] = value
    out: list[Matrix] = []
    for title, methods in cells.items():
        if len(methods) < FEWEST:
            continue
        every = {key for numbers in methods.values() for key in numbers}
        rates = {a: {b: _rate(methods[a], methods[b]) for b in methods if b != a} for a in methods}
        means = {a: mean(rate for rate in row.values()) for a, row in rates.items()}
        order = sorted(methods, key=lambda m: (-(means[m] or 0.0), m))
        rows = [(a, _percent(means[a]), f"{len(methods[a])} of {len(every)}",
                 [" " if a == b else _percent(rates[a][b]) for b in order]) for a in order]
        out.append((title, order, rows))
    return out


def _rate(a: Mapping[Any, float], b: Mapping[Any, float]) -> float | None:
    both = a.keys() & b.keys()
    return mean((a[key] > b[key]) + 0.5 * (a[key] == b[key]) for key in sorted(both, key=str))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}"


def _named(rows: Sequence[Case]) -> str:
    names = ", ".join(f"{c.method} {c.gain.mean:+.1f} points in {c.setting}" for c in rows)
    return f"{len(rows)}: {names}" if rows else "none"
