"""The page of the methods on the map: tables and sentences, all numbers from runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
from scipy import stats

from evidence.map.deal import EVEN, SKEWS, TWO
from evidence.map.images import SETS
from evidence.map.table import together
from evidence.methods.axes import (
    AXES,
    LATER,
    NAMES,
    POOR,
    ROUND,
    axes_words,
    by_method,
    gain,
)
from evidence.methods.figure import CELLS, cell_words, gains
from evidence.methods.real import COMMON
from evidence.methods.runs import MapPlan, Row
from fedvlm.report.tables.papers import dataset_name

TEXT = Path(__file__).with_suffix(".md")
NEAR = 1.0  # points below the best that count as equal to it
CSC = " (CSC)"
UNTUNED = ("Thorki feature",)  # and those of CSC: they have their defaults or others' rates
CONTROL = "LocalOnly"  # which shares nothing
ONE_ROUND = ("AFL",)  # whose message is the same in every round
MANY = 20  # clients
MIXED = {TWO: "two classes each", EVEN: "all classes evenly"}
COMMON_SIZE = "10x10"  # that the map has, too
FEW_CELLS = 6  # that are named


def page_of(
    plans: Sequence[MapPlan], rows: Sequence[Row], real: Sequence[Mapping[str, Any]],
    cells: Sequence[Row] = (),
) -> str:
    """Return the page; cells without runs are shown as missing.

    Args:
        cells: of ``map.csv``.
    """
    found = gains(rows)
    return TEXT.read_text(encoding="utf-8").format(
        counts=_counts(plans, rows, real), best=_best(plans, _compared(rows)),
        beside=_beside_map(rows, cells), rounds=COMMON["rounds"],
        order="\n\n".join(filter(None, (_order(found, rows), _without_runs(plans, rows)))),
        contexts=_contexts(plans, rows), fixed=_fixed(real),
        axes="\n\n".join(filter(None, (axes_words(rows), _axes(plans, rows)))),
        missing=_missing(plans, rows),
        plans="\n".join(f"- `{plan.name}`: {plan.about}" for plan in plans))


def _counts(
    plans: Sequence[MapPlan], rows: Sequence[Row], real: Sequence[Mapping[str, Any]]
) -> str:
    cells = [row for row in rows if row["plan"] in CELLS]
    methods = {row["method"] for row in cells}
    missing = sum(len(p.planned()) for p in plans) - len(rows)
    return (f"{len(cells)} runs of {len(methods)} methods in twelve cells of each of two data sets "
            f"({_seeds(cells)} each), {len(rows) - len(cells)} runs on further axes, and "
            f"{len(real)} runs of FedAvg and Ditto in a quarter of the cells of "
            f"{' and '.join(dict.fromkeys(dataset_name(r['set']) for r in real)) or 'no set'}. "
            + (f"{missing:,} planned runs are missing; [below](#what-is-missing) it says which."
               if missing else "No planned run is missing."))


def _seeds(rows: Iterable[Row]) -> str:
    """Return how many seeds a method has in a cell, in words."""
    counts = Counter((row["set"], row["case"], row["method"]) for row in rows)
    some = sorted(set(counts.values())) or [0]
    return (f"{some[0]} seed{'s' * (some[0] != 1)}" if len(some) == 1 else
            f"{some[0]} to {some[-1]} seeds")


def _many(things: Sequence[Any], what: str) -> str:
    return f"{len(things)} {what}{'s' * (len(things) != 1)}"


def _points(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _tuned(method: str) -> bool:
    return method not in UNTUNED and not method.endswith(CSC)


def _sent(rows: Sequence[Row]) -> str:
    """Return the kilobytes that a client sends in all rounds that a method needs."""
    sent = [row["bytes"] * (1 if row["method"] in ONE_ROUND else row["rounds"] or 1)
            for row in rows if row["bytes"] is not None]
    return f"{fmean(sent) / 1e3:,.0f}" if sent else "-"


def _compared(rows: Sequence[Row]) -> list[Row]:
    """Return the runs of the cells by tuned methods, of each cell those with its most seeds."""
    some = [row for row in rows if row["plan"] in CELLS and _tuned(row["method"])]
    counts = Counter((row["set"], row["case"], row["method"]) for row in some)
    most: dict[tuple[str, str], int] = {}
    for (name, case, _), count in counts.items():
        most[name, case] = max(count, most.get((name, case), 0))
    return [row for row in some if counts[row["set"], row["case"], row["method"]]
            == most[row["set"], row["case"]]]


def _mean(rows: Sequence[Row], name: str) -> float | None:
    values = [row[name] for row in rows if row[name] is not None]
    return fmean(values) if values else None


def _best(plans: Sequence[MapPlan], rows: Sequence[Row]) -> str:
    """Return the table of the best method of each cell.

    Args:
        rows: ``_compared``.
    """
    found = gains(rows)
    lines = ["| set | classes | clients x images | alone | best method | gain "
             f"| within {NEAR:g} point | clients that lose | without training "
             "| kB that a client sends in all rounds |",
             "|---|---|---|---:|---|---:|---|---:|---:|---:|"]
    places = list(dict.fromkeys((name, case) for plan in plans if plan.name in CELLS
                                for name, case, _, _ in plan.planned()))
    for name, case in places:
        here = {m: gain for (s, c, m), gain in found.items() if (s, c) == (name, case)}
        skew, size = cell_words(case)[0], case.split()[1].replace("x", " x ")
        first = f"| {NAMES.get(name, name)} | {skew} | {size} |"
        if not here:
            lines.append(f"{first} - | missing |" + " - |" * 5)
            continue
        top = max(here, key=lambda m: here[m])
        near = [m for m in here if m != top and here[m] >= here[top] - NEAR]
        some = [r for r in rows if (r["set"], r["case"], r["method"]) == (name, case, top)
                and r["plan"] in CELLS]
        prior = [r["prior"] - r["alone"] for r in some if r["prior"] is not None]
        lines.append(
            f"{first} {_number(_mean(some, 'alone'))} | {top} | "
            f"{here[top]:+.1f} | {', '.join(near) or '-'} | {_number(_mean(some, 'hurt'))} | "
            f"{_points(fmean(prior) if prior else None)} | {_sent(some)} |")
    gaps = [gap for name, case in places for gap in [_beside_prior(name, case, found, rows)]
            if gap is not None]
    words = (f"In {sum(gap <= 0 for gap in gaps)} of {len(gaps)} cells the best method (AFL "
             "included) does not beat AFL plus class shares of its backbone; it is "
             f"{fmean(gaps):+.1f} points from it in the mean.") if gaps else ""
    return "\n".join([*lines, "", words])


def _beside_map(rows: Sequence[Row], cells: Sequence[Row]) -> str:
    """Return how much more the map says than these runs, where both have the size; '' of none."""
    found = gains(_compared(rows))
    clients, images = map(int, COMMON_SIZE.split("x"))
    said = {(row["set"], row["skew"]): row["gain"] for row in together(cells)
            if not row["shift"] and (row["clients"], row["images"]) == (clients, images)}
    words = []
    for skew in SKEWS:
        case = f"{skew.split()[0]} {COMMON_SIZE}"
        pairs = [(said[full, skew], max(here)) for full, name in (
            (full, SETS[full]) for full, one in said if one == skew)
            if (here := [g for (s, c, _), g in found.items() if (s, c) == (name, case)])]
        if pairs:
            on_map, run = (fmean(pair[k] for pair in pairs) for k in (0, 1))
            words.append(f"{cell_words(case)[0]} {on_map:+.1f} on the map, {run:+.1f} here")
    return (f"The map promises more: for {clients} clients with {images} images each, mean of both "
            f"sets, {'; '.join(words)}. [Why](README.md#why-runs-gain-less)."
            if words else "")


def _beside_prior(
    name: str, case: str, found: Mapping[tuple[str, str, str], float], rows: Sequence[Row]
) -> float | None:
    """Return how far the best method of a cell is above AFL plus class shares, in points.

    The baseline is that of the method's own runs: others may have another backbone.
    """
    here = {m: gain for (s, c, m), gain in found.items() if (s, c) == (name, case)}
    top = max(here, key=lambda m: here[m], default="")
    prior = [r["prior"] - r["alone"] for r in rows
             if (r["set"], r["case"], r["method"]) == (name, case, top) and r["plan"] in CELLS
             and r["prior"] is not None and r["alone"] is not None]
    return here[top] - fmean(prior) if prior else None


def _order(found: Mapping[tuple[str, str, str], float], rows: Sequence[Row]) -> str:
    """Return tables of methods, the best mean gain first: with the most cells, and with fewer."""
    methods = list(dict.fromkeys(m for _, _, m in found))
    places = {m: {(s, c) for s, c, n in found if n == m} for m in methods}
    head = ["| method | cells | runs | personal gain | class-balanced gain | best in "
            "| worst client | clients that lose | kB that a client sends in all rounds |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
    whole, fewer = list(head), list(head)
    balanced = gains(rows, "balanced")
    runs = Counter(row["method"] for row in rows if row["plan"] in CELLS)
    most = max(((len(places[m]), runs[m]) for m in methods if _tuned(m)), default=(0, 0))
    ranked = {m for m in methods if (len(places[m]), runs[m]) == most and _tuned(m)}
    compared = gains(_compared(rows))
    tops: Counter[str] = Counter()
    for place in dict.fromkeys(place[:2] for place in compared):
        here = {m: compared[(*place, m)] for m in methods if (*place, m) in compared}
        tops[max(here, key=lambda m: here[m])] += 1
    for method in sorted(methods, key=lambda m: -fmean(found[(*p, m)] for p in places[m])):
        some = [r for r in rows if r["method"] == method and r["plan"] in CELLS]
        (whole if method in ranked else fewer).append(
            f"| {method}{'' if _tuned(method) else ' (defaults)'} | {len(places[method])} | "
            f"{runs[method]} | "
            f"{_points(fmean(found[(*p, method)] for p in places[method]))} | "
            f"{_points(fmean(balanced[(*p, method)] for p in places[method]))} | {tops[method]} | "
            f"{_number(_mean(some, 'worst'))} | {_number(_mean(some, 'hurt'))} | {_sent(some)} |")
    if fewer == head:
        return "\n".join(whole)
    there = sorted(set().union(*(places[m] for m in methods if m not in ranked)))
    where = ", ".join(f"{name} {case}" for name, case in there) if len(there) <= FEW_CELLS else \
        f"{len(there)} cells"
    return "\n".join([*whole, "", f"These have fewer cells or seeds, or defaults where "
                      f"others are tuned ({where}), and are not compared with those above.", "",
                      *fewer])


def _without_runs(plans: Sequence[MapPlan], rows: Sequence[Row]) -> str:
    """Return the methods that are planned for the cells and have no run, a row each; or ''."""
    there = {row["method"] for row in rows if row["plan"] in CELLS}
    planned = Counter(m for plan in plans if plan.name in CELLS
                      for m, _ in {(m, (s, c)) for s, c, m, _ in plan.planned()}
                      if m not in there)
    lines = [f"| {method} | missing | {cells} |" for method, cells in sorted(planned.items())]
    return "\n".join(["No run of these methods has been made:", "",
                      "| method | runs | planned cells |", "|---|---|---:|", *lines]) \
        if lines else ""


def words_of(rows: Sequence[Row], real: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return what the methods gain on the cells that they all have, a line each; '' of none."""
    rows = _compared(rows)
    found = gains(rows)
    whole, places = _whole(found)
    if not whole:
        return ""
    means = {m: fmean(found[(*place, m)] for place in places) for m in whole}
    order = sorted(means, key=lambda m: -means[m])
    runs = [r for r in rows if r["plan"] in CELLS and r["method"] in whole]
    skews = Counter(case.split()[0] for _, case in places)
    half, each = _uncertain(runs), min(skews.values())
    lines = [*_first(means, places, runs),
             f"These cells have {_seeds(runs)} each. Each row's best method was picked among "
             f"{len(whole)} by these same runs"
             + (f"; two methods that were not chosen so differ by chance by up to "
                f"{half / each**0.5:.1f} points in a row of {_many(range(each), 'cell')} (95 %, "
                "seeds alone)." if half else "."),
             f"Mean gain on {_many(places, 'cell')}: "
             + ", ".join(f"{m} {means[m]:+.1f}" for m in order) + " points."]
    return "\n".join(filter(None, (*lines, _short_of_map(real))))


