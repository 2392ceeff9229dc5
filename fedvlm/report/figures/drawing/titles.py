"""Titles of panels: in lines that are no longer than their panel."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedvlm.report.figures import style

MOST_LINES = 3  # about so many has a title
GLUE = "\N{NO-BREAK SPACE}"


def write_titles(
    figure: Figure, axes: Sequence[Axes], titles: Sequence[str], width: float
) -> None:
    """Write each panel's title; the figure grows by the lines.

    Args:
        width: of all panels of a row together, in inches.
    """
    place = axes[0].get_subplotspec() if axes else None
    rows, columns = (1, 1) if place is None else place.get_gridspec().get_geometry()
    most, written = int(width * 15 / columns), [1]
    for each, title in zip(axes, titles, strict=True):
        text = style.cut_label(title, MOST_LINES * most)
        glued = text.replace(" ", GLUE).replace(f",{GLUE}", ", ")  # lines end after a comma
        lines = textwrap.wrap(glued, most, break_on_hyphens=False)
        each.set_title("\n".join(lines).replace(GLUE, " "))
        written.append(len(lines))
    figure.set_figheight(figure.get_figheight() + rows * 0.13 * (max(written) - 1))
