"""The map as figures: heat maps of the gain of working together, set by set and over all sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from evidence.map.deal import SKEWS, skew_words
from evidence.map.images import FIVE
from evidence.map.table import sides, together, whole_sets
from fedvlm.report.figures import style
from fedvlm.report.tables.papers import dataset_name

WIDTH, SIDE = 10.0, 1.75  # inches
LIMIT = 30.0  # points at which the colour is full
GREY = "#ececec"
WORDS = {"gain": "personal accuracy", "balanced_gain": "accuracy over all classes"}
FIGURES = ("map", "map-balanced", "map-all", "map-all-narrow")  # the last for telephones
Row = dict[str, Any]
Shown = dict[tuple[int, int], tuple[float, str]]  # (clients, images) -> points, how to write it
PLAIN, BRACKETS, STAR = "{}", "({})", "*"


def draw_map(rows: Sequence[Row], folder: Path) -> None:
    """Write each of ``FIGURES`` as PNG and SVG."""
    drawn = (figure_of(rows, "gain"), figure_of(rows, "balanced_gain"), figure_of_all(rows),
             figure_of_all(rows, narrow=True))
    for name, figure in zip(FIGURES, drawn, strict=True):
        style.write_figure(folder, name, figure, None)


def figure_of(rows: Sequence[Row], metric: str) -> Figure:
    """Return a panel for each set (and shift) and skew: the gain by clients and images a client.

    A number in a cell is the mean over draws, in brackets where its 95 % interval has 0. Grey: no
    such cell. Hatched: a size of which a set that is not among the whole ones has no cell.
    """
    kept = together(rows)
    bands = sorted({(row["set"], row["shift"]) for row in kept},
                   key=lambda band: (band[1], [row["set"] for row in kept].index(band[0])))
    sure, whole = sides(kept, metric), whole_sets(kept)
    with style.use_style():
        figure = style.blank(WIDTH, SIDE * len(bands) + 0.6)
        axes = figure.subplots(len(bands), len(SKEWS), squeeze=False, sharex=True, sharey=True)
        for (name, shift), line in zip(bands, axes, strict=True):
            for skew, each in zip(SKEWS, line, strict=True):
                drawn = _panel(each, {
                    (row["clients"], row["images"]): (row[metric], PLAIN if seen else BRACKETS)
                    for row, seen in zip(kept, sure, strict=True)
                    if (row["set"], row["shift"], row["skew"]) == (name, shift, skew)}, kept)
                if name not in whole:
                    _hatch(each, name, kept)
            seen = [dataset_name(name), *([FIVE] if shift else []), "images a client"]
            line[0].set_ylabel("\n".join(seen))
        for skew, each in zip(SKEWS, axes[0], strict=True):
            each.set_title(skew_words(skew))
        for each in axes[-1]:
            each.set_xlabel("clients")
        _bar(figure, drawn, axes.ravel().tolist(), metric)
    return figure


def figure_of_all(rows: Sequence[Row], narrow: bool = False) -> Figure:
    """Return a panel for each skew: the mean gain of the whole sets, without shift.

    Args:
        narrow: one panel below the other.

    A star: not all of them have the cell. In brackets where not each of those that have it has a
    95 % interval on the same side of 0.
    """
    whole = whole_sets(together(rows))
    kept = [row for row in together(rows) if not row["shift"] and row["set"] in whole]
    seen = list(zip(kept, sides(kept), strict=True))
    with style.use_style():
        figure, axes = style.panels(len(SKEWS) + 1, style.COLUMN if narrow else style.PAGE, SIDE,
                                    1 if narrow else 0)
        for skew, each in zip(SKEWS, axes, strict=False):
            cells: dict[tuple[int, int], list[tuple[float, int]]] = {}
            for row, side in seen:
                if row["skew"] == skew:
                    cells.setdefault((row["clients"], row["images"]), []).append(
                        (row["gain"], side))
            drawn = _panel(each, {
                place: (fmean(gain for gain, _ in some),
                        (PLAIN if {side for _, side in some} in ({1}, {-1}) else BRACKETS)
                        + ("" if len(some) == len(whole) else STAR))
                for place, some in cells.items()}, kept)
            each.set_title(skew_words(skew))
            each.set_xlabel("clients")
            each.set_ylabel("images a client")
        names = " and ".join(map(dataset_name, whole))
        _explain(figure, axes[-1], drawn, f"mean of {names},\nsame scanner at all clients\n"
                 "(+1): not significant on each\n+1*: one of the sets only")
    return figure


def _explain(figure: Figure, axes: Axes, drawn: Any, words: str) -> None:
    """Turn a spare panel into the colour bar and what numbers mean."""
    axes.set_axis_off()
    axes.text(0.0, 0.95, words, transform=axes.transAxes, va="top", linespacing=1.5)
    place = axes.inset_axes((0.0, 0.2, 1.0, 0.09))
    bar = figure.colorbar(drawn, cax=place, orientation="horizontal", extend="both",
                          ticks=[-LIMIT, -LIMIT / 2, 0, LIMIT / 2, LIMIT])
    bar.set_label(f"{WORDS['gain']}: together\nabove alone, points")
    bar.outline.set_visible(False)  # type: ignore[operator]


def _hatch(axes: Axes, name: str, kept: Sequence[Row]) -> None:
    """Hatch the sizes that other sets have and this one has nothing of: left out to save time."""
    clients, images = (sorted({row[what] for row in kept}) for what in ("clients", "images"))
    there = {(row["clients"], row["images"]) for row in kept if row["set"] == name}
    for k, n in {(row["clients"], row["images"]) for row in kept} - there:
        axes.add_patch(Rectangle((clients.index(k) - 0.5, images.index(n) - 0.5), 1, 1,
                                 facecolor="none", edgecolor="#b5b5b5", hatch="/////",
                                 linewidth=0))


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
    for (k, n), (value, form) in cells.items():
        text = f"{value:+.0f}".replace("-", "\N{MINUS SIGN}") if round(value) else "0"
        axes.text(clients.index(k), images.index(n), form.format(text),
                  ha="center", va="center",
                  color=style.ON_DARK if abs(value) > 0.65 * LIMIT else style.ON_LIGHT)
    axes.set_xticks(range(len(clients)), [str(k) for k in clients])
    axes.set_yticks(range(len(images)), [str(n) for n in images])
    return drawn
