"""What the first screen and the pages behind it say: the four questions, answered from standings.

Every number is of the cells; a sentence is made of counts and of the rows that it names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from evidence.results.claims import (
    BEST_ALONE,
    Side,
    deal_of,
    difference,
    place_of,
    seeds_of,
    side_of,
)
from evidence.results.lanes import Lane, bare
from evidence.results.standing import NEW, PERSONAL, Standing, losers, mean_of_sets
from fedvlm.core.stats import mean
from fedvlm.report.statistics.contrast import EXACT, Contrast
from fedvlm.report.tables.papers import dataset_name
from fedvlm.runs.finished import FinishedRun

BALANCED, WORST = "personal_balanced", "personal_worst"
SEVERAL = 5  # clients at least, of which what scanners change is told
ALIKE = ("0.3", "1", "even")  # label skews of the map in which clients share classes
UNLIKE = ALIKE[0]
OWN_HEADS, RIDGE_SHARES = "personal", "ridge+shares"  # the map's names of the two
MANY = 100  # images that a run encodes, from which its speed is told
NO_WINS = ("ablation", "unseen")  # settings about parts of a method, or other metrics
FEWEST = 3  # methods of a matrix
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
        even: class-balanced gain of AFL plus class shares over alone, of the method's runs.
        deals: images, clients and seeds of its runs (``claims.deal_of``).
        exact: whether the interval of ``gain`` compares image by image, over seeds, too.
        fair: the row's method with the highest class-balanced gain, and that gain, in words.
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
    even: Contrast | None = None
    deals: frozenset[tuple[Any, ...]] = frozenset()
    exact: bool = False
    fair: str = "-"

    @property
    def untrained(self) -> str:
        """What both references reach, in words."""
        return " / ".join("-" if x is None else f"{x:.1f}" for x in (self.ridge, self.shares))


def cases(standings: Sequence[Standing], lanes: Sequence[Lane]) -> list[Case]:
    """Return a row for each standing of methods that train the same and communicate."""
    by_name = {lane.name: lane for lane in lanes}
    return [_case(one, by_name[one.lane]) for one in standings
            if one.alike and one.gains and one.lane not in NO_WINS]


def _case(one: Standing, lane: Lane) -> Case:
    method = max(one.gains, key=lambda m: one.means[m])
    runs = [run for run in lane.runs if run.method == method]
    own, alone, pooled, ridge, shares = (
        side_of(runs, PERSONAL, key) for key in ("", BEST_ALONE, "pooled", AFL, SHARES))
    beside = [difference(side_of(runs, metric, key), side_of(runs, metric, BEST_ALONE))
              for metric, key in ((BALANCED, ""), (WORST, ""), (BALANCED, SHARES))]
    names = dict.fromkeys(place[0] for place in sorted(own.numbers, key=str))
    rows = []
    for name in names:
        sides = [Side({p: v for p, v in side.numbers.items() if p[0] == name}, side.answers)
                 for side in (alone, own, pooled)]
        before, after, whole = map(mean_of_sets, sides)
        rows.append((dataset_name(name), before, after, whole, difference(sides[1], sides[0])))
    configs = [run.identity_config() for run in runs]
    clients = sorted({int(config.get("FED.CLIENTS") or 0) for config in configs})
    return Case(
        one.lane, lane.title, one.title,
        " to ".join(map(str, dict.fromkeys((clients[0], clients[-1])))),
        one.short(method), len(one.gains), one.gain_of(method), mean_of_sets(alone),
        mean_of_sets(own), mean_of_sets(pooled), one.gains[method], beside[0], beside[1],
        losers(own, alone), rows,
        mean_of_sets(ridge), mean_of_sets(shares), difference(own, shares), beside[2],
        frozenset(map(deal_of, runs)), one.gains[method].images == EXACT, _fair(one, lane))


def _fair(one: Standing, lane: Lane) -> str:
    """Return who gains the most class-balanced accuracy over alone, in words."""
    gains = {}
    for method in one.gains:
        runs = [run for run in lane.runs if run.method == method]
        seen = difference(side_of(runs, BALANCED), side_of(runs, BALANCED, BEST_ALONE))
        if seen is not None:
            gains[method] = seen.mean
    best = max(gains, key=lambda m: gains[m], default="")
    return f"{one.short(best)} {gains[best]:+.1f}" if best else "-"


def first_cases(every: Sequence[Case]) -> list[Case]:
    """Return of each setting the row that reaches the most together."""
    best: dict[str, Case] = {}
    for case in every:
        if case.lane not in best or (case.together or 0) > (best[case.lane].together or 0):
            best[case.lane] = case
    return list(best.values())


def federate(first: Sequence[Case]) -> list[str]:
    """Answer whether clients should federate, from the settings' best rows: a line each."""
    if not first:
        return ["No setting has methods that communicate and a baseline without collaboration."]
    up = [c for c in first if c.sure > 0]
    down = [c for c in first if c.sure < 0]
    undecided = [c for c in first if c.sure == 0]
    odd = [c.lane for c in undecided if c.gain.apart]
    return list(filter(None, [
        _shares_alone(first),
        "Of trained and tuned methods in which clients exchange something, a setting's best is "
        f"significantly better than alone in {_named(up)}.{_alike(up)}",
        f"It is significantly worse in {_named(down)}.{_alike(down)}",
        f"It is undecided in {len(undecided)}."
        + (f" An interval without zero can be undecided ({', '.join(odd)}): significance is "
           "corrected for choosing the best of many." if odd else ""), untrained(first)]))


