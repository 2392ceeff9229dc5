"""The page's curves of a tuning: each method in axes of its own."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fedvlm.report.figures import style
from fedvlm.report.figures.drawing import lines
from fedvlm.sweep.tune.curves import AXES, METRIC, THOUSANDS, format_thousands, stairs
from fedvlm.sweep.tune.progress import SearchProgress

TITLE = 20  # characters in a line of a small panel's title


def grid(name: str, methods: Sequence[SearchProgress], width: float = style.PAGE) -> Figure:
    """Return a figure of ``AXES`` in which each method has axes of its own and nobody else's line.

    All share the range of y, and of x where that counts trials. What was searched on other images
    or another backbone is not to be compared, so no other method stands behind.
    """
    label, place = AXES[name]
    columns = max(int(width / 1.1), 1)
    with style.use_style():
        figure, every = style.panels(len(methods), width, 1.0, columns)
        right = max((place(method.points[-1]) for method in methods if method.points), default=1.0)
        for at, (axes, method) in enumerate(zip(every, methods, strict=True)):
            line = stairs(name, method)
            lines.draw_band(axes, line, style.family_index(method.family))
            title = textwrap.wrap(style.cut_label(method.label, 3 * TITLE), TITLE)
            axes.set_title("\n".join(title), fontsize=6, loc="left", pad=2)
            own = place(method.points[-1]) if method.points else 1.0
            axes.set_xlim(0, right if name == "best_by_trials" else max(own, 1.0))
            axes.set_ylim(0, 100)
            axes.xaxis.set_major_locator(MaxNLocator(2, integer=True))
            axes.yaxis.set_major_locator(MaxNLocator(2))
            axes.tick_params(labelsize=5.5, pad=1.5)
            if max(own, 1.0) >= THOUSANDS and name != "best_by_trials":
                axes.xaxis.set_major_formatter(FuncFormatter(format_thousands))
            if at % columns:
                axes.set_yticklabels([])
        figure.supxlabel(label, fontsize=7)
        figure.supylabel(f"{METRIC} (%)", fontsize=7)
        return figure
