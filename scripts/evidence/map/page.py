"""The page beside the map: what was measured, and what it shows, in sentences with numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from evidence.map.cell import SHARING
from evidence.map.deal import EVEN, MOST, SKEWS, TWO
from evidence.map.images import SCANNERS, VAL_SHARE
from evidence.map.table import COLUMNS, METRICS, POINTS, sides, together
from fedvlm.report.tables.papers import dataset_name

Row = dict[str, Any]
WORDS = {TWO: "two classes each", EVEN: "all classes evenly"}
NAMES = {"shared": "one shared head", "shared+shares": "one shared head plus class shares",
         "ridge": "ridge (AFL)", "ridge+shares": "ridge (AFL) plus class shares",
         "personal": "personal head pulled to the shared one (Ditto)"}
TEXT = Path(__file__).with_suffix(".md")


def page_of(rows: Sequence[Row]) -> str:
    """Return the page.

    Args:
        rows: of ``map.csv``.
    """
    sets = {row["set"]: sorted({r["seeds"] for r in rows if r["set"] == row["set"]})
            for row in rows}
    cells = Counter(row["set"] for row in together(rows))
    draws = ", ".join(f"{dataset_name(name)} ({cells[name]} cells, {_draws(seeds)} of each)"
                      for name, seeds in sets.items())
    return TEXT.read_text(encoding="utf-8").format(
        findings=_findings(rows), methods=_methods(rows), prior=_prior(rows), points=POINTS,
        most=MOST, sets=f"Data sets: {draws}.", val=VAL_SHARE,
        sharing=", ".join(NAMES[name] for name in SHARING), scanners=", ".join(SCANNERS),
    )


def words_of(rows: Sequence[Row]) -> str:
    """Return the map in short sentences, a line each, for pages that show its figure."""
    some = together(rows)
    better, worse = _counted(sides(some, least=POINTS))
    sets = list(dict.fromkeys(dataset_name(row["set"]) for row in some))
    clients = sorted({row["clients"] for row in some})
    skews = [skew for skew in SKEWS if any(row["skew"] == skew for row in some)]

    def usual(name: str, value: object) -> str:
        return f"{median(row['gain'] for row in some if row[name] == value):+.1f}"

    return "\n".join((
        f"The map: linear heads on {len(sets)} data sets ({', '.join(sets)}), {len(some)} "
        "combinations of clients, images a client, label skew and feature shift.",
        f"Together is better than alone by more than {POINTS:g} points in {better} of them, and "
        f"worse in {worse or 'none'}.",
        f"More clients gain more: {usual('clients', clients[0])} points in the median with "
        f"{clients[0]} clients, {usual('clients', clients[-1])} with {clients[-1]}.",
        f"Clients with the same classes gain more: {usual('skew', skews[0])} with "
        f"{_word(skews[0])}, {usual('skew', skews[-1])} with {_word(skews[-1])}.",
    ))


def _counted(seen: Sequence[int]) -> tuple[int, int]:
    """Return in how many cells together is better, and worse (``sides``)."""
    return seen.count(1), seen.count(-1)


def _draws(seeds: Sequence[int]) -> str:
    span = dict.fromkeys((seeds[0], seeds[-1]))
    return f"{' to '.join(map(str, span))} draw{'s' * (seeds[-1] > 1)}"


def _word(skew: str) -> str:
    return WORDS.get(skew, f"Dirichlet {skew}")


def _findings(rows: Sequence[Row]) -> str:
    lines = ["| classes of the clients | cells | better | worse | gain, median "
             "| largest gain (set, clients x images) | class-balanced gain, median "
             "| clients that do better alone |",
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
                f"| {_word(skew)}{', a scanner each' if shift else ''} | {len(some)} | {better} | "
                f"{worse} | {median(row['gain'] for row in some):+.1f} | {best['gain']:+.1f} "
                f"({dataset_name(best['set'])}, {best['clients']} x {best['images']}) | "
                f"{median(row['balanced_gain'] for row in some):+.1f} | "
                f"{fmean(row['hurt'] for row in some):.0f} % |")
    return "\n".join(lines)


def _methods(rows: Sequence[Row]) -> str:
    lines = ["| | " + " | ".join(_word(skew) for skew in SKEWS) + " |",
             "|---|" + "---:|" * len(SKEWS)]
    for method, name in NAMES.items():
        cells = []
        for skew in SKEWS:
            some = [row for row in rows if row["method"] == method and row["skew"] == skew]
            cells.append(f"{fmean(r['gain'] for r in some):+.1f} "
                         f"({fmean(r['hurt'] for r in some):.0f})" if some else "-")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
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
        "**A personal head has to beat this**: one ridge (one round) plus the log of the client's "
        "class shares.\n"
        f"In personal accuracy it is {fmean(gaps['personal']):+.1f} points from the personal "
        f"head's fixed point (mean of {len(gaps['personal'])} cells, standard deviation "
        f"{spread:.1f}).\n"
        f"In class-balanced accuracy it is {fmean(gaps['balanced']):+.1f} points from it; it is "
        "not told that all classes count alike.")