def _first(
    means: Mapping[str, float], places: Sequence[tuple[str, str]], runs: Sequence[Row]
) -> list[str]:
    """Return what to start with, in a line: AFL plus class shares where it gains the most.

    Args:
        means: gain of each method over ``places``.
        runs: of these methods, in these places.
    """
    trained = [m for m in means if m not in (*ONE_ROUND, CONTROL)]
    best = max(trained, key=lambda m: means[m], default="")
    own, prior = ({place: fmean(some) for place in places if (some := [
        r[side] - r["alone"] for r in runs if (r["set"], r["case"]) == place
        and r["method"] == best and None not in (r[side], r["alone"])])}
        for side in ("personal", "prior"))
    if not own or means[best] <= 0:
        return []
    found = gains(runs)
    tops = {place: max(found[(*place, m)] for m in trained) for place in own}
    if len(prior) < len(places) or fmean(prior.values()) < means[best]:
        return [f"Start with {best}: {means[best]:+.1f} points over working alone in the mean of "
                f"{_many(places, 'cell')}."]
    equal = sum(prior[place] >= tops[place] for place in places)
    two = [place for place in places if place[1].split()[0] == TWO.split()[0]]
    most = max((fmean(some[place] for place in two) for some in (
        prior, *({place: found[(*place, m)] for place in two} for m in means))), default=NEAR) \
        if two else NEAR
    return [f"Start with AFL plus each client's class shares (two rounds, no training; with a "
            f"single image of each class it is plain AFL): {fmean(prior.values()):+.1f} points "
            f"over working alone in the mean of {_many(places, 'cell')}, at least as much as the "
            f"best trained method in {equal} of them. Of trained methods {best} gains most "
            f"({means[best]:+.1f}); heads that are trained longer, to the end, can gain more."
            + (f" With two classes each AFL plus class shares gains {_by_size(two, prior)}; no "
               f"method gains a point in the mean of {_many(two, 'such cell')}."
               if most < NEAR else "")]