def _shares_alone(first: Sequence[Case]) -> str:
    """Say in how many settings AFL plus class shares is above working alone; '' of no run."""
    have = [(c, c.shares - c.alone) for c in first
            if c.shares is not None and c.alone is not None]
    if not have:
        return ""
    below = [f"{c.lane} ({points:+.1f})" for c, points in have if points <= 0]
    above = [points for _, points in have if points > 0]
    return ("AFL plus each client's class shares, which trains nothing, is above working alone in "
            f"{len(above)} of {len(have)} settings"
            + (f" ({min(above):+.1f} to {max(above):+.1f} points)" if above else "")
            + (f", not above it in {', '.join(below)}" if below else "") + "."
            + _alike([c for c, points in have if points > 0]))


def beside(every: Sequence[Case], first: Sequence[Case]) -> list[str]:
    """Say what the same rows are by class, for clients and on a new set; a line each."""
    out = []
    balanced = [c.balanced for c in first if c.balanced is not None]
    if balanced:
        gains, sides = [g.mean for g in balanced], [g.apart for g in balanced]
        out.append("Class-balanced, over each client's own classes, the same methods gain "
                   f"{min(gains):+.1f} to {max(gains):+.1f} points: significantly above alone in "
                   f"{sides.count(1)} and below it in {sides.count(-1)} of {len(balanced)} "
                   "settings (by seeds alone, without correction for choosing).")
    hurt = [c for c in first if c.hurt is not None]
    if hurt:
        least, most = (f(hurt, key=lambda c: c.hurt or 0.0) for f in (min, max))
        out.append(f"Even with the best method of a setting, {least.hurt:.1f} % ({least.method}, "
                   f"{least.lane}) to {most.hurt:.1f} % ({most.method}, {most.lane}) of the "
                   "clients would have done better alone.")
    new = [c for c in every if c.gain.ahead]
    sure = [c for c in new if c.gain.apart_ahead > 0]
    few = len(every) - len(new)
    rest = f" ({few} have fewer)" if few else ""
    if len(sure) < len(every):
        out.append("On another data set a gain is sure in "
                   f"{len(sure) or 'none'} of the {len(new)} comparisons on four data sets or "
                   f"more{rest}." if new else "Nothing follows for another data set: no "
                   "comparison has the four that a prediction needs.")
    return out


