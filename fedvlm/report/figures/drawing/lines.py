"""Lines with bands: panels, their numbers as rows, and how they are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedvlm.report.figures import style
from fedvlm.report.figures.drawing.levels import Level, draw_levels, legend_of, level_rows
from fedvlm.report.figures.drawing.titles import write_titles

MANY = 8  # methods that colours tell apart; of more, each has a panel, or the best have a colour
BEST = 6  # methods in colour where many share several panels
LABEL_LENGTH = 34  # characters of a method's name in a figure; the CSV has it whole
WORDS = {
    "personal": "personal accuracy (%)", "global": "global accuracy (%)",
    "personal_worst": "worst client's accuracy (%)", "new": "accuracy on new classes (%)",
    "base_all": "accuracy on base classes (%)",
}


@dataclass(frozen=True)
class MethodLine:
    """A method's numbers: mean and sample standard deviation over ``n`` seeds at each ``x``.

    ``std`` is None where there is one seed; a ``mean`` of None is a gap. ``after``: x, mean and std
    after a final fine-tuning, which is no point of the line; ``family``: of ``style.FAMILIES``.
    """

    label: str
    x: Sequence[float]
    mean: Sequence[float | None]
    std: Sequence[float | None]
    n: Sequence[int]
    after: tuple[float, float, float | None] | None = None
    family: str = ""

    @property
    def last(self) -> float | None:
        """The mean at the greatest ``x`` that has one."""
        return next((m for m in reversed(self.mean) if _good(m)), None)


@dataclass(frozen=True)
class LinePanel:
    """One pair of axes: lines of a metric, references and, for few-shot curves, zero-shot.

    ``counts``: what ``x`` counts, where panels of one figure may differ in that.
    """

    title: str
    lines: Sequence[MethodLine]
    zero_shot: float | None = None
    metric: str = "personal"
    levels: Sequence[Level] = field(default=())
    counts: str = ""


def rows_of(panels: Sequence[LinePanel], x_name: str) -> list[dict[str, Any]]:
    """Return the numbers of a figure, one row per panel, method and x.

    Zero-shot and references have rows of their own. A line that stops before a final fine-tuning is
    of ``..._before_ft``; the number after it is a row more.
    """
    rows: list[dict[str, Any]] = []
    for panel in panels:
        if panel.zero_shot is not None:
            rows.append({"panel": panel.title, "method": "zero-shot", x_name: 0,
                         "metric": panel.metric, "mean": panel.zero_shot, "std": None,
                         "seeds": None})
        for line in panel.lines:
            metric = f"{panel.metric}_before_ft" if line.after else panel.metric
            for x, mean, std, n in zip(line.x, line.mean, line.std, line.n, strict=True):
                rows.append({"panel": panel.title, "method": line.label, x_name: x,
                             "metric": metric, "mean": mean, "std": std, "seeds": n})
            if line.after:
                x, mean, std = line.after
                rows.append({"panel": panel.title, "method": line.label, x_name: x,
                             "metric": panel.metric, "mean": mean, "std": std, "seeds": line.n[-1]})
        rows += level_rows(panel.title, panel.levels, panel.metric, x_name)
    return rows


def parts(panels: Sequence[LinePanel]) -> dict[str, list[LinePanel]]:
    """Return each panel alone, by title, with all methods in the same order: one colour each.

    A method that a panel has no numbers of is an empty line there.
    """
    labels = order_of(panels)
    alone = {}
    for panel in panels:
        by_label = {line.label: line for line in panel.lines}
        every = [by_label.get(label) or MethodLine(label, [], [], [], []) for label in labels]
        alone[panel.title] = [replace(panel, lines=every)]
    return alone


def order_of(panels: Sequence[LinePanel]) -> dict[str, int]:
    """Return a number per method, the same in every panel: its colour."""
    labels = dict.fromkeys(line.label for panel in panels for line in panel.lines)
    return {label: i for i, label in enumerate(labels)}


def draw_band(axes: Axes, line: MethodLine, index: int | None, *, markers: bool = False) -> None:
    """Draw one line with its band of one standard deviation; a thin one of the rest for None."""
    look = style.line_style(index)
    mean = [m if _good(m) else math.nan for m in line.mean]
    if index is None:
        axes.plot(line.x, mean, linewidth=0.6, zorder=1, gid=style.gid(line.label), **look)
        return
    spread = [s if _good(s) else math.nan for s in line.std]  # of one seed there is none
    dots = markers or sum(map(_good, mean)) == 1
    axes.plot(line.x, mean, marker=style.marker(index) if dots else None, clip_on=False,
              zorder=3, gid=style.gid(line.label), **look)
    if line.after:
        x, value, std = line.after
        axes.errorbar(
            [x], [value], yerr=[std or 0.0], fmt=style.marker(index), color=look["color"],
            markersize=4.5, markerfacecolor="white", capsize=1.5, elinewidth=0.7, capthick=0.7,
            zorder=4, clip_on=False,
        )
    if any(map(_good, spread)) and any(s > 0 for s in spread):
        known = [False, *map(_good, spread), False]
        for at, one in enumerate(spread):
            if known[at + 1] and not (known[at] or known[at + 2]):  # too narrow for a band
                axes.errorbar(line.x[at], mean[at], yerr=one, fmt="none", ecolor=look["color"],
                              elinewidth=0.7, capsize=1.5, capthick=0.7)
        low = [m - s for m, s in zip(mean, spread, strict=True)]
        high = [m + s for m, s in zip(mean, spread, strict=True)]
        axes.fill_between(line.x, low, high, color=look["color"], alpha=0.15, linewidth=0,
                          gid=style.gid(line.label))


def fit_height(axes: Axes, panel: LinePanel) -> None:
    """Set the y axis to the data and its bands, inside 0 to 100, with whole ticks."""
    values = [panel.zero_shot] if _good(panel.zero_shot) else []
    values += [level.value for level in panel.levels]
    for line in panel.lines:
        ends = [line.after[1:]] if line.after else []
        for mean, std in [*zip(line.mean, line.std, strict=True), *ends]:
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


def label_ends(figure: Figure, axes: Axes, panel: LinePanel, order: Mapping[str, int]) -> None:
    """Write each method's name and last number at the right end of its line, none over another."""
    ends = sorted((line.last, line.label) for line in panel.lines if line.last is not None)
    right = max((x for line in panel.lines for x in line.x), default=0)
    texts = [
        axes.annotate(
            f"{style.cut_label(label, LABEL_LENGTH)} {value:.1f}", (right, value), (5, 0),
            textcoords="offset points", va="center", annotation_clip=False,
            fontsize=style.SMALL, color=style.line_style(order[label])["color"],
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
    figure: Figure, order: Mapping[str, int | None], *, markers: bool = False,
    extra: Sequence[tuple[Any, str]] = (), heading: str = "",
) -> None:
    """Put one legend for all panels above them, below a heading; the figure gets taller by it."""
    rest = sum(index is None for index in order.values())
    entries = [
        *((Line2D([], [], marker=style.marker(i) if markers else None, **style.line_style(i)),
           style.cut_label(label, LABEL_LENGTH)) for label, i in order.items() if i is not None),
        *([(Line2D([], [], linewidth=0.6, **style.line_style(None)), f"{rest} others")]
          if rest else []), *extra,
    ]
    if not entries and not heading:
        return
    rows = _legend_rows([len(label) for _, label in entries], figure.get_figwidth() * 72)
    legend = figure.legend(
        [handle for handle, _ in entries], [label for _, label in entries],
        loc="outside upper left", frameon=False, ncols=max(math.ceil(len(entries) / rows), 1),
        handlelength=2.0, columnspacing=1.4, borderaxespad=0.2, labelspacing=0.35,
        title=heading or None, alignment="left", title_fontsize=8,
    )
    coloured = [label for label, index in order.items() if index is not None]
    for label, handle, text in zip(coloured, legend.legend_handles, legend.texts, strict=False):
        text.set_gid(style.gid(label))
        if handle is not None:
            handle.set_gid(style.gid(label))
    figure.set_figheight(figure.get_figheight() + rows * 0.135 + (0.2 if heading else 0.05))


def _legend_rows(lengths: Sequence[int], points: float) -> int:
    """Return the fewest rows in which labels of so many characters fit, column by column."""
    for rows in range(1, len(lengths)):
        columns = [lengths[at : at + rows] for at in range(0, len(lengths), rows)]
        if sum(max(column) * 4.2 + 32 for column in columns) <= points:
            return rows
    return max(len(lengths), 1)


def draw_panels(
    panels: Sequence[LinePanel], width: float, height: float,
    fill: Callable[[Axes, LinePanel, Mapping[str, int | None]], None], *, x_label: str,
    extra: Sequence[tuple[Any, str]] = (), markers: bool = False, direct: bool = True,
) -> Figure:
    """Return a figure with one pair of axes per panel, each drawn by ``fill``.

    More methods than colours tell apart: of one panel each method gets axes of its own with the
    others in grey behind it, of several the best have a colour.

    Args:
        direct: names stand at the lines' ends where one panel has room for them; a legend above
            otherwise.
    """
    with style.use_style():
        order: Mapping[str, int | None] = order_of(panels)
        references = legend_of(panel.levels for panel in panels)
        several = [panel for panel in panels if panel.lines]
        if len(order) > MANY and len(several) == 1:
            return _one_by_one(several[0], width, fill, x_label, [*references, *extra])
        if len(order) > MANY:
            order = _best(panels)
            panels = [_without_bands(panel) for panel in panels]
        beside = [*references, *_after(panels, order), *extra]
        figure, axes = style.panels(len(panels), width, height)
        longest = min(max(map(len, order), default=0), LABEL_LENGTH)
        room = len(panels) == 1 and len(order) <= MANY and longest * 4 < 0.3 * width * 72
        write_titles(figure, axes, [panel.title for panel in panels], width)
        for panel, each in zip(panels, axes, strict=True):
            _fill(each, panel, order, fill)
        figure.supxlabel(x_label, fontsize=style.SMALL)
        if direct and room:
            label_ends(figure, axes[0], panels[0], order_of(panels))
            legend_above(figure, {}, extra=beside)
        else:
            legend_above(figure, order, markers=markers, extra=beside)
    return figure


def _fill(
    axes: Axes, panel: LinePanel, order: Mapping[str, int | None],
    fill: Callable[[Axes, LinePanel, Mapping[str, int | None]], None],
) -> None:
    fill(axes, panel, order)
    draw_levels(axes, panel.levels)
    fit_height(axes, panel)
    label_first(axes, panel.metric)


def label_first(axes: Axes, metric: str) -> None:
    """Name the metric at the left of the first column of panels."""
    place = axes.get_subplotspec()
    if place is None or place.is_first_col():
        axes.set_ylabel(WORDS.get(metric, f"{metric} (%)"))


def _one_by_one(
    panel: LinePanel, width: float,
    fill: Callable[[Axes, LinePanel, Mapping[str, int | None]], None], x_label: str,
    extra: Sequence[tuple[Any, str]],
) -> Figure:
    """Return small multiples: a method each in the colour of its family, the others in grey."""
    lines = sorted((line for line in panel.lines if line.x), key=_end, reverse=True)
    figure, axes = style.panels(len(lines), width, 0.8, most=max(int(width / 1.05), 1))
    families = list(style.FAMILIES)
    for line, each in zip(lines, axes, strict=True):
        others: dict[str, int | None] = dict.fromkeys((one.label for one in lines), None)
        behind = replace(panel, lines=[one for one in lines if one is not line] + [line])
        _fill(each, behind, others | {line.label: style.family_index(line.family)}, fill)
        each.set_ylabel("")
        place = each.get_subplotspec()
        if place is not None:
            each.tick_params(labelleft=place.is_first_col())
            each.tick_params(labelbottom=place.is_last_row())
    write_titles(figure, axes, [line.label for line in lines], width * 0.95)
    figure.supxlabel(x_label, fontsize=style.SMALL)
    figure.supylabel(WORDS.get(panel.metric, f"{panel.metric} (%)"), fontsize=style.SMALL)
    there = [name for name in families if name and any(one.family == name for one in lines)]
    shown: list[tuple[Any, str]] = [
        (Line2D([], [], **style.line_style(style.family_index(name))), name) for name in there
    ]
    rest = (Line2D([], [], linewidth=0.6, **style.line_style(None)), "all other methods")
    after = _after([panel], order_of([panel]))
    legend_above(figure, {}, extra=[*shown, rest, *after, *extra],
                 heading=style.cut_label(panel.title, int(width * 14)))
    return figure


def _best(panels: Sequence[LinePanel]) -> dict[str, int | None]:
    """Return numbers for the methods that are best over the panels; None for the others."""
    ends: dict[str, list[float]] = {}
    for panel in panels:
        for line in panel.lines:
            if line.last is not None:
                ends.setdefault(line.label, []).append(_end(line))
    most = max(map(len, ends.values()), default=0)
    rank = sorted((label for label, values in ends.items() if len(values) == most),
                  key=lambda label: -math.fsum(ends[label]))
    colours = {label: at for at, label in enumerate(rank[:BEST])}
    return {**colours, **{label: None for label in order_of(panels) if label not in colours}}


def _end(line: MethodLine) -> float:
    """Return a line's number after everything; of no number the least there is."""
    last = line.after[1] if line.after else line.last
    return -math.inf if last is None else last


def _without_bands(panel: LinePanel) -> LinePanel:
    """Return a panel whose lines have no spread: bands of many methods hide each other."""
    return replace(panel, lines=[
        replace(line, std=[None] * len(line.x), after=line.after and (*line.after[:2], None))
        for line in panel.lines
    ])


def _after(
    panels: Sequence[LinePanel], order: Mapping[str, int | None]
) -> list[tuple[Any, str]]:
    """Return what a legend says of the markers after a final fine-tuning."""
    if not any(line.after and order.get(line.label) is not None
               for panel in panels for line in panel.lines):
        return []
    handle = Line2D([], [], marker="o", linestyle="none", color=style.FAINT,
                    markerfacecolor="white", markersize=4.5)
    return [(handle, "after the final fine-tuning")]


def _good(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)
