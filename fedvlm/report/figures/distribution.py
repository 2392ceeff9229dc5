"""How accuracy is spread over clients: quartiles and tails of every method."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedvlm.report.figures import style
from fedvlm.report.figures.drawing.lines import WORDS, legend_above
from fedvlm.report.figures.drawing.strips import by_mean, family_legend, strips
from fedvlm.report.figures.selection import FigureRuns, titles
from fedvlm.report.tables.metrics import OWN_REFERENCE, accuracies

NAME, ORDER, OF = "distribution", 3, "runs"
CAPTION = ("Personal accuracy over clients, all seeds pooled: bar, first to third quartile with "
           "the median; line, 10th to 90th percentile; dot, worst client. Best mean on top.")
REFERENCE = "own logistic regression"


@dataclass(frozen=True)
class Distribution:
    """A panel: accuracies of all clients in percent by method, the clients' own reference last."""

    title: str
    clients: Mapping[str, Sequence[float]]
    families: Mapping[str, str]


def select(selection: FigureRuns) -> list[Distribution] | str | None:
    """Return one panel per place; None of one run, or another metric than ``personal``."""
    if selection.metric != "personal" or len(selection.runs) < 2:
        return None
    places: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    own: dict[tuple[Any, ...], dict[Any, list[float]]] = {}
    families: dict[str, str] = {}
    for group in selection.groups:
        for seeds, run in group.runs.items():
            values = accuracies(run.last)
            if not values:
                continue
            families[group.label] = group.family
            places.setdefault(group.place, {}).setdefault(group.label, []).extend(values.values())
            reference = accuracies(run.section("references").get(OWN_REFERENCE))
            if reference:
                own.setdefault(group.place, {}).setdefault(seeds, list(reference.values()))
    for place, by_seed in own.items():
        places[place][REFERENCE] = [value for one in by_seed.values() for value in one]
    return [
        Distribution(title, methods, families) for title, methods in
        zip(titles(list(places)), places.values(), strict=True)
    ] or "no run lists its clients"


def rows(panels: Sequence[Distribution]) -> list[dict[str, Any]]:
    """Return one row per panel and method: the numbers drawn, in percent."""
    return [
        {"panel": panel.title, "method": label, "clients": len(panel.clients[label]),
         "worst": min(panel.clients[label])} |
        dict(zip(("p10", "q1", "median", "q3", "p90"), _quantiles(panel.clients[label]),
                 strict=True))
        for panel in panels for label in _order([panel])
    ]


def draw(panels: Sequence[Distribution], title: str = "", width: float = style.PAGE) -> Figure:
    """Return the figure: a row per method, in the same order in every panel."""
    order = _order(panels)
    with style.use_style():
        figure, axes = strips(order, [panel.title for panel in panels], width, WORDS["personal"])
        for panel, each in zip(panels, axes, strict=True):
            for at, label in enumerate(order):
                if label in panel.clients:
                    family = panel.families.get(label, "")
                    colour = style.FAINT if label == REFERENCE else \
                        style.FAMILIES.get(family, style.FAMILIES[""])[0]
                    _draw(each, at, label, panel.clients[label], colour)
            low = min(min(values) for values in panel.clients.values())
            high = max(max(_quantiles(values)) for values in panel.clients.values())
            each.set_xlim(low - 2.5, max(high, low + 5) + 2.5)
        there = [panel.families.get(label, "") for panel in panels for label in panel.clients]
        families = [(Patch(color=style.FAMILIES[name][0], alpha=0.45), name)
                    for _, name in family_legend(there)]
        worst = Line2D([], [], linestyle="none", marker="o", markersize=2, color=style.FAINT)
        legend_above(figure, {}, extra=[*families, (worst, "worst client")])
    return figure


def _draw(axes: Axes, at: int, label: str, values: Sequence[float], colour: str) -> None:
    low, first, median, third, high = _quantiles(values)
    look: dict[str, Any] = {"color": colour, "gid": style.gid(label)}
    axes.plot([low, high], [at, at], linewidth=0.8, solid_capstyle="butt", zorder=2, **look)
    axes.barh([at], [third - first], left=[first], height=0.62, color=colour, alpha=0.45,
              linewidth=0, zorder=2.5, gid=style.gid(label))
    axes.plot([median, median], [at - 0.36, at + 0.36], linewidth=1.4, solid_capstyle="butt",
              zorder=3, **look)
    axes.plot([min(values)], [at], marker="o", markersize=1.8, markeredgewidth=0, zorder=3, **look)


def _quantiles(values: Sequence[float]) -> list[float]:
    """Return the 10th, 25th, 50th, 75th and 90th percentile, linear between neighbours."""
    if len(values) < 2:
        return [*values] * 5
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    return [cuts[at] for at in (1, 4, 9, 14, 17)]


def _order(panels: Sequence[Distribution]) -> list[str]:
    """Return the methods, the best mean first, the clients' own reference last."""
    order = by_mean([{k: sum(v) / len(v) for k, v in panel.clients.items()} for panel in panels])
    return sorted(order, key=lambda label: label == REFERENCE)
