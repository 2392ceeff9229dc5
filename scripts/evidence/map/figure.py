"""The map as figures: heat maps of the gain of working together, set by set and over all sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evidence.map.deal import EVEN, SKEWS, TWO
from evidence.map.table import sides, together
from fedvlm.report.figures import style
from fedvlm.report.tables.papers import dataset_name

WIDTH, SIDE = 10.0, 1.75  # inches
LIMIT = 30.0  # points at which the colour is full
GREY = "#ececec"
TITLES = {TWO: "two classes each", EVEN: "all classes evenly"}
WORDS = {"gain": "personal accuracy", "balanced_gain": "class-balanced accuracy"}
FIGURES = ("map", "map-balanced", "map-all")
Row = dict[str, Any]
Shown = dict[tuple[int, int], tuple[float, bool]]  # (clients, images) -> points, in brackets?


def draw_map(rows: Sequence[Row], folder: Path) -> None:
    """Write ``map.png``, ``map-balanced.png`` and ``map-all.png``, each with its SVG."""
    for name, figure in zip(FIGURES, (figure_of(rows, "gain"), figure_of(rows, "balanced_gain"),
                                      figure_of_all(rows)), strict=True):
        style.write_figure(folder, name, figure, None)


def figure_of(rows: Sequence[Row], metric: str) -> Figure:
    """Return a panel for each set (and shift) and skew: the gain by clients and images a client.

    A number in a cell is the mean over draws, in brackets where its 95 % interval has 0. Grey: no
    such cell.
    """
    kept = together(rows)
    bands = sorted({(row["set"], row["shift"]) for row in kept},
                   key=lambda band: (band[1], [row["set"] for row in kept].index(band[0])))
    sure = sides(kept, metric)
    with style.use_style():
        figure = style.blank(WIDTH, SIDE * len(bands) + 0.6)
        axes = figure.subplots(len(bands), len(SKEWS), squeeze=False, sharex=True, sharey=True)
        for (name, shift), line in zip(bands, axes, strict=True):
            for skew, each in zip(SKEWS, line, strict=True):
                drawn = _panel(each, {
                    (row["clients"], row["images"]): (row[metric], not seen)
                    for row, seen in zip(kept, sure, strict=True)
                    if (row["set"], row["shift"], row["skew"]) == (name, shift, skew)}, kept)
            line[0].set_ylabel(
                f"{dataset_name(name)}{', a scanner each' if shift else ''}\nimages a client")
        for skew, each in zip(SKEWS, axes[0], strict=True):
            each.set_title(TITLES.get(skew, f"Dirichlet {skew}"))
        for each in axes[-1]:
            each.set_xlabel("clients")
        _bar(figure, drawn, axes.ravel().tolist(), metric)
    return figure


def figure_of_all(rows: Sequence[Row]) -> Figure:
    """Return a panel for each skew: the mean gain of the sets that have the cell, without shift.

    In brackets where not every one of these sets has a 95 % interval on the same side of 0.
    """
    kept = [row for row in together(rows) if not row["shift"]]
    seen = list(zip(kept, sides(kept), strict=True))
    with style.use_style():
        figure, axes = style.panels(len(SKEWS) + 1, style.PAGE, SIDE)
        for skew, each in zip(SKEWS, axes, strict=False):
            cells: dict[tuple[int, int], list[tuple[float, int]]] = {}
            for row, side in seen:
                if row["skew"] == skew:
                    cells.setdefault((row["clients"], row["images"]), []).append(
                        (row["gain"], side))
            drawn = _panel(each, {
                place: (fmean(gain for gain, _ in some),
                        {side for _, side in some} not in ({1}, {-1}))
                for place, some in cells.items()}, kept)
            each.set_title(TITLES.get(skew, f"Dirichlet {skew}"))
            each.set_xlabel("clients")
            each.set_ylabel("images a client")
        axes[-1].remove()
        _bar(figure, drawn, axes[:-1], "gain")
    return figure


def _bar(figure: Figure, drawn: Any, beside: Any, metric: str, **place: Any) -> None:
    bar = figure.colorbar(drawn, ax=beside, extend="both",
                          **({"shrink": 0.5, "aspect": 40, "pad": 0.01} | place))
    bar.set_label(f"{WORDS[metric]}: together above alone, points")
    bar.outline.set_visible(False)  # type: ignore[operator]


def _panel(axes: Axes, cells: Shown, kept: Sequence[Row]) -> Any:
    """Draw cells on the clients and images of all ``kept`` rows."""
    clients, images = (sorted({row[name] for row in kept}) for name in ("clients", "images"))
    grid = np.full((len(images), len(clients)), np.nan)
    for (k, n), (value, _) in cells.items():
        grid[images.index(n), clients.index(k)] = value
    axes.set_facecolor(GREY)
    axes.grid(visible=False)
    drawn = axes.imshow(np.ma.masked_invalid(grid), cmap=style.DIVERGING, vmin=-LIMIT, vmax=LIMIT,
                        origin="lower", aspect="auto", interpolation="nearest")
    for (k, n), (value, brackets) in cells.items():
        text = f"{value:+.0f}".replace("-", "\N{MINUS SIGN}") if round(value) else "0"
        axes.text(clients.index(k), images.index(n), f"({text})" if brackets else text,
                  ha="center", va="center",
                  color=style.ON_DARK if abs(value) > 0.6 * LIMIT else style.ON_LIGHT)
    axes.set_xticks(range(len(clients)), [str(k) for k in clients])
    axes.set_yticks(range(len(images)), [str(n) for n in images])
    return drawn
