"""Lines with bands: panels, their numbers as rows, and how they are drawn."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedvlm.report.figures import style

MOST_LINES = 3  # about so many has a panel's title
GLUE = "\N{NO-BREAK SPACE}"
LABEL_LENGTH = 34  # characters of a method's name in a figure; the CSV has it whole
WORDS = {
    "personal": "personal accuracy (%)", "global": "global accuracy (%)",
    "personal_worst": "worst client's accuracy (%)", "new": "accuracy on new classes (%)",
    "base_all": "accuracy on base classes (%)",
}


@dataclass(frozen=True)
class Line:
    """A method's numbers: mean and sample standard deviation over ``n`` seeds at each ``x``.

    ``std`` is None where there is one seed; a ``mean`` of None is a gap.
    """

    label: str
    x: Sequence[float]
    mean: Sequence[float | None]
    std: Sequence[float | None]
    n: Sequence[int]

    @property
    def last(self) -> float | None:
        """The mean at the greatest ``x`` that has one."""
        return next((m for m in reversed(self.mean) if _good(m)), None)


@dataclass(frozen=True)
class Panel:
    """One pair of axes: lines of a metric and, for few-shot curves, the zero-shot accuracy."""

    title: str
    lines: Sequence[Line]
    zero_shot: float | None = None
    metric: str = "personal"


def rows_of(panels: Sequence[Panel], x_name: str) -> list[dict[str, Any]]:
    """Return the numbers of a figure, one row per panel, method and x; zero-shot at its own row."""
    rows: list[dict[str, Any]] = []
    for panel in panels:
        if panel.zero_shot is not None:
            rows.append({"panel": panel.title, "method": "zero-shot", x_name: 0,
                         "metric": panel.metric, "mean": panel.zero_shot, "std": None,
                         "seeds": None})
        for line in panel.lines:
            for x, mean, std, n in zip(line.x, line.mean, line.std, line.n, strict=True):
                rows.append({"panel": panel.title, "method": line.label, x_name: x,
                             "metric": panel.metric, "mean": mean, "std": std, "seeds": n})
    return rows


def parts(panels: Sequence[Panel]) -> dict[str, list[Panel]]:
    """Return each panel alone, by title, with all methods in the same order: one colour each.

    A method that a panel has no numbers of is an empty line there.
    """
    labels = order_of(panels)
    alone = {}
    for panel in panels:
        by_label = {line.label: line for line in panel.lines}
        every = [by_label.get(label) or Line(label, [], [], [], []) for label in labels]
        alone[panel.title] = [replace(panel, lines=every)]
    return alone


def order_of(panels: Sequence[Panel]) -> dict[str, int]:
    """Return a number per method, the same in every panel: its colour."""
    labels = dict.fromkeys(line.label for panel in panels for line in panel.lines)
    return {label: i for i, label in enumerate(labels)}


def draw_band(axes: Axes, line: Line, index: int, *, markers: bool = False) -> None:
    """Draw one line with its band of one standard deviation to either side."""
    look = style.line_style(index)
    mean = [m if _good(m) else math.nan for m in line.mean]
    spread = [s if _good(s) else 0.0 for s in line.std]
    dots = markers or sum(map(_good, mean)) == 1
    axes.plot(line.x, mean, marker=style.marker(index) if dots else None, clip_on=False,
              zorder=3, **look)
    if any(spread):
        low = [m - s for m, s in zip(mean, spread, strict=True)]
        high = [m + s for m, s in zip(mean, spread, strict=True)]
        axes.fill_between(line.x, low, high, color=look["color"], alpha=0.15, linewidth=0)


def fit_height(axes: Axes, panel: Panel) -> None:
    """Set the y axis to the data and its bands, inside 0 to 100, with whole ticks."""
    values = [panel.zero_shot] if _good(panel.zero_shot) else []
    for line in panel.lines:
        for mean, std in zip(line.mean, line.std, strict=True):
            if _good(mean):
                reach = std if _good(std) else 0.0
                values += [mean - reach, mean + reach]
    low, high = (min(values), max(values)) if values else (0.0, 100.0)
    margin = max(0.06 * (high - low), 0.5)
    floor = 0.0 if low >= 0 else low - margin
    axes.set_ylim(max(low - margin, floor), high + margin if high + margin < 100 else
                  max(100.0, high))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    if not values:
        axes.text(0.5, 0.5, "no numbers", transform=axes.transAxes, ha="center", color=style.FAINT)


def label_ends(figure: Figure, axes: Axes, panel: Panel, order: Mapping[str, int]) -> None:
    """Write each method's name and last number at the right end of its line, none over another."""
    ends = sorted((line.last, line.label) for line in panel.lines if line.last is not None)
    right = max((x for line in panel.lines for x in line.x), default=0)
    texts = [
        axes.annotate(
            f"{style.shortened(label, LABEL_LENGTH)} {value:.1f}", (right, value), (5, 0),
            textcoords="offset points", va="center", annotation_clip=False,
            fontsize=6.5, color=style.line_style(order[label])["color"],
        )
        for value, label in ends
    ]
    figure.draw_without_rendering()  # the layout is known after this
    low, high = axes.get_ylim()
    points = axes.get_position().height * figure.get_figheight() * 72
    at = [(value - low) / (high - low) * points for value, _ in ends]
    for text, was, now in zip(texts, at, spread_out(at, 8.5), strict=True):
        text.set_position((5, now - was))