def how_wide(every: Sequence[Case]) -> str:
    """Say which settings' gains are compared image by image, which makes intervals narrower."""
    known: dict[str, list[bool]] = {}
    for one in every:
        known.setdefault(one.lane, []).append(one.exact)
    rest = [name for name, some in known.items() if not all(some)]
    if not known:
        return ""
    if len(rest) == len(known):
        return ("No setting's gains are all compared image by image: intervals rest on counts of "
                "right answers and are too wide, and undecided is often that ([how wide]"
                "(../tables.md)).")
    words = (f"The gains of {len(known) - len(rest)} of {len(known)} settings are compared image "
             "by image, over seeds, too")
    return words + (f"; those of the others ({', '.join(rest)}) rest at least in part on counts of "
                    "right answers, so their intervals are too wide, and undecided is often that"
                    if rest else "") + " ([how wide](../tables.md))."


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
    above = [c for c, seen, _ in have if seen.mean <= 0]
    sure = [c.lane for c, seen, _ in have if seen.apart < 0]
    named = f" ({', '.join(sure)})" if sure else ""
    return ("One baseline needs no training: AFL's ridge regression plus the logarithm of each "
            "client's class shares (two rounds). It reaches at least as much as the best "
            f"method in {len(above)} of {len(have)} settings, significantly more in "
            f"{len(sure)}{named}. A trained method is worth its rounds only where it beats this "
            "baseline.")


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
    most = sorted(wins, key=lambda name: (-wins[name], places[name], name))[:3]
    seen = [c.detectable for one in every for c in one.apart.values() if c.detectable is not None]
    out = [
        "Among methods that train the same parameters, best or not clearly worse than the best "
        "(that says nothing of working alone): "
        + ", ".join(f"{name} in {wins[name]} of its {places[name]} comparisons" for name in most)
        + "." + (f" In half of the comparisons a difference below {median(seen):.1f} points "
                 "is missed more often "
                 "than one time in five." if seen else ""),
        "Some method is significantly better than the same parameters trained alone (LocalOnly) in "
        f"{len(above)} of the {len(with_local)} comparisons that have it."]
    if any("(ft)" in name for name in most):
        out.append("(ft): with a final fine-tuning at each client.")
    if unranked:
        out.append(f"{unranked} runs are not ranked: their methods were not tuned, or have nothing "
                   "to tune, as AFL.")
    return out


def useless(
    every: Sequence[Case], standings: Sequence[Standing] = (), lanes: Sequence[Lane] = ()
) -> str:
    """Say which parameters no method should train here: below alone in every setting.

    A method that a ranking leaves out, because it lacks data sets, can be the exception.
    """
    by: dict[str, list[Case]] = {}
    for case in every:
        by.setdefault(case.title, []).append(case)
    down = {title: max(some, key=lambda c: c.gain.mean) for title, some in by.items()
            if all(c.sure < 0 for c in some)}
    others = {title: found for title, best in down.items()
              if (found := _left_out(title, best.gain.mean, standings, lanes))}
    words = ", ".join(f"{title} ({best.gain.mean:+.1f} points at best)"
                      for title, best in down.items() if title not in others)
    out = [f"What not to train on such small backbones, since the best method is significantly "
           f"below working alone in every setting: {words}."] if words else []
    out += [f"Of {title} the ranked methods are below, too ({down[title].gain.mean:+.1f} points "
            f"at best), but not {found}" for title, found in others.items()]
    if any("(csc)" in found for found in others.values()):
        out.append("(csc): a context of words for each class; the others have one for all.")
    return " ".join(out)


def _left_out(
    title: str, best: float, standings: Sequence[Standing], lanes: Sequence[Lane]
) -> str:
    """Name a method that lacks data sets and is not significantly below alone; '' of none.

    Args:
        title: what is trained; best: the highest gain of those with all data sets, in points.
    """
    by_name = {lane.name: lane for lane in lanes}
    found = []
    for one in standings:
        if one.title != title or not one.alike or one.lane in NO_WINS:
            continue
        for method in one.lacking:
            runs = [run for run in by_name[one.lane].runs if run.method == method]
            own = side_of(runs, PERSONAL)
            seen = difference(own, side_of(runs, PERSONAL, BEST_ALONE))
            if seen is not None and seen.apart >= 0 and seen.mean > best:
                names = dict.fromkeys(dataset_name(place[0]) for place in
                                      sorted(own.numbers, key=str))
                found.append((seen.mean, f"{bare(method)} in {one.lane}: {seen.mean:+.1f} "
                              f"[{seen.low:+.1f}, {seen.high:+.1f}], on {' and '.join(names)} "
                              "alone."))
    return max(found)[1] if found else ""


