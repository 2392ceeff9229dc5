"""Every method's accuracy with its interval over seeds, a row each, a panel per data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedvlm.core.stats import mean, t_interval
from fedvlm.report.figures import style
from fedvlm.report.figures.drawing.levels import (
    Level,
    draw_levels,
    legend_of,
    level_rows,
    mean_levels,
)
from fedvlm.report.figures.drawing.lines import WORDS, legend_above
from fedvlm.report.figures.drawing.strips import by_mean, family_legend, strips
from fedvlm.report.figures.selection import FigureRuns, titles
from fedvlm.report.statistics.contrast import leaders
from fedvlm.report.statistics.images import Answers, answers_of
from fedvlm.runs.bits import PLACES

NAME, ORDER, OF = "forest", 1, "runs"
CAPTION = ("Accuracy of each method (which: on the axis), its 95 % t-interval over seeds, the best "
           "mean on top. Filled: the best and methods not significantly different from it on these "
           "sets; hollow: significantly worse (paired, corrected for choosing the best of all). "
           "The seed draws the partition, so compare rows by the filling, not by overlap.")

PERSONAL = "personal"
Seeds = Mapping[Any, float]


@dataclass(frozen=True)
class MethodInterval:
    """A method's mean in percent, half its 95 % interval, its seeds; whether it is with the best.

    ``half`` is None of one seed.
    """

    mean: float
    half: float | None
    n: int
    peer: bool
    family: str = ""


@dataclass(frozen=True)
class Forest:
    """A panel: its methods' intervals by label, and the references."""

    title: str
    methods: Mapping[str, MethodInterval]
    levels: Sequence[Level] = ()
    metric: str = "personal"


def select(selection: FigureRuns) -> list[Forest] | str | None:
    """Return one panel per place and, of several, first that of their average.

    The average has the methods that all places have; its interval is over seeds, of their mean over
    the places, as in tables. Of one run there is nothing to compare: None.
    """
    if len(selection.runs) < 2:
        return None
    metric = selection.metric
    places: dict[tuple[Any, ...], dict[str, Seeds]] = {}
    answers: dict[tuple[Any, ...], dict[str, Mapping[Any, Answers]]] = {}
    families: dict[str, str] = {}
    for group in selection.groups:
        values = {seeds: value for seeds, run in group.runs.items()
                  if (value := run.value(metric)) is not None}
        if values:
            places.setdefault(group.place, {})[group.label] = values
            answers.setdefault(group.place, {})[group.label] = {
                seeds: answers_of(run.last, run.section(PLACES))
                for seeds, run in group.runs.items() if seeds in values
            } if metric == PERSONAL else {}
            families[group.label] = group.family
    if not places:
        return f"no run has {metric}"
    levels = [selection.levels(place) for place in places]
    panels = [
        Forest(title, _intervals({k: [v] for k, v in methods.items()},
                                 {k: [v] for k, v in told.items()}, families), levels[at], metric)
        for at, (title, methods, told) in enumerate(
            zip(titles(list(places)), places.values(), answers.values(), strict=True))
    ]
    first, *others = places.values()
    shared = {label: [methods[label] for methods in places.values()] for label in first
              if all(label in methods for methods in others)}
    if others and shared:
        both = {label: [told[label] for told in answers.values()] for label in shared}
        average = Forest(f"average of {len(places)}", _intervals(shared, both, families),
                         mean_levels(levels), metric)
        panels.insert(0, average)
    return panels


def rows(panels: Sequence[Forest]) -> list[dict[str, Any]]:
    """Return one row per panel and method, then the references."""
    lines: list[dict[str, Any]] = []
    for panel in panels:
        for label in by_mean([{k: v.mean for k, v in panel.methods.items()}]):
            one = panel.methods[label]
            low, high = (None, None) if one.half is None else \
                (one.mean - one.half, one.mean + one.half)
            lines.append({"panel": panel.title, "method": label, "metric": panel.metric,
                          "mean": one.mean, "low": low, "high": high, "seeds": one.n,
                          "worse_than_best": "no" if one.peer else "yes"})
        lines += level_rows(panel.title, panel.levels, panel.metric)
    return lines


def draw(panels: Sequence[Forest], title: str = "", width: float = style.PAGE) -> Figure:
    """Return the figure: a row per method, in the same order in every panel."""
    order = by_mean([{k: v.mean for k, v in panel.methods.items()} for panel in panels])
    every = [one for panel in panels for one in panel.methods.values()]
    words = WORDS.get(panels[0].metric, f"{panels[0].metric} (%)")
    with style.use_style():
        figure, axes = strips(order, [panel.title for panel in panels], width, words)
        for panel, each in zip(panels, axes, strict=True):
            draw_levels(each, panel.levels, upright=True)
            for at, label in enumerate(order):
                if label in panel.methods:
                    _draw(each, at, label, panel.methods[label])
            _limits(each, panel)
        apart = Line2D([], [], linestyle="none", marker="o", markersize=3.6, color=style.FAINT,
                       markerfacecolor="white")
        legend = family_legend([one.family for one in every])
        if any(not one.peer for one in every):
            legend.append((apart, "significantly worse than the best"))
        legend_above(figure, {}, extra=[*legend, *legend_of(panel.levels for panel in panels)])
    return figure


def _draw(axes: Axes, at: int, label: str, one: MethodInterval) -> None:
    colour, marker = style.FAMILIES.get(one.family, style.FAMILIES[""])
    axes.errorbar(
        [one.mean], [at], xerr=[one.half or 0.0], fmt=marker, color=colour, markersize=3.6,
        markerfacecolor=colour if one.peer else "white", markeredgewidth=0.8, elinewidth=1.0,
        zorder=3, clip_on=True, gid=style.gid(label),
    )


def _limits(axes: Axes, panel: Forest) -> None:
    """Set the x axis to the means and references, and as much of the intervals as 0 to 100 holds.

    Of two seeds an interval may be ten times the range of all means: it runs out of the axes.
    """
    centres = [one.mean for one in panel.methods.values()] + [o.value for o in panel.levels]
    low, high = min(centres), max(centres)
    reach = max(high - low, 4.0)
    ends = [end for one in panel.methods.values() if one.half is not None
            for end in (one.mean - one.half, one.mean + one.half)]
    low, high = max([low - reach, min([low, *ends])]), min([high + reach, max([high, *ends])])
    margin = 0.06 * max(high - low, 1.0)
    axes.set_xlim(max(low - margin, 0.0 if min(centres) >= 0 else low - margin),
                  min(high + margin, max(100.0, max(centres))))


def _intervals(
    methods: Mapping[str, Sequence[Seeds]],
    answers: Mapping[str, Sequence[Mapping[Any, Answers]]], families: Mapping[str, str],
) -> dict[str, MethodInterval]:
    """Return the methods' intervals; each has its seeds' values in one or several places."""
    labels = list(methods)
    told = [answers[label] for label in labels]
    whole = all(one for sets in told for one in sets)
    verdict = leaders([methods[label] for label in labels], answers=told if whole else None)
    beaten = verdict.beaten if verdict else []
    intervals = {}
    for at, label in enumerate(labels):
        sets = methods[label]
        common = set(sets[0]).intersection(*sets[1:])
        seeds = [mean(one[seed] for one in sets) for seed in sorted(common, key=str)]
        centre = mean(mean(one.values()) for one in sets) or 0.0
        intervals[label] = MethodInterval(centre, t_interval(seeds), len(seeds), at not in beaten,
                                    families.get(label, ""))
    return intervals
