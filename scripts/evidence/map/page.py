"""The page beside the map: what was measured, and what it shows, in sentences with numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from evidence.map.cell import SHARING
from evidence.map.deal import EVEN, MOST, SKEWS, TWO, skew_words
from evidence.map.dealt import dealing_line, dealing_words
from evidence.map.images import FIVE, KNOWN, SCANNERS, VAL_SHARE
from evidence.map.table import COLUMNS, METRICS, POINTS, sides, together, whole_sets
from fedvlm.core.stats import ENOUGH
from fedvlm.report.tables.papers import dataset_name

Row = dict[str, Any]
NAMES = {"shared": "one shared head (FedAvg)",
         "shared+shares": "one shared head plus class shares",
         "ridge": "one shared head in one round (AFL)",
         "ridge+shares": "the AFL head plus class shares",
         "personal": "a head for each client held near the shared one (Ditto)"}
TEXT = Path(__file__).with_suffix(".md")
SEVERAL, SCARCE = 5, 25  # clients at least, images a client at most, of the first sentence
MANY = 20  # clients of two classes each, from which it counts them apart
SURE = 0.95  # share of its cases from which it says yes
TEN, FEW, PLENTY = 10, 10, 100  # clients, or classes; images a client that are compared
CLASSES = {"Caltech101": 101}  # of sets that have not ten
NONE = "no two cells differ in this alone"


def page_of(rows: Sequence[Row], dealt: Sequence[Row] = ()) -> str:
    """Return the page.

    Args:
        rows: of ``map.csv``.
        dealt: of ``dealt.csv``.
    """
    sets = {row["set"]: sorted({r["seeds"] for r in rows if r["set"] == row["set"]})
            for row in rows}
    cells = Counter(row["set"] for row in together(rows))
    answer, groups = _answer(together(rows))
    draws = ", ".join(f"{dataset_name(name)} ({cells[name]} cells, {_draws(seeds)} of each)"
                      for name, seeds in sets.items())
    return TEXT.read_text(encoding="utf-8").format(
        answer=answer, groups=groups, findings=_findings(rows), methods=_methods(rows),
        prior=_prior(rows), points=POINTS, scanned=_scanned(rows), sizes=_sizes(rows),
        apart=_apart(rows), whole=" and ".join(dataset_name(name) for name in whole_sets(rows)),
        dealing=f"\n## Why runs gain less\n{dealing_words(dealt)}\n" if dealt else "",
        most=MOST, enough=ENOUGH, sets=f"Data sets: {draws}.", val=VAL_SHARE, known=KNOWN,
        sharing=", ".join(NAMES[name] for name in SHARING), scanners=", ".join(SCANNERS),
    )


def words_of(rows: Sequence[Row], dealt: Sequence[Row] = ()) -> str:
    """Return the map in short sentences, a line each, for pages that show its figure.

    The first line is the answer to "should my clients federate?".
    """
    some = together(rows)
    better, worse = _counted(sides(some, least=POINTS))
    sets = Counter(dataset_name(row["set"]) for row in some)
    clients = sorted({row["clients"] for row in some})
    skews = [skew for skew in SKEWS if any(row["skew"] == skew for row in some)]
    ten = [row for row in some if row["clients"] == TEN]

    return "\n".join(filter(None, (
        *_answer(some),
        f"The map: linear heads, trained to the end, in {len(some)} cells, each one combination of "
        "data set, clients, images a client, label skew and scanners: "
        f"{', '.join(f'{count} of {name}' for name, count in sets.items())}.",
        f"Together is better than alone by more than {POINTS:g} points in {better} of them, "
        f"worse in {worse or 'none'}, undecided or within {POINTS:g} points in "
        f"{len(some) - better - worse}.",
        f"More clients gain more: {_paired(some, 'clients', clients[0], clients[-1])}.",
        f"Fewer images gain more, with {TEN} clients: {fewer}."
        if (fewer := _paired(ten, "images", FEW, PLENTY)) != NONE else "",
        "Clients with the same classes gain more: "
        f"{_paired(some, 'skew', skews[0], skews[-1])}.",
        dealing_line(dealt),
    )))


def _answer(some: Sequence[Row]) -> tuple[str, str]:
    """Return for which clients together is better, counted, and the same of smaller groups.

    Args:
        some: ``together`` rows.
    """
    sided = list(zip(some, sides(some, least=POINTS), strict=True))

    def counted(*held: Callable[[Row], bool]) -> list[int]:
        return [side for row, side in sided if all(true(row) for true in held)]

    alike = counted(_alike, lambda row: row["images"] <= SCARCE)
    share = alike.count(1) / len(alike) if alike else 0.0
    more = counted(_alike, lambda row: row["images"] > SCARCE)
    rest = f", and in {_told(more)} with more" if more else ""
    where = (f"better together by more than {POINTS:g} points in {_told(alike)} cells of the map "
             f"with Dirichlet 0.3 or more alike and at most {SCARCE} images each{rest}")
    first = [f"{'Yes' if share >= SURE else 'Mostly yes'}, if at least {SEVERAL} clients share "
             f"classes: linear heads trained to the end are {where}."
             if share > 0.5 else
             f"It depends: {SEVERAL} or more clients that share classes are {where}."]
    parts = _weakest([(row, side) for row, side in sided if _alike(row)])
    for who, of, some_of in (
            ("two clients", lambda row: row["clients"] == 2, (
                ("with all classes evenly", lambda row: row["skew"] == EVEN),
                ("with Dirichlet 1", lambda row: row["skew"] == "1"),
                ("else", lambda row: row["skew"] not in (EVEN, "1")))),
            ("two classes at each client", lambda row: row["skew"] == TWO, (
                (f"from {MANY} clients on", lambda row: row["clients"] >= MANY),
                ("below", lambda row: row["clients"] < MANY))),
            ("Dirichlet 0.1", lambda row: row["skew"] == "0.1", (
                (f"from {SEVERAL} clients on", lambda row: row["clients"] >= SEVERAL),
                ("below", lambda row: row["clients"] < SEVERAL)))):
        words = [f"{_told(here)} {which}" + f" (worse in {here.count(-1)})" * (-1 in here)
                 for which, held in some_of if (here := counted(of, held))]
        if words:
            parts.append(f"With {who}: {', '.join(words)}.")
            first.append(f"With {who}: {_told(counted(of))}.")
    return " ".join(first), " ".join(parts)


def _told(seen: Sequence[int]) -> str:
    """Return in how many cells together is better, of how many."""
    return f"{seen.count(1)} of {len(seen)}"


def _weakest(sided: Sequence[tuple[Row, int]]) -> list[str]:
    """Name the clients, scanners and skew of the smallest share that gains, if below half."""
    groups: dict[tuple[int, bool, str], list[int]] = {}
    for row, side in sided:
        groups.setdefault((row["clients"], row["shift"], row["skew"]), []).append(side)
    low = [(seen.count(1) / len(seen), key) for key, seen in groups.items()
           if len(seen) >= SEVERAL]
    share, (clients, shift, skew) = min(low, default=(1.0, (0, False, "")))
    if share >= 0.5:
        return []
    return [f"The smallest share: {clients} clients{', five scanners' * bool(shift)}, "
            f"{skew_words(skew)}: {_told(groups[clients, shift, skew])}."]


def _alike(row: Row) -> bool:
    """Return whether at least ``SEVERAL`` clients share classes."""
    return row["skew"] not in (TWO, "0.1") and row["clients"] >= SEVERAL


def _paired(rows: Sequence[Row], name: str, low: Any, high: Any) -> str:
    """Return median gains at two values of one column, over cells that differ in nothing else."""
    found = _pairs(rows, name, low, high)
    if not found:
        return NONE
    before, after = (median(pair[k]["gain"] for pair in found) for k in (0, 1))
    first, last = (skew_words(v) if name == "skew" else f"{v} {name}" for v in (low, high))
    sizes = sorted({row["images"] for row, _ in found})
    where = (f"; {' or '.join(map(str, sizes))} images a client, "
             f"{_names(row for row, _ in found)}" if name == "clients" else "")
    return (f"{before:+.1f} points in the median with {first}, {after:+.1f} with {last} "
            f"({len(found)} pair{'s' * (len(found) != 1)} of cells that differ in nothing "
            f"else{where})")


def _pairs(rows: Sequence[Row], name: str, low: Any, high: Any) -> list[tuple[Row, Row]]:
    """Return the rows that differ in nothing but this column, which is low and high in them."""
    rest = [column for column in COLUMNS[:5] if column != name]
    at: dict[Any, dict[tuple[Any, ...], Row]] = {low: {}, high: {}}
    for row in rows:
        if row[name] in at:
            at[row[name]][tuple(row[column] for column in rest)] = row
    return [(row, at[high][cell]) for cell, row in at[low].items() if cell in at[high]]


def _names(rows: Iterable[Row]) -> str:
    return " and ".join(dict.fromkeys(dataset_name(row["set"]) for row in rows))


def _scanned(rows: Sequence[Row]) -> str:
    """Return what a scanner at each client changes, over cells that differ in nothing else."""
    found = _pairs(together(rows), "shift", False, True)
    if not found:
        return ""
    before, after = (median(pair[k]["gain"] for pair in found) for k in (0, 1))
    way = "smaller" if after < before else "not smaller"
    return (f"With {FIVE} the gain is {way}: {after:+.1f} points in the median, {before:+.1f} "
            f"with the same scanner at all clients ({len(found)} pairs of cells "
            "that differ in nothing else).")


def _apart(rows: Sequence[Row]) -> str:
    """Return in how many cells in which no two clients share a class together is better, worse."""
    every = together(rows)
    own = [side for row, side in zip(every, sides(every, least=POINTS), strict=True)
           if row["skew"] == TWO and 2 * row["clients"] <= CLASSES.get(row["set"], TEN)]
    better, worse = _counted(own)
    return f"better in {better}, worse in {worse} of {len(own)} such cells"


def _counted(seen: Sequence[int]) -> tuple[int, int]:
    """Return in how many cells together is better, and worse (``sides``)."""
    return seen.count(1), seen.count(-1)


def _draws(seeds: Sequence[int]) -> str:
    span = dict.fromkeys((seeds[0], seeds[-1]))
    return f"{' to '.join(map(str, span))} draw{'s' * (seeds[-1] > 1)}"


def _findings(rows: Sequence[Row]) -> str:
    lines = ["| classes of the clients | cells | better | worse | gain, median "
             "| largest gain (set, clients x images) | gain over all classes, median "
             "| clients that lose |",
             "|---|---:|---:|---:|---:|---|---:|---:|"]
    every = together(rows)
    told = list(zip(every, sides(every, least=POINTS), strict=True))
    for shift in sorted({row["shift"] for row in rows}):
        for skew in SKEWS:
            here = [(row, side) for row, side in told
                    if (row["skew"], row["shift"]) == (skew, shift)]
            if not here:
                continue
            some = [row for row, _ in here]
            better, worse = _counted([side for _, side in here])
            best = max(some, key=lambda row: float(row["gain"]))
            lines.append(
                f"| {skew_words(skew)}{f', {FIVE}' if shift else ''} | {len(some)} | "
                f"{better} | {worse} | {median(row['gain'] for row in some):+.1f} | "
                f"{best['gain']:+.1f} "
                f"({dataset_name(best['set'])}, {best['clients']} x {best['images']}) | "
                f"{median(row['balanced_gain'] for row in some):+.1f} | "
                f"{fmean(row['hurt'] for row in some):.0f} % |")
    return "\n".join(lines)


def _sizes(rows: Sequence[Row]) -> str:
    """Return a table by clients and images: in how many cells of alike clients together is better.

    With the median gain. Whole sets, without shift.
    """
    every = together(rows)
    whole = whole_sets(every)
    told = [(row, side) for row, side in zip(every, sides(every, least=POINTS), strict=True)
            if row["skew"] not in (TWO, "0.1") and not row["shift"] and row["set"] in whole]
    clients, images = (sorted({row[what] for row, _ in told}) for what in ("clients", "images"))
    lines = ["| images a client | " + " | ".join(f"{k} clients" for k in clients) + " |",
             "|---:|" + "---:|" * len(clients)]
    for n in images:
        cells = []
        for k in clients:
            here = [(row["gain"], side) for row, side in told
                    if (row["clients"], row["images"]) == (k, n)]
            cells.append(f"{sum(side == 1 for _, side in here)} of {len(here)} "
                         f"({median(value for value, _ in here):+.1f})" if here else "-")
        lines.append(f"| {n} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _methods(rows: Sequence[Row]) -> str:
    """Return a table of the ways to share, for each kind of shift: gain and clients that lose."""
    lines = ["| | " + " | ".join(map(skew_words, SKEWS)) + " |",
             "|---|" + "---:|" * len(SKEWS)]
    for shift in sorted({row["shift"] for row in rows}):
        for method, name in NAMES.items():
            cells = []
            for skew in SKEWS:
                some = [row for row in rows
                        if (row["method"], row["skew"], row["shift"]) == (method, skew, shift)]
                cells.append(f"{fmean(r['gain'] for r in some):+.1f} "
                             f"({fmean(r['hurt'] for r in some):.0f})" if some else "-")
            lines.append(f"| {name}{f', {FIVE}' if shift else ''} | "
                         + " | ".join(cells) + " |")
    return "\n".join(lines)


def _prior(rows: Sequence[Row]) -> str:
    by: dict[str, dict[tuple[Any, ...], Row]] = {"ridge+shares": {}, "personal": {}}
    for row in rows:
        if row["method"] in by:
            by[row["method"]][tuple(row[name] for name in COLUMNS[:5])] = row
    gaps = {metric: [by["ridge+shares"][cell][metric] - row[metric]
                     for cell, row in by["personal"].items()] for metric in METRICS[:2]}
    spread = stdev(gaps["personal"]) if len(gaps["personal"]) > 1 else 0.0
    return (
        "\"Plus class shares\": a client adds a multiple of the logarithm of its own class shares "
        "to the scores. AFL with them needs two rounds and no training.\n"
        f"In personal accuracy it is {fmean(gaps['personal']):+.1f} points from the heads of Ditto "
        f"(mean of {len(gaps['personal'])} cells, standard deviation {spread:.1f}); a trained "
        "method is worth its rounds only where it beats this.\n"
        f"In accuracy over all classes it is {fmean(gaps['balanced']):+.1f} points from them; it "
        "is not told that all classes count alike.")