def _by_size(
    places: Sequence[tuple[str, str]], gained: Mapping[tuple[str, str], float]
) -> str:
    """Return the mean gain in cells of as many clients, the fewest first."""
    by: dict[int, list[float]] = {}
    for place in places:
        by.setdefault(int(place[1].split()[1].split("x")[0]), []).append(gained[place])
    return ", ".join(f"{fmean(by[k]):+.1f} with {k}" for k in sorted(by)) + " clients"


def _uncertain(runs: Sequence[Row]) -> float | None:
    """Return half a 95 % interval of the difference of two methods in a cell; None of one seed.

    The variance of the differences of each method from the mean of all, pooled over cells.
    """
    cells: dict[tuple[str, str], dict[str, dict[Any, float]]] = {}
    for r in runs:
        cells.setdefault((r["set"], r["case"]), {}).setdefault(
            r["method"], {})[r["seed"]] = r["personal"]
    squares, degrees, each = 0.0, 0, []
    for methods in cells.values():
        seeds = sorted(set.intersection(*(set(v) for v in methods.values())))
        if len(seeds) < 2 or len(methods) < 2:
            continue
        table = np.array([[values[s] for s in seeds] for values in methods.values()])
        rest = table - table.mean(0)
        rest -= rest.mean(1, keepdims=True)
        squares += float((rest**2).sum())
        degrees += (len(seeds) - 1) * (len(methods) - 1)
        each.append(len(seeds))
    if not degrees:
        return None
    return float(stats.t.ppf(0.975, degrees) * np.sqrt(2 * squares / degrees / fmean(each)))


