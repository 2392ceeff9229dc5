"""Axes whose rows are methods: names once at the left, data sets as panels side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedvlm.core.stats import mean
from fedvlm.report.figures import style
from fedvlm.report.figures.drawing.lines import LABEL_LENGTH
from fedvlm.report.figures.drawing.titles import write_titles

ROW, HEAD, NARROW = 0.135, 0.42, 0.92  # inches: a method, titles and ticks, the least panel
FEWEST = 7  # rows of a figure's least height: the legend takes its own from it


def by_mean(means: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the methods, the best mean over the panels first; who lacks a panel comes last."""
    every = dict.fromkeys(label for panel in means for label in panel)
    return sorted(every, key=lambda label: (
        -sum(label in panel for panel in means),
        -(mean(panel.get(label) for panel in means) or 0.0), label,
    ))


def strips(
    methods: Sequence[str], titles: Sequence[str], width: float, x_label: str
) -> tuple[Figure, list[Axes]]:
    """Return a figure with a row for each method in a panel for each title.

    Call inside ``style.use_style()``. The first method is on top; rows are 0, 1, ...
    """
    names = [style.cut_label(name, LABEL_LENGTH if width > 4 else 24) for name in methods]
    left = max((len(name) for name in names), default=1) * 3.9 / 72 + 0.15
    columns = max(1, min(len(titles), int((width - left) / NARROW)))
    rows = math.ceil(len(titles) / columns)
    columns = math.ceil(len(titles) / rows)
    figure = style.blank(width, rows * (max(len(methods), FEWEST) * ROW + HEAD) + 0.1)
    axes = style.axes_in(figure, rows, columns, len(titles))
    most = int((width - left) * 15 / columns)
    heads = [title.partition(",")[0] for title in titles]
    if len(set(heads)) == len(titles) and any(len(title) > most for title in titles):
        titles = heads  # the data set alone says which panel it is
    write_titles(figure, axes, titles, width - left)
    for at, each in enumerate(axes):
        each.set_ylim(max(len(methods), 1) - 0.5, -0.5)
        each.set_yticks(range(len(methods)), names if at % columns == 0 else [""] * len(methods))
        each.tick_params(axis="y", length=0)
        for text, label in zip(each.get_yticklabels(), methods, strict=True):
            text.set_gid(style.gid(label))
        each.spines["left"].set_visible(False)
        each.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
    figure.supxlabel(x_label, fontsize=style.SMALL)
    return figure, axes


def family_legend(families: Sequence[str]) -> list[tuple[Any, str]]:
    """Return what a legend says of the families that are there; nothing of one alone."""
    there = [name for name in style.FAMILIES if name and name in families]
    if len(there) < 2:
        return []
    return [
        (Line2D([], [], linestyle="none", marker=style.FAMILIES[name][1], markersize=3.6,
                color=style.FAMILIES[name][0]), name)
        for name in there
    ]
