"""Accuracy against all bytes of the run, with the front: nobody is better for as little."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedvlm.core.stats import mean, sample_std
from fedvlm.report.collect import as_float
from fedvlm.report.figures import style
from fedvlm.report.figures.drawing.levels import Level, draw_levels, legend_of, level_rows
from fedvlm.report.figures.drawing.lines import LABEL_LENGTH, label_first, legend_above
from fedvlm.report.figures.selection import FigureRuns, titles
from fedvlm.report.figures.traffic import MB, set_byte_axis

NAME, ORDER, OF = "pareto", 55, "runs"
CAPTION = ("Final personal accuracy against all bytes of the run, up and down, all clients, means "
           "over seeds. In colour and numbered: the Pareto front (no method is better with as few "
           "bytes); grey: the others.")
NUMBER = 8.0  # points that a number needs in width and height


@dataclass(frozen=True)
class ParetoPoint:
    """A method: MB (10^6 bytes) and accuracy in percent, means over ``n`` seeds.

    ``std`` is that of the accuracy, None of one seed.
    """

    label: str
    mb: float
    accuracy: float
    std: float | None
    n: int


@dataclass(frozen=True)
class Plane:
    """A panel: all methods by bytes, the labels of the front, the references."""

    title: str
    points: Sequence[ParetoPoint]
    front: Sequence[str]
    levels: Sequence[Level] = ()
    metric: str = "personal"


def select(selection: FigureRuns) -> list[Plane] | str | None:
    """Return one panel per place where something is sent; None of one run."""
    if len(selection.runs) < 2:
        return None
    places: dict[tuple[Any, ...], list[ParetoPoint]] = {}
    for group in selection.groups:
        pairs = []
        for run in group.runs.values():
            sent = [as_float(run.totals().get(way)) for way in ("bytes_up", "bytes_down")]
            value = run.value(selection.metric)
            if value is not None and None not in sent:
                pairs.append((sum(x or 0.0 for x in sent) / MB, value))
        if pairs:
            places.setdefault(group.place, []).append(ParetoPoint(
                group.label, mean(x for x, _ in pairs) or 0.0, mean(y for _, y in pairs) or 0.0,
                sample_std(y for _, y in pairs), len(pairs)))
    planes = [
        Plane(title, sorted(points, key=lambda p: (p.mb, -p.accuracy, p.label)), front_of(points),
              selection.levels(place), selection.metric)
        for title, (place, points) in zip(titles(list(places)), places.items(), strict=True)
        if any(point.mb for point in points)
    ]
    return planes or "no run sent or recorded any bytes"


def front_of(points: Sequence[ParetoPoint]) -> list[str]:
    """Return the labels of the Pareto front by bytes: all with as few bytes are below them."""
    front: list[str] = []
    best = -math.inf
    for point in sorted(points, key=lambda p: (p.mb, -p.accuracy, p.label)):
        if point.accuracy > best:
            front.append(point.label)
            best = point.accuracy
    return front


def rows(planes: Sequence[Plane]) -> list[dict[str, Any]]:
    """Return one row per panel and method, then the references."""
    lines: list[dict[str, Any]] = []
    for plane in planes:
        lines += [
            {"panel": plane.title, "method": p.label, "MB": p.mb, "metric": plane.metric,
             "mean": p.accuracy, "std": p.std, "seeds": p.n,
             "front": "yes" if p.label in plane.front else "no"} for p in plane.points
        ]
        lines += level_rows(plane.title, plane.levels, plane.metric)
    return lines


def draw(planes: Sequence[Plane], title: str = "", width: float = style.PAGE) -> Figure:
    """Return the figure; a method that sends nothing stands at a tick of 0 at the left."""
    numbers = {label: at + 1 for at, label in
               enumerate(dict.fromkeys(label for plane in planes for label in plane.front))}
    with style.use_style():
        most = max(int(width / 2.2), 1)
        figure, axes = style.panels(len(planes), width, 1.9, most)
        drawn = []
        for plane, each in zip(planes, axes, strict=True):
            drawn.append(_draw(each, plane, numbers))
            each.set_title(style.cut_label(plane.title, int(width * 15 / min(most, len(planes)))))
            label_first(each, plane.metric)
        figure.supxlabel("MB sent in the whole run, up and down, all clients",
                         fontsize=style.SMALL)
        key: list[tuple[Any, str]] = [
            (Line2D([], [], **_look(n)), f"{n} {style.cut_label(label, LABEL_LENGTH)}")
            for label, n in numbers.items()
        ]
        if any(point.label not in plane.front for plane in planes for point in plane.points):
            others = Line2D([], [], linestyle="none", marker="o", markersize=3, color=style.REST)
            key.append((others, "another is better with as few bytes"))
        legend_above(figure, {}, extra=[*key, *legend_of(plane.levels for plane in planes)])
        figure.draw_without_rendering()  # the layout is known after this
        for at, each in zip(drawn, axes, strict=True):
            _write_numbers(each, at, numbers)
    return figure


def _look(number: int) -> dict[str, Any]:
    """Return the marker of the front's method of a number from 1 on; hollow, so it hides none."""
    return {"linestyle": "none", "marker": style.marker(number - 1), "markersize": 5.5,
            "color": style.line_style(number - 1)["color"], "markerfacecolor": "none",
            "markeredgewidth": 1.3}


