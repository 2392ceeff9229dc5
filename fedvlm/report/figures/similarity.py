"""How alike the clients' uploads are, first and last round: heat maps of cosines.

``draw``: between the clients' updates. ``draw_global``: of each uploaded tensor to what the client
had downloaded, which is what similarity-aware aggregation (FedTV) makes its weights of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedvlm.report.figures import style

_GREY = "#cfcfcf"
_VALUES_UP_TO = 6  # clients, whose cosines are written into the cells


def rounds_with(records: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Return ``similarity`` of the first and the last of a run's rounds that have it, by round."""
    found = {int(r["round"]): r["similarity"] for r in records if r.get("similarity")}
    ends = sorted(found)[:1] + sorted(found)[1:][-1:]
    return {r: found[r] for r in ends}


def rows_of(found: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per round and pair of clients, between updates and per uploaded tensor."""
    rows = []
    for number, one in found.items():
        tables = {"update": one["update"]} | dict(one.get("tensors") or {})
        for name, table in tables.items():
            rows += [
                {"round": number, "of": name, "client": a, "other": b, "cosine": table[i][j]}
                for i, a in enumerate(one["clients"]) for j, b in enumerate(one["clients"])
            ]
    return rows


def global_rows_of(found: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per round, tensor and client: cosine to what was downloaded."""
    return [
        {"round": number, "tensor": name, "client": client, "cosine": value}
        for number, one in found.items() for name, values in one["to_global"].items()
        for client, value in zip(one["clients"], values, strict=True)
    ]


def draw(
    found: Mapping[int, Mapping[str, Any]], title: str = "", width: float = style.PAGE
) -> Figure:
    """Return one square heat map per round, side by side, with one colour bar.

    A client with itself is grey. Colours reach to the greatest cosine of two clients, 0 is white.
    """
    grids = {r: _apart(one["update"]) for r, one in found.items()}
    most = max((np.nanmax(np.abs(g)) for g in grids.values() if np.isfinite(g).any()), default=0)
    limit = max(math.ceil(10 * most - 1e-9) / 10, 0.2)
    side = (width - 1.25) / 2
    with style.styled():
        figure = style.blank(width if len(found) > 1 else side + 1.1, side + 0.78)
        axes = figure.subplots(1, len(found), squeeze=False)[0]
        for each, (number, one) in zip(axes, found.items(), strict=True):
            grid = grids[number]
            each.set_facecolor(_GREY)
            image = each.imshow(
                np.ma.masked_invalid(grid), cmap=style.DIVERGING, vmin=-limit, vmax=limit,
                interpolation="nearest",
            )
            _ticks(each, one["clients"], side)
            each.set_title(f"round {number}")
            each.set_xlabel("client")
            _write_values(each, grid, limit)
        axes[0].set_ylabel("client")
        _bar(figure, image, axes, "cosine between updates")
        _head(figure, title, width)
    return figure


def draw_global(
    found: Mapping[int, Mapping[str, Any]], title: str = "", width: float = style.PAGE
) -> Figure:
    """Return tensors x clients, one heat map per round one above the other, with one colour bar.

    A cosine of exactly 0 is grey: that tensor starts from zero, or the upload is zero.
    """
    names = list(next(iter(found.values()))["to_global"])
    grids = {
        r: np.array([[math.nan if v is None else v for v in one["to_global"][n]] for n in names])
        for r, one in found.items()
    }
    known = np.concatenate([g[np.isfinite(g) & (g != 0)] for g in grids.values()])
    zeros = any((g == 0).any() for g in grids.values())
    low, high = (known.min(), known.max()) if known.size else (0.0, 1.0)
    tall = min(max(0.14 * len(names), 0.3), 2.4)
    with style.styled():
        figure = style.blank(width, max(len(found) * (tall + 0.38) + 0.2, 1.5))
        axes = figure.subplots(len(found), 1, squeeze=False)[:, 0]
        for each, (number, one) in zip(axes, found.items(), strict=True):
            each.set_facecolor(_GREY)
            shown = np.ma.masked_equal(np.nan_to_num(grids[number]), 0)
            image = each.imshow(
                shown, cmap=style.LEVELS, aspect="auto", vmin=low,
                vmax=high if high > low else low + 1e-6, interpolation="nearest",
            )
            rows = style.thinned(len(names), max(int(tall * 72 / 7.5), 1))
            each.set_yticks(rows, [style.shortened(names[i], int(width * 7.5)) for i in rows])
            columns = style.thinned(len(one["clients"]), int(width * 5))
            each.set_xticks(columns, [str(one["clients"][i]) for i in columns])
            each.set_title(f"round {number}")
            each.grid(False)
        axes[-1].set_xlabel("client")
        _bar(figure, image, axes, "cosine to the download" + (" (grey: 0)" if zeros else ""))
        _head(figure, title, width)
    return figure


def _apart(table: Sequence[Sequence[float | None]]) -> np.ndarray:
    """Return the cosines as a matrix without its diagonal."""
    grid = np.array([[math.nan if v is None else v for v in row] for row in table], dtype=float)
    np.fill_diagonal(grid, math.nan)
    return grid


def _ticks(axes: Axes, clients: Sequence[int], side: float) -> None:
    shown = style.thinned(len(clients), max(int(side * 7), 2))
    labels = [str(clients[i]) for i in shown]
    axes.set_xticks(shown, labels)
    axes.set_yticks(shown, labels)
    axes.grid(False)


def _write_values(axes: Axes, grid: np.ndarray, limit: float) -> None:
    if len(grid) > _VALUES_UP_TO:
        return
    for (i, j), value in np.ndenumerate(grid):
        if np.isfinite(value):
            dark = abs(value) > 0.6 * limit
            short = f"{value:.2f}".replace("0.", ".", 1).replace("-", "\N{MINUS SIGN}")
            axes.text(j, i, short, ha="center", va="center", fontsize=5.5,
                      color=style.ON_DARK if dark else style.ON_LIGHT)


def _bar(figure: Figure, image: Any, axes: Any, label: str) -> None:
    bar = figure.colorbar(image, ax=list(axes), fraction=0.05, aspect=20, pad=0.02)
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.set_label(label)
    bar.ax.ticklabel_format(useOffset=False)


def _head(figure: Figure, title: str, width: float) -> None:
    if title:
        figure.suptitle(style.shortened(title, int(width * 15)), fontsize=7.5, x=0.01, ha="left")
