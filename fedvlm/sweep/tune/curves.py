"""The best score so far against trials, local steps and processor seconds: figures and their CSV.

Stairs: a trial counts when all of it has been spent. The band is one standard error of the best
score, clients of runs being the units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fedvlm.core import files
from fedvlm.report.figures import style
from fedvlm.report.figures.drawing import lines
from fedvlm.report.figures.drawing.lines import LinePanel, MethodLine
from fedvlm.sweep.tune.progress import SearchProgress

THOUSANDS = 5000  # from here on ticks are in thousands
METRIC = "best validation accuracy so far"
AXES = {  # file -> label, and where a point lies
    "best_by_trials": ("trials", lambda point: float(point.trial + 1)),
    "best_by_steps": ("local steps of all trials", lambda point: float(point.steps)),
    "best_by_seconds": ("processor seconds of all trials", lambda point: point.cpu),
}


def draw_curves(name: str, methods: Sequence[SearchProgress]) -> Figure:
    """Return a figure of ``AXES``; of more methods than colours, each has axes of its own."""
    label, _ = AXES[name]
    panel = LinePanel("", [stairs(name, method) for method in methods], metric=METRIC)
    return lines.draw_panels([panel], style.PAGE, 2.6, _fill, x_label=label)


def stairs(name: str, method: SearchProgress) -> MethodLine:
    """Return a method's best score so far as stairs over an axis of ``AXES``."""
    _, place = AXES[name]
    x, mean, std = list[float](), list[float | None](), list[float | None]()
    for point in method.points:
        if point.best is None:
            continue
        if mean and mean[-1] != point.best:
            x.append(place(point))
            mean.append(mean[-1])
            std.append(std[-1])
        x.append(place(point))
        mean.append(point.best)
        std.append(point.best_error)
    return MethodLine(method.label, x, mean, std, [1] * len(x), family=method.family)


def curve_rows(methods: Sequence[SearchProgress]) -> list[dict[str, object]]:
    """Return a row for each method and trial: every number of the three figures."""
    return [
        {"method": method.label} | asdict(point) for method in methods for point in method.points
    ]


def write_curves(
    methods: Sequence[SearchProgress], numbers: Sequence[Mapping[str, object]], folder: Path
) -> None:
    """Write ``methods.csv`` of ``numbers``, and the figures: PNG, SVG and PDF with their CSV.

    Raises:
        DataError: the folder cannot be written.
    """
    table = curve_rows(methods)
    for name in AXES:
        style.write_figure(folder, name, draw_curves(name, methods), table)
    files.write_text(folder / "methods.csv", style.figure_csv(numbers))


def _fill(axes: Axes, panel: LinePanel, order: Mapping[str, int | None]) -> None:
    for line in panel.lines:
        lines.draw_band(axes, line, order[line.label])
    right = max((x for line in panel.lines for x in line.x), default=1.0)
    axes.set_xlim(0, max(right, 1.0))
    grid = axes.get_gridspec()
    axes.xaxis.set_major_locator(MaxNLocator(3 if grid is not None and grid.ncols > 2 else 6))
    if right >= THOUSANDS:
        axes.xaxis.set_major_formatter(FuncFormatter(format_thousands))


def format_thousands(x: float, _: object) -> str:
    return f"{x / 1000:g}k" if x else "0"
