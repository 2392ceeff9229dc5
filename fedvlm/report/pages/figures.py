"""Figures of a page, each with its caption, or why it cannot be drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fedvlm.report.figures import style
from fedvlm.report.figures.catalog import (
    FigureModule,
    all_figures,
    data_of,
    drawing_of,
    parts_of,
)
from fedvlm.report.figures.drawing.lines import MANY, order_of
from fedvlm.report.figures.selection import FigureRuns
from fedvlm.report.pages.html import Html, element, join_content, render_template
from fedvlm.report.pages.svg import inline
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.verify.answer import in_measure


@dataclass
class Drawings:
    """Figures as markup, and a message for each that could not be made."""

    measure: str  # of the runs, in words
    figures: list[Html] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def add(self, figure: FigureModule, data: Any, number: str = "") -> None:
        """Draw one; a drawing that fails costs its place on the page, not the page.

        Args:
            number: distinguishes figures of one name.
        """
        name = figure.NAME.replace("_", "-") + number
        try:
            svg = style.svg_text(drawing_of(figure, data, self.measure))
        except Exception as error:  # whatever matplotlib makes of odd numbers
            self.missing.append(f"{name}: {' '.join(str(error).split())}")
            return
        words = in_measure(figure.CAPTION, self.measure)
        self.figures.append(render_template(
            "figure", name=name.replace("-", " "), caption=words, svg=inline(svg, name, words),
        ))

    def html(self) -> Html:
        """Return all figures, then what is missing."""
        lack = element("p", "Not drawn: ", "; ".join(self.missing), ".", class_="soft") \
            if self.missing else None
        return join_content([*self.figures, lack])


def of_run(run: FinishedRun) -> Html:
    """Return the figures of one run."""
    selection = FigureRuns([run])
    drawings = Drawings(selection.measure)
    for figure, data in _data(selection, "run", drawings):
        drawings.add(figure, data)
    return drawings.html()


def of_runs(selection: FigureRuns) -> Html:
    """Return the figures over several runs: whole ones, then those of each data set together."""
    drawings = Drawings(selection.measure, missing=list(selection.problems))
    by_heading: dict[str, list[tuple[FigureModule, Any]]] = {}
    for figure, data in _data(selection, "runs", drawings):
        parts = parts_of(figure)
        if parts is None or len(order_of(data)) > MANY:  # a method is found by pointing at it
            drawings.add(figure, data)
        else:
            for heading, part in parts(data).items():
                by_heading.setdefault(heading, []).append((figure, part))
    for at, (heading, below) in enumerate(by_heading.items()):
        drawings.figures.append(element("h3", heading))
        for figure, part in below:
            drawings.add(figure, part, f"-{at}")
    return drawings.html()


def _data(
    selection: FigureRuns, of: str, drawings: Drawings
) -> list[tuple[FigureModule, Any]]:
    """Return the figures of a kind of page with their data; note why others have none."""
    pairs = []
    for figure in all_figures():
        if figure.OF in (of, "both"):
            data, why = data_of(figure, selection)
            if data is not None:
                pairs.append((figure, data))
            elif why:
                drawings.missing.append(f"{figure.NAME.replace('_', '-')}: {why}")
    return pairs