def at_our_place(
    standings: Sequence[Standing], lanes: Sequence[Lane], first: Sequence[Case]
) -> list[str]:
    """Answer what a run costs: bytes as sent, seconds, over all methods that send; a line each.

    Args:
        first: the best method of each setting.
    """
    names = {(one.lane, one.title): one for one in standings}
    top = {(case.lane, next((m for m in names[case.lane, case.title].means if names[
        case.lane, case.title].short(m) == case.method), case.method)) for case in first}
    sent, best, seconds, speeds, ready = [], [], [], list[float](), 0
    for lane in lanes:
        for method in dict.fromkeys(run.method for run in lane.runs):
            runs = [r for r in lane.runs if r.method == method and r.totals().get("bytes_up")]
            told = [s for run in runs if (s := sent_of(run)) is not None]
            ready += sum(map(_encoded_before, runs))
            seconds += [run.seconds for run in runs]
            speeds += [speed for run in runs if (speed := _encoding_speed(run))]
            if not told:
                continue
            sent.append((mean(told) or 0.0, bare(method)))
            if (lane.name, method) in top:
                best.append(sent[-1])
    if not sent:
        return ["No run of these settings sent anything."]
    least, most = min(seconds), max(seconds)
    return [
        "With the small backbones of these pages a CPU is enough. "
        f"{len(seconds):,} runs of methods that send, each of all clients, took "
        f"{least:.1f} to {most:.0f} seconds on one core, half "
        f"of them at most {median(seconds):.0f}; encoding the images, once, comes on "
        "top.",
        f"A client sends and receives {_sent(sent)} in each round"
        + (f"; with the best trained method of a setting {_sent(best)}." if best else ".")
        + " AFL, FedPFT and TOFA need one message; the others send in every round.",
        "Images are encoded once and stored, which comes on top: "
        f"{ready:,} of these {len(seconds):,} runs found them stored"
        + (f"; the others encoded {median(speeds):,.0f} a second in the median" if speeds else "")
        + ".",
        "The same command runs in one process, in several, and at sites that keep their images."]


def _encoded_before(run: FinishedRun) -> bool:
    """Return whether a run's note says that all image features were there before it."""
    return any(re.match(r"image features: all .* from the (store|cache)", str(note))
               for note in run.info.get("notes", ()))


def _encoding_speed(run: FinishedRun) -> float | None:
    """Return how many images a second a run encoded, of ``MANY`` images at least, by its note."""
    for note in run.info.get("notes", ()):
        found = re.match(r"image features: ([0-9,]+) encoded in .* = ([0-9,]+) images/s", str(note))
        if found:
            images, speed = (float(word.replace(",", "")) for word in found.groups())
            return speed if images >= MANY else None
    return None


def _sent(costs: Sequence[tuple[float, str]]) -> str:
    ends = [f"{kb:,.{int(kb < 10)}f} kB ({name})" for kb, name in (min(costs), max(costs))]
    return " to ".join(dict.fromkeys(ends))


def sent_of(run: FinishedRun) -> float | None:
    """Return the kilobytes up and down that a client sends in a round; None of no round."""
    totals = run.totals()
    rounds = totals.get("client_rounds")
    if not rounds:
        return None
    return (totals.get("bytes_up", 0) + totals.get("bytes_down", 0)) / rounds / 1000


def unreliable(every: Sequence[Case], drawn: Sequence[Mapping[str, str]] = ()) -> str:
    """Say what is left of the gain where only a part of the clients answers in a round.

    Args:
        drawn: rows of the map's ``methods.csv``.
    """
    sides = {1: "significant", 0: "undecided", -1: "significantly below"}
    pairs = [(next((c for c in every if c.lane == "dirichlet" and c.title == part.title), None),
              part) for part in every if part.lane == "participation"]
    lines = [f"Where a part of the clients answers in each round ([participation]"
             f"(settings/participation.md), {part.title}), {part.method} has the highest mean, "
             f"{part.gain.mean:+.1f} points above alone ({sides[part.sure]}); with all of them "
             f"{whole.method}, {whole.gain.mean:+.1f} ({sides[whole.sure]})."
             for whole, part in pairs if whole]
    few = gains_on_map(drawn, "two clients in a round")
    if few:
        order = sorted(few, key=lambda m: -few[m])
        lines.append("With two of ten in each round, on the [map's middle](map/methods.md), it is "
                     + ", ".join(f"{m} {few[m]:+.1f}" for m in order) + ".")
    return " ".join(lines)


