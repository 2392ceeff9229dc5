"""The partition: clients x classes, a dot's area by its number of training images."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedvlm.core.errors import DataError
from fedvlm.report.figures import style
from fedvlm.runs.names import read_partition

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedvlm.report.figures.selection import FigureRuns

NAME, ORDER, OF = "partition", 30, "run"
CAPTION = "Training images of each client by class; the area of a dot is their number."

_NAMED = 60  # classes named on the axis; of more, some of their numbers
_NAME_LENGTH = 22
VECTOR = 2000  # dots drawn as shapes; of more, the SVG holds a picture


@dataclass(frozen=True)
class Holdings:
    """Training images of ``clients[i]`` (of ``domains[i]``) in ``classes[j]``: ``counts[i, j]``.

    Pairs without images are left out of ``counts``. Clients of one domain stand together. ``rows``
    are those of ``partition.csv``, test images too.
    """

    clients: Sequence[int]
    domains: Sequence[str]
    classes: Sequence[str]
    counts: Mapping[tuple[int, int], int]
    rows: Sequence[Mapping[str, Any]] = ()


def select(selection: FigureRuns) -> Holdings:
    """Return what the run's clients hold.

    Raises:
        DataError: ``partition.csv`` cannot be read.
    """
    return folder_holdings(selection.run.path)


def folder_holdings(folder: Path) -> Holdings:
    """Return what the clients of a run folder hold, finished or not.

    Raises:
        DataError: ``partition.csv`` cannot be read.
    """
    return from_rows(read_partition(folder), _class_order(folder / "partition.json"))


def rows(data: Holdings) -> Sequence[Mapping[str, Any]]:
    """Return the rows of ``partition.csv``: clients x parts x classes."""
    return data.rows


def from_rows(rows: Sequence[Mapping[str, Any]], classes: Sequence[str] = ()) -> Holdings:
    """Return the training part; clients by domain and id.

    Args:
        classes: all names in the set's order; any others follow in the order of their first row.

    Raises:
        DataError: a client or a count is not a number.
    """
    named = (str(r["class"]) for r in rows if r["class"] or r["part"] == "train")
    every = list(dict.fromkeys([*classes, *named]))
    column = {name: j for j, name in enumerate(every)}
    domains: dict[int, set[str]] = {}
    counts: Counter[tuple[int, int]] = Counter()
    for row in rows:
        try:
            client, images = int(row["client"]), int(row["images"])
        except (TypeError, ValueError):
            raise DataError(f"partition row {dict(row)}: client and images are numbers") from None
        of_client = domains.setdefault(client, set())
        if row["part"] == "train" and images > 0:
            of_client.add(str(row["domain"] or ""))
            counts[client, column[str(row["class"])]] += images
    domain = {
        c: names.pop() if len(names) == 1 else "several" if names else ""
        for c, names in domains.items()
    }
    if set(domain.values()) <= {"several", ""}:  # every client has images of many: no grouping
        domain = dict.fromkeys(domain, "")
    order = sorted(domain, key=lambda client: (domain[client], client))
    at = {client: i for i, client in enumerate(order)}
    dots = {(at[c], j): n for (c, j), n in counts.items()}
    return Holdings(order, [domain[c] for c in order], every, dots, rows)


@dataclass(frozen=True)
class DotLayout:
    """What this drawing and ``plain``'s share; lengths in inches, ``dot`` in points.

    ``columns`` and ``rows`` are the places that have a label, with it; ``below`` is the room of the
    columns' labels and ``beside`` that of all that stands left and right of ``wide``.
    """

    wide: float
    tall: float
    beside: float
    below: float
    dot: float
    most: int
    named: bool
    columns: Sequence[tuple[int, str]]
    rows: Sequence[tuple[int, str]]
    under: str
    grid: bool

    def size(self, images: float) -> float:
        """Return the diameter in points of the dot of a number of images: area by number."""
        return max(self.dot * math.sqrt(images / self.most), 0.7)

    def shown(self) -> list[tuple[int, str]]:
        """Return up to three numbers that the legend shows, with their labels."""
        counts = sorted({_round(self.most / 10), _round(self.most / 3), self.most} - {0})
        return [(n, f"{n:,}") for n in counts[:-1]] + [
            (self.most, f"{self.most:,} training images")]


def dot_layout(data: Holdings, width: float = style.PAGE) -> DotLayout:
    """Return where things stand in a picture of at most ``width`` inches."""
    k, c = max(len(data.clients), 1), max(len(data.classes), 1)
    names = _class_names(data, width)
    below = 0.062 * max(map(len, names), default=0) + 0.1 if names else 0.25
    beside = 0.55 + (0.75 if any(data.domains) else 0.0)
    wide = min(width - beside, max(0.3 * c, 1.9))
    cell = min(wide / c, 0.24 if k <= 20 else 0.16)
    tall = min(max(cell * k, 0.12 * min(k, 25), 0.4), 0.75 * width + 1.0)
    pitch = 72 * min(wide / c, tall / k, 0.24)  # points from a dot to the next
    columns = list(enumerate(names)) if names else [
        (i, str(i)) for i in style.even_places(len(data.classes), max(int(wide * 3), 2))]
    rows = style.even_places(len(data.clients), max(int(tall * 72 / 8.5), 1))
    return DotLayout(
        wide, tall, beside, below, dot=max(0.92 * pitch, min(1.3 * pitch, 3.0), 1.2),
        most=max(data.counts.values(), default=1), named=bool(names), columns=columns,
        rows=[(i, str(data.clients[i])) for i in rows],
        under="" if names else f"class ({len(data.classes)} in all)",
        grid=len(data.clients) <= 60 and len(data.classes) <= _NAMED,
    )


def draw(data: Holdings, title: str = "", width: float = style.PAGE) -> Figure:
    """Return the picture: a row per client, a column per class; at most ``width`` inches wide."""
    k, c = max(len(data.clients), 1), max(len(data.classes), 1)
    plan = dot_layout(data, width)
    with style.use_style():
        figure = style.blank(plan.wide + plan.beside, plan.tall + plan.below + 0.6)
        axes = figure.add_subplot()
        _dots(axes, data, plan.size)
        axes.set_xlim(-0.6, c - 0.4)
        axes.set_ylim(k - 0.4, -0.6)
        axes.tick_params(length=0)
        axes.spines[["left", "bottom"]].set_visible(False)
        _name_axes(axes, plan)
        _mark_domains(axes, data)
        _legend_of_sizes(figure, plan)
        axes.set_title(style.cut_label(title, int((plan.wide + plan.beside) * 15)))
    return figure


def _dots(axes: Axes, data: Holdings, size: Callable[[float], float]) -> None:
    """Draw all dots of one size together: SVG then holds their shape once."""
    by_count: dict[int, list[tuple[int, int]]] = {}
    for (i, j), n in sorted(data.counts.items()):
        by_count.setdefault(n, []).append((j, i))
    for n, at in sorted(by_count.items()):
        dots = axes.plot(
            *zip(*at, strict=True), linestyle="none", marker="o", color=style.PALETTE[0],
            markeredgewidth=0, markersize=size(n), clip_on=False,
            rasterized=len(data.counts) > VECTOR,
        )
        dots[0].set_in_layout(False)


def _class_order(path: Path) -> list[str]:
    """Return the class names of a run's ``partition.json`` by label; nothing where it has none."""
    try:
        names = json.loads(path.read_text(encoding="utf-8")).get("classnames", [])
    except (OSError, ValueError, AttributeError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def _class_names(data: Holdings, width: float) -> list[str]:
    """Return the classes' names where they are few enough to be read, else nothing."""
    if len(data.classes) > min(_NAMED, width * 9):
        return []
    return [style.cut_label(name, _NAME_LENGTH) for name in data.classes]


def _name_axes(axes: Axes, plan: DotLayout) -> None:
    places, words = [i for i, _ in plan.columns], [word for _, word in plan.columns]
    axes.set_xticks(places, words, rotation=90 if plan.named else 0)
    if plan.under:
        axes.set_xlabel(plan.under)
    axes.set_yticks([i for i, _ in plan.rows], [word for _, word in plan.rows])
    axes.set_ylabel("client")
    if not plan.grid:
        axes.grid(False)


def spans(data: Holdings) -> list[tuple[str, int, int]]:
    """Return the label of each domain with its first and its last row; nothing without domains."""
    if not any(data.domains):
        return []
    starts = [i for i, d in enumerate(data.domains) if i == 0 or d != data.domains[i - 1]]
    return [(style.cut_label(data.domains[start] or "none", 14), start, end - 1)
            for start, end in zip(starts, [*starts[1:], len(data.domains)], strict=True)]


def _mark_domains(axes: Axes, data: Holdings) -> None:
    """Write each domain's name at the right of its clients, a line between domains."""
    for name, first, last in spans(data):
        axes.annotate(
            name, (1, (first + last) / 2),
            (4, 0), xycoords=("axes fraction", "data"), textcoords="offset points", va="center",
            fontsize=style.SMALL, annotation_clip=False,
        )
        if first:
            axes.axhline(first - 0.5, color=style.FAINT, linewidth=0.6)


def _legend_of_sizes(figure: Figure, plan: DotLayout) -> None:
    """Show up to three round counts with the dots they have."""
    from matplotlib.lines import Line2D  # start-up: as in ``style``

    most = plan.size(plan.most)
    handles = [
        Line2D([], [], linestyle="none", marker="o", color=style.PALETTE[0], markeredgewidth=0,
               markersize=plan.size(n))
        for n, _ in plan.shown()
    ]
    figure.legend(
        handles, [label for _, label in plan.shown()], loc="outside upper right",
        ncols=len(handles), frameon=False,
        handlelength=max(most / 6.5, 0.7), handleheight=max(most / 6.5, 0.7),
        handletextpad=0.4, columnspacing=1.0, borderaxespad=0.2,
    )


def _round(value: float) -> int:
    """Return ``value`` with one significant digit: 137 -> 100, 0.4 -> 0."""
    if value < 1:
        return 0
    unit = 10 ** math.floor(math.log10(value))
    return int(math.floor(value / unit) * unit)
