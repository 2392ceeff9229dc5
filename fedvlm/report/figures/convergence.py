"""Convergence: accuracy over rounds, mean and band over seeds, one panel per dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedvlm.report.figures import style
from fedvlm.report.figures.drawing import lines
from fedvlm.report.figures.drawing.lines import LinePanel
from fedvlm.report.figures.selection import FigureRuns, Value

NAME, ORDER, OF = "convergence", 10, "both"
CAPTION = ("Personal accuracy over rounds; round 0 is the untrained start. With several seeds: "
           "mean and a band of one standard deviation (no band where many methods share several "
           "panels). Lines end before a final fine-tuning; the hollow marker shows the accuracy "
           "after it. With partial participation, rounds between full evaluations show the mean of "
           "the clients that took part.")

parts = lines.parts
rows = partial(lines.rows_of, x_name="round")


def select(selection: FigureRuns) -> list[LinePanel] | str:
    """Return one panel per place: the metric over rounds, where all seeds have it."""
    def curve(
        rounds: Sequence[Mapping[str, Any]], value: Value
    ) -> dict[int, tuple[float, float]]:
        values = [(r, value(r)) for r in rounds]
        return {int(r["round"]): (float(r["round"]), v) for r, v in values if v is not None}

    return selection.panels(curve) or selection.none_has_it


def draw(panels: Sequence[LinePanel], title: str = "", width: float = style.PAGE) -> Figure:
    """Return the figure; ``x`` of each line is the round, 0 the untrained start."""
    height = 1.9 if width < 5 or len(panels) > 1 else 2.6
    return lines.draw_panels(panels, width, height, _fill, x_label="round")


def _fill(axes: Axes, panel: LinePanel, order: Mapping[str, int | None]) -> None:
    for line in panel.lines:
        lines.draw_band(axes, line, order[line.label])
    right = max((x for line in panel.lines for x in line.x), default=1)
    axes.set_xlim(0, max(right, 1))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
