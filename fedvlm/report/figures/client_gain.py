"""What a method gives to each client: the share of clients whose gain is at most so much.

The gain of a client is its personal accuracy minus that of the run's best baseline without
communication, on the same test images: what it has without the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedvlm.report.figures import style
from fedvlm.report.figures.drawing import lines
from fedvlm.report.figures.drawing.lines import LinePanel, MethodLine
from fedvlm.report.figures.selection import FigureRuns, titles
from fedvlm.report.tables.metrics import accuracies
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.verify.answer import best_alone

NAME, ORDER, OF = "client_gain", 4, "runs"
CAPTION = ("Share of clients (all seeds pooled) whose gain over the best baseline without "
           "communication is at most the value on the x axis; left of zero are clients that the "
           "method hurts. The highest mean gain comes first.")
SHARE = "clients"
RARE = 200  # of so many steps the outermost at each end may lie outside of the axes


def select(selection: FigureRuns) -> list[LinePanel] | str | None:
    """Return one panel per place: a step line per method, percent of clients over gain in points.

    None of one run, or another metric than ``personal``.
    """
    if selection.metric != "personal" or len(selection.runs) < 2:
        return None
    places: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    families: dict[str, str] = {}
    for group in selection.groups:
        gains = [gain for run in group.runs.values() for gain in gains_of(run)]
        if gains:
            families[group.label] = group.family
            places.setdefault(group.place, {})[group.label] = sorted(gains)
    if not places:
        return "no run records what its clients reach alone"
    centre: dict[str, list[float]] = {}
    for methods in places.values():
        for label, gains in methods.items():
            centre.setdefault(label, []).append(sum(gains) / len(gains))
    order = sorted(centre, key=lambda k: (-len(centre[k]), -sum(centre[k]), k))
    return [
        LinePanel(title, [_line(label, methods[label], families[label]) for label in order
                      if label in methods], metric=SHARE)
        for title, methods in zip(titles(list(places)), places.values(), strict=True)
    ]


def gains_of(run: FinishedRun) -> list[float]:
    """Return each client's gain in points; empty where the run has no such reference."""
    found = run.section("references")
    own, alone = accuracies(run.last), accuracies(found.get(best_alone(found)))
    return [own[client] - alone[client] for client in own if client in alone]


def rows(panels: Sequence[LinePanel]) -> list[dict[str, Any]]:
    """Return one row per panel, method and step: gain in points, percent of clients up to it."""
    return [
        {"panel": panel.title, "method": line.label, "gain": round(x, 4), "clients_percent": y}
        for panel in panels for line in panel.lines
        for x, y in zip(line.x, line.mean, strict=True)
    ]


def draw(panels: Sequence[LinePanel], title: str = "", width: float = style.PAGE) -> Figure:
    """Return the figure; ``x`` of each line is a gain in points."""
    figure = lines.draw_panels(
        panels, width, 1.75 if len(panels) > 1 else 2.6, _fill,
        x_label="gain over the best baseline without communication (points)", direct=False,
    )
    for axes in figure.axes:
        axes.set_ylim(0.0, 100.0)  # a distribution begins at nobody
    return figure


def _line(label: str, gains: Sequence[float], family: str) -> MethodLine:
    """Return the steps of an empirical distribution; ``gains`` ascend."""
    count = len(gains)
    steps = {gain: 100 * at / count for at, gain in enumerate(gains, start=1)}
    return MethodLine(label, list(steps), list(steps.values()), [None] * len(steps),
                [count] * len(steps), family=family)


def _fill(axes: Axes, panel: LinePanel, order: Mapping[str, int | None]) -> None:
    ends = sorted(x for line in panel.lines for x in line.x) or [-1.0, 1.0]
    few = len(ends) // RARE  # a client that loses everything would take half of the panel
    low, high = min(ends[few], 0.0), max(ends[-1 - few], 0.0)
    margin = max(0.04 * (high - low), 0.5)
    axes.axvline(0.0, color=style.FAINT, linewidth=0.8, zorder=1.2)
    for line in filter(lambda line: line.x, panel.lines):
        index = order[line.label]
        look = style.line_style(index)
        if index is None:
            look = {**look, "linewidth": 0.6}
        axes.step(
            [min(low, *line.x) - margin, *line.x, max(high, *line.x) + margin],
            [0.0, *(y or 0.0 for y in line.mean), 100.0], where="post",
            zorder=1 if index is None else 3, gid=style.gid(line.label), **look,
        )
    axes.set_xlim(low - margin, high + margin)
