"""The acceptance file of a recipe: each published number, what was measured, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedvlm.core import files
from fedvlm.core.version import __version__
from fedvlm.recipes.counts import Counts
from fedvlm.recipes.kept import lines_of, merge_measurements
from fedvlm.recipes.recipe import Recipe
from fedvlm.recipes.trial import Tally
from fedvlm.recipes.verdict import VERDICTS, Line
from fedvlm.report.compare.text import signed_number
from fedvlm.report.tables.render import escape_markdown
from fedvlm.runs.manifest import now

NAME = "acceptance"
NOW = "now"  # of a line: the command that wrote the file measured it
EQUAL, UNEQUAL, UNCOUNTED = "equal", "off", "not counted"
KEPT = (
    "From: `now`: runs of this command; otherwise the date and version of the earlier file with "
    "these numbers. Published numbers and verdicts are those of the current recipe."
)
CAUTION = (
    "A verdict only compares numbers. None of fedvlm's recipes has been run with the original "
    "weights and images so far."
)
AS_SAID = "as the recipe says"  # nothing was published to be equal to


@dataclass(frozen=True)
class Acceptance:
    """All that the file says.

    Attributes:
        lines: a line for each cell; tallies: trained and sent numbers.
        earlier: other measurements of the cells, by earlier commands.
        kept: how many of ``lines`` are from the file and not of this command.
    """

    recipe: Recipe
    lines: Sequence[Line]
    tallies: Sequence[Tally]
    earlier: Sequence[Line] = ()
    kept: int = 0

    def with_file(self, folder: Path) -> Acceptance:
        """Return this with what the folder's file has measured before (``DataError``: damaged)."""
        lines, earlier, kept = merge_measurements(
            self.lines, lines_of(folder / f"{NAME}.json"), self.recipe.tolerance)
        return replace(self, lines=lines, earlier=earlier, kept=kept)

    def summary(self) -> str:
        """Return the verdicts, counted: ``12 within, 3 off, 1 not run``."""
        counter = Counter(line.verdict for line in self.lines)
        return ", ".join(f"{counter[v]} {v}" for v in VERDICTS if counter[v]) or "no cell"

    def reasons(self) -> list[str]:
        """Return why cells are not judged, the commonest first, with how many they are."""
        counter = Counter(f"{line.verdict}: {line.why}" for line in self.lines if line.why)
        return [f"{why} ({n} cells)" if n > 1 else why for why, n in counter.most_common()]

    def rows(self) -> list[dict[str, Any]]:
        """Return the lines as the screen and the page show them; from when, where that differs."""
        dated = any(x.made for x in self.lines)
        return [
            {"data set": x.dataset, "method": x.method, "metric": x.metric,
             "published": _pm(x.published, x.published_std), "measured": _pm(x.measured, x.std),
             "seeds": x.n or "", "points": signed_number(x.points),
             "std": signed_number(x.deviations),
             "verdict": x.verdict, "where": x.where}
            | ({"from": "-" if x.measured is None else x.made or NOW} if dated else {})
            for x in self.lines
        ]

    def earlier_rows(self) -> list[dict[str, Any]]:
        """Return the earlier measurements as the page shows them."""
        return [
            {"data set": x.dataset, "method": x.method, "metric": x.metric,
             "measured": _pm(x.measured, x.std), "seeds": x.n, "weights": x.weights or "-",
             "verdict": x.verdict, "why": x.why or "-", "from": x.made}
            for x in self.earlier
        ]

    def number_rows(self) -> list[dict[str, Any]]:
        """Return trained and sent numbers as shown."""
        return [
            {"method": t.numbers.method, "trained": f"{t.numbers.trained:,}",
             "sent": f"{t.numbers.sent:,}", "published": t.numbers.published or "-",
             "counted": f"{t.counted.trained:,} / {t.counted.sent:,}" if t.counted else t.why,
             "verdict": number_verdict(t), "sent by runs": "-" if t.sent is None
             else f"{t.sent:,.0f}", "where": t.numbers.where}
            for t in self.tallies
        ]

    def record(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        recipe = self.recipe
        return {
            "recipe": recipe.name, "paper": recipe.paper, "read": recipe.said,
            "written": now(), "fedvlm": __version__, "tolerance_points": recipe.tolerance,
            "harmonic": recipe.harmonic, "caution": CAUTION, "summary": self.summary(),
            "protocol": list(recipe.protocol), "departures": list(recipe.departures),
            "unknown": list(recipe.unknown), "cells": [asdict(line) for line in self.lines],
            "earlier": [asdict(line) for line in self.earlier],
            "numbers": [asdict(t) | {"verdict": number_verdict(t)} for t in self.tallies],
        }

    def page(self) -> str:
        """Return all of it as Markdown."""
        recipe = self.recipe
        parts = [f"# {recipe.name}: {recipe.paper}",
                 f"Published numbers: {recipe.said}. Within: at most {recipe.tolerance:g} points, "
                 f"or two standard deviations of one run. Averages: {recipe.harmonic}.",
                 CAUTION, f"**{self.summary()}**"]
        for title, sentences in (("Protocol", recipe.protocol),
                                 ("Differences from the paper, on purpose", recipe.departures),
                                 ("Not stated in the paper: our choice", recipe.unknown)):
            if sentences:
                parts.append("\n".join([f"## {title}", *(f"- {s}" for s in sentences)]))
        parts += ["## Accuracy, percent", _markdown(self.rows())]
        if self.kept:
            parts.append(KEPT)
        if self.tallies:
            parts += ["## Numbers trained and sent by a client", _markdown(self.number_rows())]
        if self.earlier:
            parts += ["## Measured earlier, with other settings or weights",
                      _markdown(self.earlier_rows())]
        if reasons := self.reasons():
            parts.append("\n".join(["## Why cells are not judged", *(f"- {r}" for r in reasons)]))
        remarks = dict.fromkeys(f"{x.where}: {x.remark}" for x in self.lines if x.remark)
        if remarks:
            parts.append("\n".join(["## Remarks on tables", *(f"- {r}" for r in remarks)]))
        return "\n\n".join(parts) + "\n"

    def write(self, folder: Path) -> Path:
        """Write ``acceptance.json`` and ``.md``; return the latter (``DataError``: it cannot)."""
        with files.explain_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        files.write_json(folder / f"{NAME}.json", self.record())
        files.write_text(folder / f"{NAME}.md", self.page())
        return folder / f"{NAME}.md"


def number_verdict(tally: Tally) -> str:
    """Return whether the counts are the recipe's, to the last one; and published ones, if any."""
    if tally.counted is None:
        return UNCOUNTED
    said = Counts(tally.numbers.trained, tally.numbers.sent)
    if tally.counted != said:
        return UNEQUAL
    return EQUAL if tally.numbers.published else AS_SAID


def _pm(value: float | None, std: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" + ("" if std is None else f" +- {std:.2f}")


def _markdown(rows: Sequence[dict[str, Any]]) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0])] if rows else []
    lines += [[escape_markdown(str(v)) for v in row.values()] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
