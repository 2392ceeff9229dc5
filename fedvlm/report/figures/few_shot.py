"""Few-shot curves as in CoOp (Zhou et al. 2022, Fig. 3): accuracy over shots, zero-shot as a star.

One panel per dataset and, of two and more, one for their average.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedvlm.report.figures import style
from fedvlm.report.figures.lines import Panel, draw_band, draw_panels

_STAR: dict[str, Any] = {"marker": "*", "color": style.INK, "markersize": 8, "linestyle": "none",
         "markeredgewidth": 0, "clip_on": False, "zorder": 4}


def draw(found: Sequence[Panel], y_label: str, width: float = style.PAGE) -> Figure:
    """Return the figure; ``x`` of each line is the number of shots per class."""
    has_star = any(panel.zero_shot is not None for panel in found)
    extra = [(Line2D([], [], **_STAR), "zero-shot")] if has_star else []
    height = 1.75 if len(found) > 1 else 2.6
    return draw_panels(
        found, width, height, _fill, x_label="labelled images per class and client",
        y_label=y_label, extra=extra, markers=True, direct=False,
    )


def _fill(axes: Axes, panel: Panel, order: Mapping[str, int]) -> None:
    for line in panel.lines:
        draw_band(axes, line, order[line.label], markers=True)
    if panel.zero_shot is not None:
        axes.plot([0], [panel.zero_shot], **_STAR)
    shots = sorted({int(x) for line in panel.lines for x in line.x} | {0})
    axes.set_xticks(shots, [str(s) for s in shots])
    axes.set_xlim(0, max(shots) or 1)
