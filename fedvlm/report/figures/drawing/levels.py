"""The runs' references in a figure: what is reached without the methods, a line each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from fedvlm.core.stats import mean
from fedvlm.report.collect import SEEDS, as_float
from fedvlm.report.figures import style
from fedvlm.report.tables.facts import KINDS
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.verify.answer import baseline_name

# Kind (``KINDS``) -> dashes; ink, so that no method has their colour.
_DASHES: Mapping[str, Any] = {
    "alone": (0, (1.2, 1.4)), "together": (0, (5, 1.6)), "bound": (0, (6, 1.4, 1.2, 1.4)),
}


@dataclass(frozen=True)
class Level:
    """The best reference of a kind: its name and its mean over the seeds, in percent.

    ``x`` is None where it holds for the whole panel, else where on a curve it stands.
    """

    kind: str
    name: str
    value: float
    x: float | None = None


def levels_of(runs: Iterable[FinishedRun], metric: str) -> list[Level]:
    """Return the best reference of each kind, of the kinds that the runs have numbers of.

    A reference counts once a seed. Runs without references, older ones, have their zero-shot
    number.
    """
    values: dict[tuple[str, str], dict[tuple[Any, ...], float]] = {}
    for run in runs:
        seeds = tuple(run.protocol.get(key) for key in SEEDS)
        every: dict[str, Any] = dict(run.section("references"))
        if not every:
            every["zero_shot"] = {**run.section("zero_shot"), "kind": "alone"}
        for name, numbers in every.items():
            value = as_float(numbers.get(metric)) if isinstance(numbers, Mapping) else None
            if value is not None and numbers.get("kind") in KINDS:
                values.setdefault((str(numbers["kind"]), name), {}).setdefault(seeds, value)
    best: dict[str, Level] = {}
    for (kind, name), by_seed in values.items():
        centre = mean(by_seed.values()) or 0.0
        if kind not in best or centre > best[kind].value:
            best[kind] = Level(kind, baseline_name(name), centre)
    return [best[kind] for kind in KINDS if kind in best]


def mean_levels(panels: Sequence[Sequence[Level]]) -> list[Level]:
    """Return the means over panels of what all have: a kind, at one place of a curve."""
    by_place = [{(one.kind, one.x): one.value for one in levels} for levels in panels]
    return [Level(kind, "mean over the data sets", mean(one[kind, x] for one in by_place) or 0.0, x)
            for kind, x in sorted(set.intersection(*map(set, by_place)) if by_place else (),
                                  key=lambda place: (list(KINDS).index(place[0]), place[1] or 0))]


def draw_levels(axes: Axes, levels: Sequence[Level], *, upright: bool = False) -> None:
    """Draw a line across the axes per reference, from left to right or ``upright``.

    Those with an ``x`` are joined to a curve per kind.
    """
    curves: dict[str, list[tuple[float, float]]] = {}
    for level in levels:
        look: dict[str, Any] = {"color": style.INK, "linewidth": 0.8, "zorder": 1.5,
                                "linestyle": _DASHES[level.kind]}
        if level.x is not None:
            curves.setdefault(level.kind, []).append((level.x, level.value))
        elif upright:
            axes.axvline(level.value, **look)
        else:
            axes.axhline(level.value, **look)
    for kind, points in curves.items():
        axes.plot(*zip(*sorted(points), strict=True), color=style.INK, linewidth=0.8, zorder=1.5,
                  linestyle=_DASHES[kind])


def legend_of(panels: Iterable[Sequence[Level]]) -> list[tuple[Line2D, str]]:
    """Return what a legend says of the references of all panels."""
    kinds = {level.kind for levels in panels for level in levels}
    return [(Line2D([], [], color=style.INK, linewidth=0.8, linestyle=_DASHES[kind]), words)
            for kind, words in KINDS.items() if kind in kinds]


def level_rows(
    title: str, levels: Sequence[Level], metric: str, x_name: str = ""
) -> list[dict[str, Any]]:
    """Return the references of a panel as rows of a CSV."""
    return [
        {"panel": title, "method": f"{level.name} ({KINDS[level.kind]})", "metric": metric,
         "mean": level.value} | ({} if level.x is None or not x_name else {x_name: level.x})
        for level in levels
    ]
