"""Per-client accuracy over rounds, as a heat map of one run: the best at the end on top."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedvlm.report.collect import as_float
from fedvlm.report.figures import style
from fedvlm.report.figures.selection import FigureRuns

NAME, ORDER, OF = "clients", 20, "run"
CAPTION = ("Personal accuracy of each client after each evaluated round, sorted by the last one; "
           "blank: the client was not evaluated.")

_VALUES_UP_TO = 30  # clients, whose last accuracy is written beside their row


@dataclass(frozen=True)
class ClientGrid:
    """Accuracy in percent, ``grid[i][j]``: client ``clients[i]`` after round ``rounds[j]``.

    Rounds after which no client was evaluated are left out. None: the client
    was not evaluated then, or has no test image. Clients are sorted by their last known
    accuracy, best first.
    """

    clients: Sequence[int]
    rounds: Sequence[int]
    grid: Sequence[Sequence[float | None]]


def select(selection: FigureRuns) -> ClientGrid | str:
    """Return the map of the run's rounds."""
    data = from_rounds(selection.records)
    return data if data.clients else "no round records accuracies of clients"


def from_rounds(records: Sequence[Mapping[str, Any]]) -> ClientGrid:
    """Return the map of a run's rounds (``Run.rounds()``)."""
    by_round = {
        int(record["round"]): {int(c["client"]): c.get("accuracy") for c in record["clients"]}
        for record in records if record.get("clients")
    }
    rounds = sorted(by_round)
    rows = {
        client: [as_float(by_round.get(r, {}).get(client)) for r in rounds]
        for client in sorted({c for by_client in by_round.values() for c in by_client})
    }

    def last(client: int) -> float:
        return next((v for v in reversed(rows[client]) if v is not None), -math.inf)

    order = sorted(rows, key=lambda client: (-last(client), client))
    return ClientGrid(order, rounds, [rows[client] for client in order])


def rows(data: ClientGrid) -> list[dict[str, Any]]:
    """Return one row per client and round that was evaluated, in the order of the map."""
    return [
        {"client": client, "round": r, "accuracy": value}
        for client, values in zip(data.clients, data.grid, strict=True)
        for r, value in zip(data.rounds, values, strict=True) if value is not None
    ]


def draw(data: ClientGrid, title: str = "", width: float = style.PAGE) -> Figure:
    """Return the heat map; what was not evaluated is blank."""
    tall = min(max(0.13 * len(data.clients), 0.9), 0.45 * width + 1.2)
    grid = np.array(
        [[math.nan if v is None else v for v in row] for row in data.grid], dtype=float
    ).reshape(len(data.clients), len(data.rounds))
    values = grid[np.isfinite(grid)]
    low = 10 * math.floor(values.min() / 10) if values.size else 0
    high = max(10 * math.ceil(values.max() / 10), low + 10) if values.size else 100
    with style.use_style():
        figure = style.blank(width, tall + 0.65)
        axes = figure.add_subplot()
        edges = _edges(data.rounds)
        image = axes.pcolormesh(
            edges, np.arange(len(data.clients) + 1) - 0.5, np.ma.masked_invalid(grid),
            cmap=style.LEVELS, vmin=low, vmax=high, rasterized=grid.size > 2000,
        )
        axes.set_ylim(max(len(data.clients), 1) - 0.5, -0.5)
        axes.grid(False)
        axes.set_title(style.cut_label(title, int(width * 15)))
        axes.set_xlabel("round")
        shown = style.even_places(len(data.rounds), max(int(width * 3), 2))
        axes.set_xticks([data.rounds[at] for at in shown])
        _name_rows(axes, data, tall)
        bar = figure.colorbar(image, ax=axes, fraction=0.05, aspect=max(tall / 0.1, 5), pad=0.01)
        bar.outline.set_visible(False)  # type: ignore[operator]
        bar.set_label("personal accuracy (%)")
    return figure


def _edges(rounds: Sequence[int]) -> list[float]:
    """Return where the cells of rounds meet: half way, so that no round left out is a gap."""
    if not rounds:
        return [0.0]
    between = [(a + b) / 2 for a, b in itertools.pairwise(rounds)]
    first = (between[0] - rounds[0]) if between else 0.5
    last = (rounds[-1] - between[-1]) if between else 0.5
    return [rounds[0] - first, *between, rounds[-1] + last]


def _name_rows(axes: Axes, data: ClientGrid, tall: float) -> None:
    """Name the clients at the left, as many as are readable, and their last value at the right."""
    places = style.even_places(len(data.clients), max(int(tall * 72 / 8), 1))
    axes.set_yticks(places, [str(data.clients[i]) for i in places])
    axes.set_ylabel("client, sorted")
    if len(data.clients) > _VALUES_UP_TO or not data.rounds:
        return
    for i, row in enumerate(data.grid):
        last = next((v for v in reversed(row) if v is not None), None)
        axes.annotate(
            "\N{EN DASH}" if last is None else f"{last:.1f}", (_edges(data.rounds)[-1], i), (3, 0),
            textcoords="offset points", va="center", fontsize=style.SMALL, annotation_clip=False,
        )