def gains_on_map(
    drawn: Sequence[Mapping[str, str]], case: str, own: str = PERSONAL, alone: str = "alone"
) -> dict[str, float]:
    """Return each method's gain over alone in a case of ``methods.csv``, sets alike.

    Args:
        own, alone: the columns.
    """
    several: dict[str, dict[str, list[float]]] = {}
    for row in drawn:
        if row["case"] == case and row.get(own) and row.get(alone):
            several.setdefault(row["method"], {}).setdefault(row["set"], []).append(
                float(row[own]) - float(row[alone]))
    most = max(map(len, several.values()), default=0)
    return {method: mean(mean(values) for values in sets.values()) or 0.0
            for method, sets in several.items() if len(sets) == most}


def own_cases(
    every: Sequence[Case], standings: Sequence[Standing], cells: Sequence[Mapping[str, str]],
    drawn: Sequence[Mapping[str, str]], lanes: Sequence[Lane] = (),
) -> list[tuple[str, str]]:
    """Return what a reader's case is, and the answer in one line; what no run says is left out.

    Args:
        cells, drawn: rows of the map's ``map.csv`` and ``methods.csv``.
        lanes: of the standings.
    """
    return [(case, words) for case, words in (
        ("differ by scanner or hospital", _scanners(cells)),
        ("have classes of their own", _disjoint(every)),
        ("have the same classes and one image of each (10 clients, 10 images)",
         _on_map(drawn, "even 10x10")),
        ("expect new classes later", _new_classes(standings, lanes)),
        ("are poor beside rich", _poor(drawn)),
    ) if words]


def scanner_gains(cells: Sequence[Mapping[str, str]], skews: Sequence[str] = ALIKE) -> list[float]:
    """Return median gains of Ditto and AFL plus class shares with a scanner each, then without.

    Over the map's cells that differ in nothing else, of clients that share classes; the number of
    these cells comes last. Empty of none.
    """
    keys = ("set", "clients", "images", "skew")
    at: dict[tuple[str, bool], dict[tuple[str, ...], float]] = {}
    for row in cells:
        if row["method"] in (OWN_HEADS, RIDGE_SHARES) and row["skew"] in skews \
                and SEVERAL <= int(row["clients"]) <= 2 * SEVERAL:
            at.setdefault((row["method"], row["shift"] != "no"), {})[
                tuple(row[key] for key in keys)] = float(row["gain"])
    sides = [at.get((method, shift), {}) for shift in (True, False)
             for method in (OWN_HEADS, RIDGE_SHARES)]
    both = set(sides[0]).intersection(*sides[1:])
    return [*(round(median(side[cell] for cell in both), 1) + 0.0 for side in sides), len(both)] \
        if both else []


def _scanners(cells: Sequence[Mapping[str, str]]) -> str:
    """Return these gains in words."""
    found = scanner_gains(cells)
    if not found:
        return ""
    ditto, shares, *plain, count = found
    words = (f"{SEVERAL} to {2 * SEVERAL} clients that share classes, with five simulated scanners "
             f"(filters): Ditto {ditto:+.1f} points in the median, AFL plus class shares "
             f"{shares:+.1f}; with one scanner for all {plain[0]:+.1f} and {plain[1]:+.1f} "
             f"({count:.0f} pairs of cells; [map](map/README.md)).")
    unlike = scanner_gains(cells, (UNLIKE,))
    if unlike and ditto > shares:
        words += (f" Of these with unlike classes (Dirichlet {UNLIKE}) {unlike[0]:+.1f} and "
                  f"{unlike[1]:+.1f}: take Ditto, trained to the end.")
    return words


