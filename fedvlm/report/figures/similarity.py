"""How alike the clients' updates are, first and last round: heat maps of cosines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedvlm.report.figures import style
from fedvlm.report.figures.selection import FigureRuns

NAME, ORDER, OF = "similarity", 40, "run"
CAPTION = ("Cosine similarity between the updates of each two clients, all shared tensors as one "
           "vector, in the first and the last round.")
GREY = "#cfcfcf"
_VALUES_UP_TO = 6  # clients, whose cosines are written into the cells

Similarities = Mapping[int, Mapping[str, Any]]  # round -> its ``similarity``


def select(selection: FigureRuns) -> Similarities | str:
    """Return the similarities of the first and the last round that have them."""
    return ends(selection.records) or (
        "no round has it (a method that shares nothing, or a run made before similarities were "
        "recorded)"
    )


def ends(records: Sequence[Mapping[str, Any]]) -> Similarities:
    """Return ``similarity`` of the first and the last of a run's rounds that have it, by round."""
    every = {int(r["round"]): r["similarity"] for r in records if r.get("similarity")}
    rounds = sorted(every)
    return {r: every[r] for r in (*rounds[:1], *rounds[1:][-1:])}


def rows(data: Similarities) -> list[dict[str, Any]]:
    """Return one row per round and pair of clients, between updates and per uploaded tensor."""
    lines = []
    for number, one in data.items():
        tables = {"update": one["update"]} | dict(one.get("tensors") or {})
        for name, table in tables.items():
            lines += [
                {"round": number, "of": name, "client": a, "other": b, "cosine": table[i][j]}
                for i, a in enumerate(one["clients"]) for j, b in enumerate(one["clients"])
            ]
    return lines


def draw(data: Similarities, title: str = "", width: float = style.PAGE) -> Figure:
    """Return one square heat map per round, side by side, with one colour bar.

    A client with itself is grey. Colours reach to the greatest cosine of two clients, 0 is white.
    """
    grids = {r: _apart(one["update"]) for r, one in data.items()}
    most = max((np.nanmax(np.abs(g)) for g in grids.values() if np.isfinite(g).any()), default=0)
    limit = max(math.ceil(10 * most - 1e-9) / 10, 0.2)
    side = (width - 1.25) / 2
    with style.use_style():
        figure = style.blank(width if len(data) > 1 else side + 1.1, side + 0.78)
        axes = figure.subplots(1, len(data), squeeze=False)[0]
        for each, (number, one) in zip(axes, data.items(), strict=True):
            grid = grids[number]
            each.set_facecolor(GREY)
            image = each.imshow(
                np.ma.masked_invalid(grid), cmap=style.DIVERGING, vmin=-limit, vmax=limit,
                interpolation="nearest",
            )
            _ticks(each, one["clients"], side)
            each.set_title(f"round {number}")
            each.set_xlabel("client")
            _write_values(each, grid, limit)
        axes[0].set_ylabel("client")
        colour_bar(figure, image, axes, "cosine between updates")
        title_above(figure, title, width)
    return figure


def similarity_matrix(table: Sequence[Sequence[float | None]]) -> np.ndarray:
    """Return cosines as an array, NaN for those that are not there."""
    return np.array([[math.nan if v is None else v for v in row] for row in table], dtype=float)


def colour_bar(figure: Figure, image: Any, axes: Any, label: str) -> None:
    """Draw the bar that tells the colours of all axes."""
    bar = figure.colorbar(image, ax=list(axes), fraction=0.05, aspect=20, pad=0.02)
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.set_label(label)
    bar.ax.ticklabel_format(useOffset=False)


def title_above(figure: Figure, title: str, width: float) -> None:
    """Write the title of all axes; nothing for none."""
    if title:
        figure.suptitle(style.cut_label(title, int(width * 15)), fontsize=7.5, x=0.01, ha="left")


def _apart(table: Sequence[Sequence[float | None]]) -> np.ndarray:
    """Return the cosines as a matrix without its diagonal."""
    grid = similarity_matrix(table)
    np.fill_diagonal(grid, math.nan)
    return grid


def _ticks(axes: Axes, clients: Sequence[int], side: float) -> None:
    places = style.even_places(len(clients), max(int(side * 7), 2))
    labels = [str(clients[i]) for i in places]
    axes.set_xticks(places, labels)
    axes.set_yticks(places, labels)
    axes.grid(False)


def _write_values(axes: Axes, grid: np.ndarray, limit: float) -> None:
    if len(grid) > _VALUES_UP_TO:
        return
    for (i, j), value in np.ndenumerate(grid):
        if np.isfinite(value):
            dark = abs(value) > 0.6 * limit
            short = f"{value:.2f}".replace("0.", ".", 1).replace("-", "\N{MINUS SIGN}")
            axes.text(j, i, short, ha="center", va="center", fontsize=style.SMALL,
                      color=style.ON_DARK if dark else style.ON_LIGHT)