def spread_out(at: Sequence[float], gap: float) -> list[float]:
    """Return ascending positions at least ``gap`` apart and as near to ``at`` as that allows.

    Neighbours that are too near form a block around their mean; blocks that meet are joined.
    """
    blocks: list[tuple[float, int]] = []  # (centre, members)
    for position in at:
        centre, size = position, 1
        while blocks and centre - blocks[-1][0] < gap * (size + blocks[-1][1]) / 2:
            other, more = blocks.pop()
            centre, size = (centre * size + other * more) / (size + more), size + more
        blocks.append((centre, size))
    return [c + gap * (i - (size - 1) / 2) for c, size in blocks for i in range(size)]


def legend_above(
    figure: Figure, order: Mapping[str, int], *, markers: bool = False,
    extra: Sequence[tuple[Line2D, str]] = (),
) -> None:
    """Put one legend for all panels above them and make the figure taller by it."""
    entries = [
        *extra,
        *((Line2D([], [], marker=style.marker(i) if markers else None, **style.line_style(i)),
           style.shortened(label, LABEL_LENGTH)) for label, i in order.items()),
    ]
    longest = max((len(label) for _, label in entries), default=1)
    most = max(int(figure.get_figwidth() * 72 / (longest * 3.6 + 28)), 1)  # columns that fit
    rows = math.ceil(len(entries) / most)
    figure.legend(
        [handle for handle, _ in entries], [label for _, label in entries],
        loc="outside upper left", frameon=False, ncols=math.ceil(len(entries) / max(rows, 1)),
        handlelength=2.0, columnspacing=1.4, borderaxespad=0.2, labelspacing=0.35,
    )
    figure.set_figheight(figure.get_figheight() + rows * 0.13 + 0.05)


def draw_panels(
    panels: Sequence[Panel], width: float, height: float,
    fill: Callable[[Axes, Panel, Mapping[str, int]], None], *, x_label: str,
    extra: Sequence[tuple[Line2D, str]] = (), markers: bool = False, direct: bool = True,
) -> Figure:
    """Return a figure with one pair of axes per panel, each drawn by ``fill``.

    Args:
        direct: names stand at the lines' ends where one panel has room for them; a legend above
            otherwise.
    """
    with style.styled():
        figure, axes = style.panels(len(panels), width, height)
        order = order_of(panels)
        longest = min(max(map(len, order), default=0), LABEL_LENGTH)
        room = len(panels) == 1 and len(order) <= 8 and longest * 4 < 0.3 * width * 72
        _write_titles(figure, axes, [panel.title for panel in panels], width)
        for panel, each in zip(panels, axes, strict=True):
            fill(each, panel, order)
            fit_height(each, panel)
            place = each.get_subplotspec()
            if place is None or place.is_first_col():
                each.set_ylabel(WORDS.get(panel.metric, f"{panel.metric} (%)"))
        figure.supxlabel(x_label, fontsize=7)
        if direct and room:
            label_ends(figure, axes[0], panels[0], order)
        else:
            legend_above(figure, order, markers=markers, extra=extra)
    return figure


def _write_titles(
    figure: Figure, axes: Sequence[Axes], titles: Sequence[str], width: float
) -> None:
    """Write each panel's title in lines no longer than its panel; the figure grows by them."""
    place = axes[0].get_subplotspec() if axes else None
    rows, columns = (1, 1) if place is None else place.get_gridspec().get_geometry()
    most, written = int(width * 15 / columns), [1]
    for each, title in zip(axes, titles, strict=True):
        text = style.shortened(title, MOST_LINES * most)
        glued = text.replace(" ", GLUE).replace(f",{GLUE}", ", ")  # lines end after a comma
        lines = textwrap.wrap(glued, most, break_on_hyphens=False)
        each.set_title("\n".join(lines).replace(GLUE, " "))
        written.append(len(lines))
    figure.set_figheight(figure.get_figheight() + rows * 0.13 * (max(written) - 1))


def _good(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)
