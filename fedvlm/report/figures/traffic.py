"""Accuracy against bytes sent: each method's path over the rounds and its last round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from fedvlm.report.figures import style
from fedvlm.report.figures.drawing import lines
from fedvlm.report.figures.drawing.lines import LinePanel, MethodLine
from fedvlm.report.figures.selection import FigureRuns, Value

NAME, ORDER, OF = "traffic", 60, "both"
CAPTION = ("Personal accuracy against the MB sent so far, all clients, up and down. Paths end "
           "before a final fine-tuning; the hollow marker shows the accuracy after it.")
MB = 1e6
rows = partial(lines.rows_of, x_name="MB")


def select(selection: FigureRuns) -> list[LinePanel] | str:
    """Return one panel per place: the metric over the MB sent so far by all clients, both ways."""
    def curve(
        rounds: Sequence[Mapping[str, Any]], value: Value
    ) -> dict[int, tuple[float, float]]:
        total, points = 0.0, {}
        for record in rounds:
            total += sum(
                sum((record.get(way) or {}).values()) for way in ("bytes_up", "bytes_down")
            )
            number = value(record)
            if number is not None:
                points[int(record["round"])] = (total / MB, number)
        return points

    panels = selection.panels(curve)
    if not panels:
        return selection.none_has_it
    return panels if any(map(_anything_sent, panels)) else "nothing was sent"


def panels_sent(panels: Sequence[LinePanel]) -> dict[str, list[LinePanel]]:
    """Return each panel alone in which something is sent."""
    return {title: alone for title, alone in lines.parts(panels).items()
            if any(map(_anything_sent, alone))}


parts = panels_sent  # of a page (figures/__init__.py)


def draw(panels: Sequence[LinePanel], title: str = "", width: float = style.PAGE) -> Figure:
    """Return the figure; ``x`` of each line is the MB (10^6 bytes) sent so far, all clients.

    The axis is logarithmic; a method that sends nothing stands at its left end, at a tick of 0.
    """
    return lines.draw_panels(
        panels, width, 1.9 if width < 5 or len(panels) > 1 else 2.6, _fill,
        x_label="MB sent until the round, up and down, all clients", markers=True, direct=False,
    )


def _fill(axes: Axes, panel: LinePanel, order: Mapping[str, int | None]) -> None:
    sent = [x for line in panel.lines for x in line.x if x > 0]
    low, high = (min(sent), max(sent)) if sent else (1.0, 10.0)
    silent = any(line.x and not _sends(line) for line in panel.lines)
    nothing = low / 3  # where a method that sends nothing is drawn
    for line in panel.lines:
        _path(axes, line, order[line.label], nothing)
    set_byte_axis(axes, low, high, nothing if silent else None)
    axes.set_xlim(nothing / 1.6 if silent else low / 1.4, high * 1.4)
    if silent:
        border = math.sqrt(nothing * low)
        axes.axvline(border, color=style.FAINT, linewidth=0.6, linestyle=":")


def _path(axes: Axes, line: MethodLine, index: int | None, nothing: float) -> None:
    look = style.line_style(index)
    mean = [math.nan if m is None else m for m in line.mean]
    if _sends(line):
        path = [(x, m) for x, m in zip(line.x, mean, strict=True) if x > 0]
        if path:
            axes.plot(*zip(*path, strict=True), alpha=1 if index is None else 0.55,
                      linewidth=0.6 if index is None else 1.0, zorder=1 if index is None else 2,
                      gid=style.gid(line.label), **look)
    at = max((i for i, m in enumerate(mean) if math.isfinite(m)), default=None)
    if at is None:
        return
    x = line.x[at] if _sends(line) else nothing
    if index is None:
        axes.plot([x], [mean[at]], marker="o", markersize=2, zorder=1, clip_on=False,
                  gid=style.gid(line.label), **look)
        return
    ends = [(mean[at], line.std[at], look["color"])]
    ends += [(line.after[1], line.after[2], "white")] if line.after else []
    for value, std, face in ends:
        axes.errorbar(
            [x], [value], yerr=[std or 0.0], fmt=style.marker(index), color=look["color"],
            markerfacecolor=face, markersize=4.5, capsize=2, elinewidth=0.9, capthick=0.9,
            zorder=4, clip_on=False,
        )


def _anything_sent(panel: LinePanel) -> bool:
    return any(map(_sends, panel.lines))


def _sends(line: MethodLine) -> bool:
    return any(x > 0 for x in line.x)


def set_byte_axis(axes: Axes, low: float, high: float, nothing: float | None) -> None:
    """Make the x axis one of MB: logarithmic, a tick of 0 at ``nothing``, none where that is None.

    Args:
        low, high: least and greatest number above 0.
    """
    border = 0.0 if nothing is None else math.sqrt(nothing * low)
    ticks = ticks_of(low, high)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(ticks if nothing is None else [nothing, *ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: "0" if x < border else f"{x:g}"))


def ticks_of(low: float, high: float) -> list[float]:
    """Return round numbers from ``low`` to ``high``: decades, with 2 and 5 where few fit."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 2 else (1, 3) if last - first <= 3 else (1,)
    ticks = [m * 10.0**e for e in range(first, last + 1) for m in steps]
    return [t for t in ticks if low / 1.4 <= t <= high * 1.4]
