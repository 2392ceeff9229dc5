"""Few-shot curves as in CoOp (Zhou et al. 2022, Fig. 3): accuracy over shots, zero-shot as a star.

One panel per dataset and, of two and more, one for their average. Each doubling of the shots has
the same width; zero shots, which no logarithm reaches, stand one doubling before the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from fedvlm.config.sections import SKEWED
from fedvlm.core.stats import mean, sample_std
from fedvlm.report.figures import style
from fedvlm.report.figures.drawing import lines
from fedvlm.report.figures.drawing.levels import Level, levels_of, mean_levels
from fedvlm.report.figures.drawing.lines import LinePanel, MethodLine
from fedvlm.report.figures.selection import PLACE, FigureRuns, RunGroup, titles
from fedvlm.runs.finished import FinishedRun

NAME, ORDER, OF = "few_shot", 5, "runs"
CAPTION = ("Personal accuracy over shots per class (logarithmic axis): mean and band of one "
           "standard deviation over seeds. The star is zero-shot accuracy; dotted lines join it "
           "to the methods' first points.")

_SHOTS, _PARTITION = PLACE.index("shots"), PLACE.index("partition")
IMAGES = "labelled images per class"
# What shots count, by the first word of a partition; shots of others are not told apart.
COUNTED = {
    **dict.fromkeys(("iid", "n_classes", "domain", "natural", "disjoint"),
                    f"{IMAGES} at each client"),
    **dict.fromkeys(SKEWED, f"{IMAGES}, all clients together"),
    "domain_dirichlet": f"{IMAGES} and domain, all clients together",
}
_STAR: dict[str, Any] = {"marker": "*", "color": style.INK, "markersize": 8, "linestyle": "none",
                         "markeredgewidth": 0, "clip_on": False, "zorder": 4}
rows = partial(lines.rows_of, x_name="shots")


def select(selection: FigureRuns) -> list[LinePanel] | str:
    """Return one panel per place (its shots apart), then their average: the metric over shots.

    Places with one number of shots are left out. The average has a method's shots and seeds that
    all places have; its spread is that over seeds of the mean over places.
    """
    every: dict[tuple[Any, ...], dict[str, dict[int, RunGroup]]] = {}
    dealt: dict[tuple[Any, ...], str] = {}
    for group in selection.groups:
        shots = group.place[_SHOTS]
        if isinstance(shots, int) and shots > 0:
            rest = group.place[:_SHOTS] + group.place[_SHOTS + 1 :]
            dealt[rest] = _counted(str(group.place[_PARTITION]))
            every.setdefault(rest, {}).setdefault(group.label, {})[shots] = group
    places = {place: methods for place, methods in every.items()
              if len(set().union(*methods.values())) > 1}
    metric = selection.metric
    panels: list[LinePanel] = []
    stars: list[float | None] = []
    names = titles(list(places), [key for key in PLACE if key != "shots"])
    for title, (place, methods) in zip(names, places.items(), strict=True):
        stars.append(_zero_shot(methods.values(), metric))
        over = [_over_shots(label, [by_shots], metric) for label, by_shots in methods.items()]
        panels.append(LinePanel(title, _drawable(over), stars[-1], metric,
                            _levels(methods.values(), metric), dealt[place]))
    if len(places) > 1:
        first, *others = places.values()
        shared = [label for label in first if all(label in methods for methods in others)]
        over = [_over_shots(label, [methods[label] for methods in places.values()], metric)
                for label in shared]
        star = None if None in stars else mean(stars)
        panels.append(LinePanel(f"average of {len(places)}", _drawable(over), star, metric,
                            mean_levels([panel.levels for panel in panels]),
                            _common(panel.counts for panel in panels)))
    return [panel for panel in panels if panel.lines] or "the runs of no dataset differ in shots"


def draw(panels: Sequence[LinePanel], title: str = "", width: float = style.PAGE) -> Figure:
    """Return the figure; ``x`` of each line is the number of shots per class."""
    has_star = any(panel.zero_shot is not None for panel in panels)
    extra = [(Line2D([], [], **_STAR), "zero-shot")] if has_star else []
    return lines.draw_panels(
        panels, width, 1.75 if len(panels) > 1 else 2.6, _fill,
        x_label=_common(panel.counts for panel in panels), extra=extra, markers=True,
        direct=False,
    )


def _counted(partition: str) -> str:
    """Return what shots count under a partition (see ``data.partition.kinds``).

    Of a class that all clients hold (``disjoint`` with ``-repeat``) each has a share.
    """
    kind = partition.partition("-")[0]
    return IMAGES if "-repeat" in partition else COUNTED.get(kind, IMAGES)


def _common(counts: Iterable[str]) -> str:
    """Return what shots count, where all panels agree."""
    several = set(counts)
    return (several.pop() if len(several) == 1 else "") or IMAGES


def _fill(axes: Axes, panel: LinePanel, order: Mapping[str, int | None]) -> None:
    shots = sorted({x for line in panel.lines for x in line.x if x > 0}) or [1.0]
    nothing = shots[0] / 2  # where zero shots stand on the logarithmic axis
    for line in panel.lines:
        line = replace(line, x=[max(x, nothing) for x in line.x])
        lines.draw_band(axes, line, order[line.label], markers=True)
        if panel.zero_shot is not None and line.x and line.mean[0] is not None \
                and order[line.label] is not None:
            axes.plot([nothing, line.x[0]], [panel.zero_shot, line.mean[0]], linewidth=0.6,
                      linestyle=(0, (1, 2)), color=style.line_style(order[line.label])["color"],
                      zorder=2)
    star = panel.zero_shot is not None or any(x <= 0 for line in panel.lines for x in line.x)
    if panel.zero_shot is not None:
        axes.plot([nothing], [panel.zero_shot], **_STAR)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator([nothing, *shots] if star else shots))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: "0" if x < shots[0] else f"{x:g}"))
    axes.set_xlim(nothing if star else shots[0] / 1.1, shots[-1] * (1 if len(shots) > 1 else 1.1))


def _levels(methods: Iterable[Mapping[int, RunGroup]], metric: str) -> list[Level]:
    """Return the references over shots; a reference that knows no training image is the star."""
    by_shots: dict[int, list[FinishedRun]] = {}
    for groups in methods:
        for shots, group in groups.items():
            by_shots.setdefault(shots, []).extend(group.runs.values())
    return [replace(level, x=float(shots)) for shots, runs in sorted(by_shots.items())
            if any(run.section("references") for run in runs)
            for level in levels_of(runs, metric)]


def _over_shots(label: str, by_place: Sequence[Mapping[int, RunGroup]], metric: str) -> MethodLine:
    """Return a method's line over the shots that all places have."""
    x: list[float] = []
    centre: list[float | None] = []
    std: list[float | None] = []
    n: list[int] = []
    for shots in sorted(set(by_place[0]).intersection(*by_place[1:])):
        here = [by_shots[shots] for by_shots in by_place]
        seeds = [s for s in here[0].runs if all(s in group.runs for group in here)]
        values = [[group.runs[s].value(metric) for group in here] for s in seeds]
        means = [mean(row) for row in values if None not in row]
        if means:
            x.append(float(shots))
            centre.append(mean(means))
            std.append(sample_std(means))
            n.append(len(means))
    family = next(iter(by_place[0].values())).family
    return MethodLine(label, x, centre, std, n, family=family)


def _zero_shot(methods: Iterable[Mapping[int, RunGroup]], metric: str) -> float | None:
    """Return the zero-shot number of a place: the mean over its data seeds (test splits differ)."""
    by_seed: dict[Any, list[float | None]] = {}
    for by_shots in methods:
        for group in by_shots.values():
            for (_, data_seed), run in group.runs.items():
                by_seed.setdefault(data_seed, []).append(run.value(f"zero_shot.{metric}"))
    return mean(mean(values) for values in by_seed.values())


def _drawable(over: Sequence[MethodLine]) -> list[MethodLine]:
    return [line for line in over if line.x]
