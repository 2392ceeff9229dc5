"""Convergence: accuracy over rounds, mean and band over seeds, one panel per dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedvlm.report.figures import style
from fedvlm.report.figures.lines import Panel, draw_band, draw_panels


def draw(found: Sequence[Panel], y_label: str, width: float = style.PAGE) -> Figure:
    """Return the figure; ``x`` of each line is the round, 0 the untrained start."""
    height = 1.9 if width < 5 or len(found) > 1 else 2.6
    return draw_panels(
        found, width, height, _fill, x_label="round", y_label=y_label,
    )


def _fill(axes: Axes, panel: Panel, order: Mapping[str, int]) -> None:
    for line in panel.lines:
        draw_band(axes, line, order[line.label])
    right = max((x for line in panel.lines for x in line.x), default=1)
    axes.set_xlim(0, max(right, 1))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
