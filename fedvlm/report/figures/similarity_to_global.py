"""How alike each uploaded tensor is to what its client had downloaded, first and last round.

Similarity-aware aggregation (FedTV) makes its weights of these cosines.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedvlm.report.figures import style
from fedvlm.report.figures.selection import FigureRuns
from fedvlm.report.figures.similarity import (
    GREY,
    Similarities,
    colour_bar,
    ends,
    similarity_matrix,
    title_above,
)

NAME, ORDER, OF = "similarity_to_global", 50, "run"
CAPTION = ("Cosine similarity of each uploaded tensor to the downloaded one; similarity-aware "
           "aggregation computes its weights from it.")


def select(selection: FigureRuns) -> Similarities | None:
    """Return the similarities of the first and the last round; ``similarity`` says why none."""
    return ends(selection.records) or None


def rows(data: Similarities) -> list[dict[str, Any]]:
    """Return one row per round, tensor and client: cosine to what was downloaded."""
    return [
        {"round": number, "tensor": name, "client": client, "cosine": value}
        for number, one in data.items() for name, values in one["to_global"].items()
        for client, value in zip(one["clients"], values, strict=True)
    ]


def draw(data: Similarities, title: str = "", width: float = style.PAGE) -> Figure:
    """Return tensors x clients, one heat map per round one above the other, with one colour bar.

    A cosine of exactly 0 is grey: that tensor starts from zero, or the upload is zero.
    """
    names = list(next(iter(data.values()))["to_global"])
    grids = {r: similarity_matrix([one["to_global"][n] for n in names]) for r, one in data.items()}
    levels = np.concatenate([g[np.isfinite(g) & (g != 0)] for g in grids.values()])
    zeros = any((g == 0).any() for g in grids.values())
    low, high = (levels.min(), levels.max()) if levels.size else (0.0, 1.0)
    tall = min(max(0.14 * len(names), 0.3), 2.4)
    with style.use_style():
        figure = style.blank(width, max(len(data) * (tall + 0.38) + 0.2, 1.5))
        axes = figure.subplots(len(data), 1, squeeze=False)[:, 0]
        for each, (number, one) in zip(axes, data.items(), strict=True):
            each.set_facecolor(GREY)
            image = each.imshow(
                np.ma.masked_equal(np.nan_to_num(grids[number]), 0), cmap=style.LEVELS,
                aspect="auto", vmin=low, vmax=high if high > low else low + 1e-6,
                interpolation="nearest",
            )
            places = style.even_places(len(names), max(int(tall * 72 / 7.5), 1))
            each.set_yticks(places, [style.cut_label(names[i], int(width * 7.5)) for i in places])
            columns = style.even_places(len(one["clients"]), int(width * 5))
            each.set_xticks(columns, [str(one["clients"][i]) for i in columns])
            each.set_title(f"round {number}")
            each.grid(False)
        axes[-1].set_xlabel("client")
        colour_bar(figure, image, axes, "cosine to the download" + (" (grey: 0)" if zeros else ""))
        title_above(figure, title, width)
    return figure