def _short_of_map(real: Sequence[Mapping[str, Any]]) -> str:
    """Return in a sentence how far runs stay from the map, few and many clients; '' of none."""
    words = []
    for method in ("FedAvg", "Ditto"):
        few, many = ([r["personal"] - r["fixed"] for r in real if r["method"] == method
                      and r["fixed"] is not None and (r["clients"] >= MANY) is more]
                     for more in (False, True))
        if few and many:
            words.append(f"{method} is {fmean(few):+.1f} points from it below {MANY} clients and "
                         f"{fmean(many):+.1f} from {MANY} on")
    return (f"The map is what heads reach when trained to the end: in {COMMON['rounds']} rounds "
            f"{', '.join(words)}.") if words else ""


def _whole(
    found: Mapping[tuple[str, str, str], float]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the methods that have the most cells, and these cells.

    Args:
        found: gains of runs that are ``_compared``.
    """
    places: dict[str, list[tuple[str, str]]] = {}
    for name, case, method in found:
        places.setdefault(method, []).append((name, case))
    most = max(map(len, places.values()), default=0)
    whole = [method for method, some in places.items() if len(some) == most]
    return whole, list(dict.fromkeys(place for method in whole for place in places[method]))


def cases_of(rows: Sequence[Row]) -> str:
    """Return a table that says which method fits a case: label skews, then further axes; or ''.

    Of the methods that have the most cells. Within: at most ``NEAR`` points below the best.
    """
    kept = _compared(rows)
    found, balanced = gains(kept), gains(kept, "balanced")
    whole, places = _whole(found)
    lines = ["| my clients have | best of these methods | gain | highest class-balanced gain "
             f"| clients that lose | within {NEAR:g} point | lowest "
             "| no training: AFL plus class shares |",
             "|---|---|---:|---|---:|---|---|---:|"]
    for skew in dict.fromkeys(case.split()[0] for _, case in places):
        some = [place for place in places if place[1].split()[0] == skew]
        own, even = ({m: fmean(by[(*p, m)] for p in some) for m in whole}
                     for by in (found, balanced))
        named = next(one for one in SKEWS if one.split()[0] == skew)
        runs = [r for r in kept if (r["set"], r["case"]) in some]
        lines.append(_case_row(MIXED.get(named, f"classes mixed by Dirichlet {skew}"), own, even,
                               runs))
    for case, words in ((POOR, "all classes evenly, poor clients beside rich ones"),
                        (ROUND, "classes mixed by Dirichlet 0.3, two of ten in a round")):
        own = by_method(rows, case, gain)
        if own:
            even = by_method(rows, case, lambda r: gain(r, "balanced", "alone_balanced"))
            lines.append(_case_row(words, own, even, [
                r for r in rows if r["plan"] in AXES and r["case"] == case]))
    if later := by_method(rows, LATER, lambda r: r["unseen_clients"]):
        order = list(later)
        near = [m for m in order[1:] if later[m] >= later[order[0]] - NEAR]
        lines.append(f"| clients that join after training | {order[0]} | "
                     f"{later[order[0]]:.1f} % | - | - | {', '.join(near) or '-'} | {order[-1]} "
                     f"{later[order[-1]]:.1f} % | - |")
    if len(lines) < 3:
        return ""
    sizes = dict.fromkeys(case.split()[1].replace("x", " x ") for _, case in places)
    sets = dict.fromkeys(NAMES.get(name, name) for name, _ in places)
    more = "; the rows of further cases: 10 x 20" if any(r["plan"] in AXES for r in rows) else ""
    return "\n".join([*lines, "", f"Means of {' and '.join(sets)}, clients x images of each on "
                      f"average: {', '.join(sizes)}{more}."])


def _case_row(
    words: str, own: Mapping[str, float], even: Mapping[str, float], runs: Sequence[Row]
) -> str:
    """Return a row of ``cases_of``.

    Args:
        own: gain by method; even: the same in class-balanced accuracy; runs: of all methods.
    """
    order = sorted(own, key=lambda m: -own[m])
    top, last, balanced = order[0], order[-1], max(even, key=lambda m: even[m], default="")
    near = [m for m in order[1:] if own[m] >= own[top] - NEAR]
    some = [r for r in runs if r["method"] == top]
    prior, fair = ([r[side] - r[alone] for r in some if None not in (r.get(side), r[alone])]
                   for side, alone in (("prior", "alone"), ("prior_balanced", "alone_balanced")))
    best = top if own[top] >= NEAR else f"none gains a point (highest: {top})"
    return (f"| {words} | {best} | {own[top]:+.1f} | "
            f"{f'{balanced} {even[balanced]:+.1f}' if balanced else '-'} | "
            f"{_number(_mean(some, 'hurt'))} % | {', '.join(near) or '-'} | "
            f"{f'{last} {own[last]:+.1f}' if last != top else '-'} | "
            f"{_points(fmean(prior) if prior else None)}"
            f"{f' (class-balanced {fmean(fair):+.1f})' if fair else ''} |")


def _lack(done: int, planned: int, what: str) -> str:
    """Return how many are there and how many are not, in a sentence."""
    if done == planned:
        return f"All {planned:,} planned {what} are there."
    return (f"{done:,} of {planned:,} planned {what} are there; the others have not been run."
            if done else f"None of the {planned:,} planned {what} has been run yet.")


def _contexts(plans: Sequence[MapPlan], rows: Sequence[Row]) -> str:
    """Return what a context for each class changes, paired by cell and seed."""
    planned = sum(m.endswith(CSC) for plan in plans if plan.name in CELLS
                  for _, _, m, _ in plan.planned())
    done = 0
    at = {(r["set"], r["case"], r["method"], r["seed"]): r["personal"] for r in rows
          if r["plan"] in CELLS}
    lines = []
    for method in dict.fromkeys(m for _, _, m, _ in at if m.endswith(CSC)):
        moved = [value - at[s, c, method.removesuffix(CSC), seed]
                 for (s, c, m, seed), value in at.items()
                 if m == method and (s, c, method.removesuffix(CSC), seed) in at]
        done += len(moved)
        if moved:
            lines.append(f"- {method.removesuffix(CSC)}: {fmean(moved):+.1f} points in the mean of "
                         f"{_many(moved, 'pair')} ({min(moved):+.1f} to {max(moved):+.1f}), better "
                         f"in {sum(x > 0 for x in moved)}.")
    return "\n".join([*lines, "", _lack(done, planned, "pairs of runs")]).strip()


def _fixed(real: Sequence[Mapping[str, Any]]) -> str:
    figure = "![Gain of real runs by the gain of their fixed points](fixed.png)"
    lines = [figure, ""] if real else []
    for method in ("FedAvg", "Ditto"):
        some = [r for r in real if r["method"] == method
                and None not in (r["fixed"], r["alone"])]
        if not some:
            lines.append(f"- {method}: no run yet.")
            continue
        gap = [r["personal"] - r["fixed"] for r in some]
        agree = sum((r["personal"] > r["alone"]) == (r["fixed"] > r["alone"]) for r in some)
        spread = f", standard deviation {stdev(gap):.1f}" if len(gap) > 1 else ""
        lines.append(
            f"- {method}: {_many(some, 'cell')}; {fmean(gap):+.1f} points from its fixed point in "
            f"the mean (median {median(gap):+.1f}{spread}); above alone in "
            f"{sum(r['personal'] > r['alone'] for r in some)} cells, where the fixed point is in "
            f"{sum(r['fixed'] > r['alone'] for r in some)}; the same answer in {agree}."
            + _by_clients(some))
    return "\n".join(lines)


def _by_clients(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the mean distance from the fixed point of few and of many clients."""
    few, many = ([r["personal"] - r["fixed"] for r in rows if (r["clients"] >= MANY) is more]
                 for more in (False, True))
    return (f" Below {MANY} clients {fmean(few):+.1f} in the mean of {_many(few, 'cell')}, from "
            f"{MANY} on {fmean(many):+.1f} in {_many(many, 'cell')} ({min(many):+.1f} at worst)."
            if few and many else "")


def _axes(plans: Sequence[MapPlan], rows: Sequence[Row]) -> str:
    lines = ["| set | case | method | runs | personal | above alone | class-balanced "
             "| worst client | clients that lose | new clients or classes |",
             "|---|---|---|---:|---:|---:|---:|---:|---:|---:|"]
    for plan in plans:
        if plan.name not in AXES:
            continue
        for name, case, method in dict.fromkeys((s, c, m) for s, c, m, _ in plan.planned()):
            some = [r for r in rows if (r["plan"], r["set"], r["case"], r["method"]) == (
                plan.name, name, case, method)]
            if not some:
                continue  # among the missing ones
            above = [r["personal"] - r["alone"] for r in some if r["alone"] is not None]
            own = _number(_mean(some, "personal"))
            rest = " | ".join(_number(_mean(some, metric)) for metric in (
                "balanced", "worst", "hurt",
                "new" if any(r["new"] is not None for r in some) else "unseen_clients"))
            lines.append(f"| {NAMES.get(name, name)} | {case} | {method} | {len(some)} | {own} | "
                         f"{_points(fmean(above) if above else None)} | {rest} |")
    axes = [plan for plan in plans if plan.name in AXES]
    done = sum(r["plan"] in AXES for r in rows)
    said = _lack(done, sum(len(plan.planned()) for plan in axes), "runs")
    return "\n".join([*lines, "", said]) if done else said


def _missing(plans: Sequence[MapPlan], rows: Sequence[Row]) -> str:
    there = {(r["plan"], r["set"], r["case"], r["method"], r["seed"]) for r in rows}
    lines = []
    for plan in plans:
        gone = Counter(m for s, c, m, seed in plan.planned()
                       if (plan.name, s, c, m, seed) not in there)
        if gone:
            words = ", ".join(f"{method} ({count})" for method, count in gone.items())
            lines.append(f"- `{plan.name}`: {gone.total()} of {len(plan.planned())} runs are "
                         f"missing: {words}.")
    return "\n".join(lines) or "None."
