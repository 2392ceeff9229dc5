"""The page beside the map: what was measured, and what it shows, in sentences with numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from evidence.map.cell import SHARING, TOGETHER
from evidence.map.deal import EVEN, SKEWS, TWO, VAL_SHARE
from evidence.map.images import SCANNERS

Row = dict[str, Any]
SURE = 2.0  # standard errors, and points, from which a gain counts
WORDS = {TWO: "two classes each", EVEN: "all classes evenly"}
NAMES = {"shared": "one shared head", "shared+shares": "one shared head plus class shares",
         "ridge": "ridge (AFL)", "ridge+shares": "ridge (AFL) plus class shares",
         "personal": "personal head pulled to the shared one (Ditto)"}
TEXT = Path(__file__).with_suffix(".md")


def page_of(rows: Sequence[Row], cells: Sequence[Row]) -> str:
    """Return the page.

    Args:
        rows: of ``table.summarize``.
        cells: the draws behind them.
    """
    sets = {row["set"]: sorted({r["seeds"] for r in rows if r["set"] == row["set"]})
            for row in rows}
    draws = ", ".join(f"{name} ({_span(seeds)} draws of each cell)"
                      for name, seeds in sets.items())
    return TEXT.read_text(encoding="utf-8").format(
        findings="\n".join(_findings(rows)), methods=_methods(rows), prior=_prior(cells),
        sets=f"Data sets: {draws}.", val=VAL_SHARE,
        sharing=", ".join(NAMES[name] for name in SHARING), scanners=", ".join(SCANNERS),
    )


def words_of(rows: Sequence[Row]) -> str:
    """Return the map in three sentences, for pages that show its figure."""
    some = [row for row in rows if row["method"] == TOGETHER]
    better, worse = _certain(some)
    sets = len({row["set"] for row in some})
    clients = sorted({row["clients"] for row in some})
    skews = [skew for skew in SKEWS if any(row["skew"] == skew for row in some)]

    def usual(name: str, value: object) -> str:
        return f"{median(row['gain'] for row in some if row[name] == value):+.1f}"

    return (
        f"Linear heads, on {sets} data sets and {len(some)} combinations of clients, images a "
        f"client, label skew and feature shift: training together beats the best that each client "
        f"reaches alone by more than {SURE:g} points in {len(better)}, and is worse in "
        f"{len(worse) or 'none'}. The gain grows with the number of clients (median "
        f"{usual('clients', clients[0])} points for {clients[0]} clients, "
        f"{usual('clients', clients[-1])} for {clients[-1]}) and with how alike their classes are "
        f"({usual('skew', skews[0])} with {_word(skews[0])}, {usual('skew', skews[-1])} with "
        f"{_word(skews[-1])}).")


def _certain(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the rows with a gain, and with a loss, that count (``SURE``)."""
    return ([row for row in rows if row["gain"] > max(SURE, SURE * row["gain_se"])],
            [row for row in rows if row["gain"] < -max(SURE, SURE * row["gain_se"])])


def _span(seeds: Sequence[int]) -> str:
    return str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"


def _word(skew: str) -> str:
    return WORDS.get(skew, f"Dirichlet {skew}")


def _findings(rows: Sequence[Row]) -> list[str]:
    out = []
    for shift in sorted({row["shift"] for row in rows}):
        for skew in SKEWS:
            some = [row for row in rows if row["method"] == TOGETHER and row["skew"] == skew
                    and row["shift"] == shift]
            if not some:
                continue
            gains = [row["gain"] for row in some]
            better, worse = _certain(some)
            best = max(some, key=lambda row: float(row["gain"]))
            out.append(
                f"- **{_word(skew)}{', a scanner each' if shift else ''}**: better by more than "
                f"{SURE:g} points in {len(better)} of {len(some)} cells, worse in {len(worse)}; "
                f"median {median(gains):+.1f}, most {best['gain']:+.1f} ({best['clients']} "
                f"clients, {best['images']} images each, {best['set']}); class-balanced "
                f"{median(row['balanced_gain'] for row in some):+.1f} in the median; "
                f"{fmean(row['hurt'] for row in some):.0f} % of the clients are worse off than "
                "alone.")
    return out


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


def _prior(cells: Sequence[Row]) -> str:
    gaps = {metric: [cell["numbers"]["ridge+shares"][metric] - cell["numbers"]["personal"][metric]
                     for cell in cells if cell["numbers"]] for metric in ("personal", "balanced")}
    spread = stdev(gaps["personal"]) if len(gaps["personal"]) > 1 else 0.0
    return (
        "**A personal head has to beat this**: one ridge (one round) plus the log of the client's "
        f"class shares is {fmean(gaps['personal']):+.1f} points from the personal head's fixed "
        f"point in personal accuracy (standard deviation {spread:.1f} over "
        f"{len(gaps['personal'])} draws), and {fmean(gaps['balanced']):+.1f} in class-balanced "
        "accuracy, for which it is not told that all classes count alike.")
