"""The map as a figure: a heat map of the gain of working together for each set and label skew."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evidence.map.cell import TOGETHER
from evidence.map.deal import EVEN, SKEWS, TWO
from fedvlm.report.figures import style

WIDTH, SIDE = 10.0, 1.75  # inches
LIMIT = 30.0  # points at which the colour is full
GREY = "#ececec"
TITLES = {TWO: "two classes each", EVEN: "all classes evenly"}
WORDS = {"gain": "personal accuracy", "balanced_gain": "class-balanced accuracy"}
Row = dict[str, Any]


def draw_map(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write ``map.png`` and ``map-balanced.png`` with their SVG and PDF; return the files."""
    return [path for name, metric in (("map", "gain"), ("map-balanced", "balanced_gain"))
            for path in style.write_figure(folder, name, figure_of(rows, metric), None)]


def figure_of(rows: Sequence[Row], metric: str) -> Figure:
    """Return a panel for each set (and shift) and skew: the gain by clients and images a client.

    A number in a cell is the mean over draws; a cell in grey brackets is within two standard errors
    of 0. White with a cross: the set has too few images.
    """
    kept = [row for row in rows if row["method"] == TOGETHER]
    bands = sorted({(row["set"], row["shift"]) for row in kept},
                   key=lambda band: (band[1], [row["set"] for row in kept].index(band[0])))
    clients, images = (sorted({row[name] for row in kept}) for name in ("clients", "images"))
    with style.use_style():
        figure = style.blank(WIDTH, SIDE * len(bands) + 0.6)
        axes = figure.subplots(len(bands), len(SKEWS), squeeze=False, sharex=True, sharey=True)
        for (name, shift), line in zip(bands, axes, strict=True):
            for skew, each in zip(SKEWS, line, strict=True):
                some = {(row["clients"], row["images"]): row for row in kept
                        if (row["set"], row["shift"], row["skew"]) == (name, shift, skew)}
                drawn = _panel(each, some, clients, images, metric)
            line[0].set_ylabel(f"{name}{', a scanner each' if shift else ''}\nimages a client")
        for skew, each in zip(SKEWS, axes[0], strict=True):
            each.set_title(TITLES.get(skew, f"Dirichlet {skew}"))
        for each in axes[-1]:
            each.set_xlabel("clients")
        bar = figure.colorbar(drawn, ax=axes.ravel().tolist(), shrink=0.5, aspect=40, pad=0.01,
                              extend="both")
        bar.set_label(f"{WORDS[metric]}: together above alone, points")
        bar.outline.set_visible(False)  # type: ignore[operator]
    return figure


def _panel(
    axes: Axes, cells: dict[tuple[int, int], Row], clients: list[int], images: list[int],
    metric: str,
) -> Any:
    grid = np.full((len(images), len(clients)), np.nan)
    for (k, n), row in cells.items():
        grid[images.index(n), clients.index(k)] = row[metric]
    axes.set_facecolor(GREY)
    axes.grid(visible=False)
    drawn = axes.imshow(np.ma.masked_invalid(grid), cmap=style.DIVERGING, vmin=-LIMIT, vmax=LIMIT,
                        origin="lower", aspect="auto", interpolation="nearest")
    for (k, n), row in cells.items():
        value, error = row[metric], row[f"{metric}_se"]
        text = f"{value:+.0f}".replace("-", "\N{MINUS SIGN}") if round(value) else "0"
        if not math.isnan(error) and abs(value) < 2 * error:
            text = f"({text})"
        axes.text(clients.index(k), images.index(n), text, ha="center", va="center",
                  color=style.ON_DARK if abs(value) > 0.6 * LIMIT else style.ON_LIGHT)
    axes.set_xticks(range(len(clients)), [str(k) for k in clients])
    axes.set_yticks(range(len(images)), [str(n) for n in images])
    return drawn
