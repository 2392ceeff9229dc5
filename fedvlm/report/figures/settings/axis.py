"""Accuracy over any numeric setting that runs differ in: rank, beta, clients, a rate, a weight.

One panel for each setting and data set. A line joins runs of one method that differ in that setting
and in nothing else; shots have a figure of their own (``few_shot``).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from fedvlm.core.stats import is_number, mean, sample_std
from fedvlm.report.figures import style
from fedvlm.report.figures.drawing import lines
from fedvlm.report.figures.drawing.lines import LinePanel, MethodLine
from fedvlm.report.figures.selection import FigureRuns, RunGroup
from fedvlm.report.tables.papers import dataset_name

NAME, ORDER, OF = "axis", 6, "runs"
CAPTION = ("Accuracy over a setting that the runs differ in: mean and band of one standard "
           "deviation over seeds. A line joins runs that are alike in everything else.")

NOT_HERE = {"DATASET.NUM_SHOTS"}  # has a figure of its own
WORDS = {"DATASET.NUM_SHOTS": "shots", "FED.CLIENTS": "clients",
         "FED.BETA": "Dirichlet concentration", "PEFT.RANK": "rank",
         "FED.FRAC": "share of clients in a round", "FED.ROUNDS": "rounds",
         "FED.LOCAL_EPOCHS": "local epochs", "OPTIM.LR": "learning rate"}
WIDE = 16  # greatest value to least, from which an axis is logarithmic
TICKS = 7  # values that stand below an axis
rows = partial(lines.rows_of, x_name="value")


def select(selection: FigureRuns) -> list[LinePanel] | str:
    """Return one panel per setting and data set, in the order of the settings' names."""
    groups = selection.groups
    keys = sorted({k for g in groups for k, v in g.config.items() if is_number(v)} - NOT_HERE)
    panels = []
    for key in (k for k in keys if len({g.config.get(k) for g in groups}) > 1):
        over: dict[str, dict[str, list[RunGroup]]] = {}
        for group in groups:
            if is_number(group.config.get(key)):
                over.setdefault(str(group.place[0]), {}).setdefault(
                    _rest(group, key), []).append(group)
        for dataset, several in sorted(over.items()):
            found = [(line, some[0]) for some in several.values() if len(some) > 1
                     for line in [_line(some, key, selection.metric)] if len(line.x) > 1]
            if found:
                panels.append(LinePanel(f"{dataset_name(dataset)}: {_word(key)}",
                                        _apart(found, key), metric=selection.metric))
    return panels or "no two runs of a method differ in one numeric setting alone"


def draw(panels: Sequence[LinePanel], title: str = "", width: float = style.PAGE) -> Figure:
    """Return the figure; the setting stands in each panel's title, and below the axes."""
    names = list(dict.fromkeys(panel.title.rpartition(": ")[2] for panel in panels))
    x_label = names[0] if len(names) == 1 else f"value of the setting: {' or '.join(names)}"
    return lines.draw_panels(
        panels, width, 1.75 if len(panels) > 1 else 2.6, _fill,
        x_label=f"{x_label}{_seeds(panels)}", markers=True, direct=False)


def _seeds(panels: Sequence[LinePanel]) -> str:
    """Return what the bands are, over how many seeds; empty where no point has several."""
    counts = sorted({n for panel in panels for line in panel.lines for n in line.n})
    over = " or ".join(f"{n}" for n in counts)
    if counts[-1] < 2:
        return ""
    return (f"\nband: mean ± one standard deviation over n = {over} seeds"
            + ("; n = 1 has none" if counts[0] < 2 else ""))


def _fill(axes: Axes, panel: LinePanel, order: Mapping[str, int | None]) -> None:
    values = sorted({x for line in panel.lines for x in line.x})
    for line in panel.lines:
        lines.draw_band(axes, line, order[line.label], markers=True)
    if values[0] > 0 and values[-1] / values[0] >= WIDE:
        axes.set_xscale("log")
    shown = [values[i] for i in style.even_places(len(values), TICKS)]
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))


def _word(key: str, method: str = "") -> str:
    """Return a setting in words, or as a user types it; beside its method without its section."""
    return WORDS.get(key, key.removeprefix(f"TRAINER.{method.upper()}."))


def _rest(group: RunGroup, key: str) -> str:
    """Return what runs of one line have in common."""
    run = next(iter(group.runs.values()))
    about = {k: v for k, v in group.config.items() if k != key}
    return json.dumps([run.protocol.get("trainer"), run.protocol.get("peft"), about],
                      sort_keys=True, default=str)


def _line(groups: Sequence[RunGroup], key: str, metric: str) -> MethodLine:
    points = []
    for group in sorted(groups, key=lambda g: float(g.config[key])):
        values = [v for run in group.runs.values() if (v := run.value(metric)) is not None]
        if values:
            points.append((float(group.config[key]), values))
    return MethodLine(_name(groups), [x for x, _ in points], [mean(v) for _, v in points],
                      [sample_std(v) for _, v in points], [len(v) for _, v in points],
                      family=groups[0].family)


def _name(groups: Sequence[RunGroup]) -> str:
    """Return the method's name, with the words of a tag that all runs of a line have."""
    tags = [str(next(iter(g.runs.values())).protocol.get("tag", "")).split("-") for g in groups]
    common = [word for word in tags[0] if word and all(word in tag for tag in tags)]
    name = groups[0].method.partition(" (")[0]
    return f"{name} ({'-'.join(common)})" if common else name


def _apart(found: Sequence[tuple[MethodLine, RunGroup]], axis: str) -> list[MethodLine]:
    """Return the lines; labels that several have say what differs, and else have a number."""
    out: list[MethodLine] = []
    for line, group in found:
        twins = [other for one, other in found if one.label == line.label]
        apart = [key for key in sorted({key for other in twins for key in other.config} - {axis})
                 if len({str(other.config.get(key)) for other in twins}) > 1]
        trainer = str(next(iter(group.runs.values())).protocol.get("trainer"))
        words = ", ".join(
            f"{_word(key, trainer)} {group.config.get(key, 'default')}" for key in apart)
        out.append(replace(line, label=f"{line.label}, {words}") if words else line)
    seen: Counter[str] = Counter()
    for at, line in enumerate(out):  # the same words, for example of two kinds of what is trained
        seen[line.label] += 1
        if seen[line.label] > 1:
            out[at] = replace(line, label=f"{line.label} #{seen[line.label]}")
    return out