def _write_numbers(
    axes: Axes, front: Mapping[str, tuple[float, float]], numbers: Mapping[str, int]
) -> None:
    """Write each number above its marker's left, where no method is; none over another."""
    taken: list[tuple[float, float]] = []
    for label, place in front.items():
        x, y = (float(v) for v in axes.transData.transform(place) * 72 / axes.figure.dpi)
        up = NUMBER * 0.9
        while any(abs(x - a) < NUMBER and abs(y + up - b) < NUMBER for a, b in taken):
            up += 1.0
        taken.append((x, y + up))
        axes.annotate(str(numbers[label]), place, (-NUMBER / 2, up), textcoords="offset points",
                      ha="center", va="center_baseline", fontsize=style.SMALL, zorder=4,
                      color=_look(numbers[label])["color"], annotation_clip=False)


def _draw(
    axes: Axes, plane: Plane, numbers: Mapping[str, int]
) -> dict[str, tuple[float, float]]:
    """Draw a panel; return where the front's methods stand, by bytes."""
    sent = [p.mb for p in plane.points if p.mb > 0]
    low, high = min(sent), max(sent)
    nothing = low / 3 if high / low < 30 else low / 5  # where nothing sent stands
    silent = len(sent) < len(plane.points)
    at = {p.label: (p.mb or nothing, p.accuracy) for p in plane.points}
    for point in plane.points:
        if point.label not in plane.front:
            axes.plot(*[[v] for v in at[point.label]], marker="o", markersize=3, color=style.REST,
                      linestyle="none", zorder=2, clip_on=False, gid=style.gid(point.label))
    front = [at[label] for label in plane.front]
    axes.step(*zip(*[*front, (high * 1.5, front[-1][1])], strict=True), where="post",
              color=style.FAINT, linewidth=0.8, zorder=2.5)
    for label in plane.front:
        axes.plot(*[[v] for v in at[label]], zorder=3, clip_on=False, gid=style.gid(label),
                  **_look(numbers[label]))
    draw_levels(axes, plane.levels)
    set_byte_axis(axes, low, high, nothing if silent else None)
    axes.set_xlim(nothing / 1.5 if silent else low / 1.5, high * 1.5)
    values = [p.accuracy for p in plane.points] + [one.value for one in plane.levels]
    margin = max(0.1 * (max(values) - min(values)), 1.0)
    axes.set_ylim(min(values) - margin, max(values) + 2 * margin)  # numbers stand above
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    return {label: at[label] for label in plane.front}