def _disjoint(every: Sequence[Case]) -> str:
    some = [c for c in every if c.lane == "disjoint"]
    best = max(some, key=lambda c: c.together or 0.0, default=None)
    if best is None:
        return ""
    answer = {1: "Yes", 0: "No clear gain", -1: "No"}[best.sure]
    shares = "" if best.shares is None or best.alone is None or best.shares >= best.alone else (
        f"; AFL plus class shares {best.shares - best.alone:+.1f}: do not start with it here")
    return (f"{answer}: {best.method}, the best of {best.of}, {best.gain.mean:+.1f} points{shares} "
            "([disjoint](settings/disjoint.md)).")


def _on_map(drawn: Sequence[Mapping[str, str]], case: str) -> str:
    found = gains_on_map(drawn, case)
    order = sorted(found, key=lambda m: -found[m])
    return ", ".join(f"{m} {found[m]:+.1f}" for m in order[:2]) \
        + " points (the best two; [methods on the map](map/methods.md))." if order else ""


def _poor(drawn: Sequence[Mapping[str, str]], case: str = "poor beside rich") -> str:
    """Return who is best where clients have few and many images, and what both thirds gain."""
    found = gains_on_map(drawn, case)
    best = max(found, key=lambda m: found[m], default="")
    parts = []
    for who, words in (("poor", "the third with the fewest test images"),
                       ("rich", "the third with the most")):
        points = gains_on_map(drawn, case, who, f"{who}_alone")
        each = [float(row[who]) - float(row[f"{who}_alone"]) for row in drawn
                if (row["case"], row["method"]) == (case, best) and row.get(who)
                and row.get(f"{who}_alone")]
        if best in points and each:
            parts.append(f"{words} {points[best]:+.1f} ({len(each)} draws: {min(each):+.1f} to "
                         f"{max(each):+.1f})")
    return _on_map(drawn, case) + (f" With {best} {', '.join(parts)}." if parts else "")


def _new_classes(standings: Sequence[Standing], lanes: Sequence[Lane]) -> str:
    """Return the best method on classes that no client has, over the zero-shot model."""
    some = [one for one in standings if one.alike and one.metric == NEW and one.gains]
    if not some:
        return ""
    every = [(one.gains[m].mean, one, m) for one in some for m in one.gains]
    points, one, best = max(every, key=lambda told: told[0])
    sure = sum(one.gain_of(m) > 0 for _, one, m in every)
    runs = [run for lane in lanes if lane.name == one.lane for run in lane.runs
            if run.method == best]
    mine, alone = (mean_of_sets(side_of(runs, PERSONAL, key)) for key in ("", BEST_ALONE))
    rest = "" if mine is None or alone is None or alone < mine else (
        f" On the clients' own classes it reaches {mine:.1f} %, working alone {alone:.1f}: keep a "
        "head for these.")
    sets = dict.fromkeys(dataset_name(str(run.protocol.get("dataset"))) for run in runs)
    where = f", on {' and '.join(sets)}" if sets else ""
    return (f"For these alone{where}: {one.short(best)} ({one.title}), "
            f"{one.means[best]:.1f} % on them, "
            f"{points:+.1f} points over the zero-shot model; {sure} of {len(every)} methods are "
            f"significantly above it ([{one.lane}](settings/{one.lane}.md)).{rest}")


def shared_deals(lanes: Sequence[Lane]) -> str:
    """Name the settings that have images, clients and seeds in common; '' of none."""
    deals = {lane.name: frozenset(map(deal_of, lane.runs)) for lane in lanes if lane.runs}
    groups: list[list[str]] = []
    for name in deals:
        near = [group for group in groups if any(deals[name] & deals[other] for other in group)]
        groups = [group for group in groups if group not in near]
        groups.append([*(other for group in near for other in group), name])
    words = "; ".join(", ".join(group) for group in groups if len(group) > 1)
    return (f"Settings with images, clients and seeds in common: {words}. Their cells are not "
            "independent." if words else "")


def commonest(beta: float, classes: int = 10, most: int = 2) -> float:
    """Return the mean share of a client's commonest classes under Dirichlet, in percent."""
    drawn = np.random.default_rng(0).dirichlet(np.full(classes, beta), 20000)
    return 100 * float(np.sort(drawn)[:, -most:].sum(axis=1).mean())


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
    names = ", ".join(f"{c.method} {c.gain.mean:+.1f} points in {c.lane} ({c.title})" for c in rows)
    return f"{len(rows)}: {names}" if rows else "none"
