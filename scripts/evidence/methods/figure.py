"""Figures of the methods on the map: a heat map of gains, and real runs beside fixed points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from evidence.map.deal import SKEWS, skew_words
from evidence.map.figure import GREY
from evidence.map.images import FIVE, SETS
from evidence.methods.runs import MapPlan, Row
from fedvlm.report.figures import style
from fedvlm.report.tables.papers import dataset_name

CELLS = ("map-heads", "map-prompts", "map-towers")  # plans of the twelve cells
SHARES = "AFL plus class shares"  # a baseline of each run, in a row of its own
LINE = 0.2  # inches for a method
LIMIT = 30.0  # points at which the colour is full


def gains(
    rows: Sequence[Row], metric: str = "personal", plans: Sequence[str] = CELLS
) -> dict[tuple[str, str, str], float]:
    """Return (set, case, method) -> mean over seeds of the metric above alone, in points."""
    several: dict[tuple[str, str, str], list[float]] = {}
    alone = "alone" if metric == "personal" else f"alone_{metric}"
    for row in rows:
        if row["plan"] in plans and row[metric] is not None and row[alone] is not None:
            place = (row["set"], row["case"], row["method"])
            several.setdefault(place, []).append(row[metric] - row[alone])
    return {place: fmean(values) for place, values in several.items()}


def draw_methods(plans: Sequence[MapPlan], rows: Sequence[Row], into: Path) -> None:
    """Write ``methods.png``: methods that have runs by cells, a panel for each set.

    Above them is AFL plus class shares, as the runs of heads have it beside them.
    """
    shares = [row | {"method": SHARES, "personal": row["prior"]} for row in rows
              if row["plan"] == CELLS[0] and row["prior"] is not None]
    found = gains([*rows, *shares])
    seeds = Counter((r["set"], r["case"], r["method"]) for r in rows if r["plan"] in CELLS)
    some = [plan for plan in plans if plan.name in CELLS]
    there = {method for _, _, method in found}
    methods = [label for plan in some for m in plan.methods if (label := m["label"]) in there]
    methods = list(dict.fromkeys([*([SHARES] if shares else []), *methods]))
    planned = [(name, case) for plan in some for name, case, _, _ in plan.planned()]
    sets = list(dict.fromkeys(name for name, _ in planned))
    cases = list(dict.fromkeys(case for _, case in planned))
    names = {short: name for name, short in SETS.items()}
    with style.use_style():
        figure = style.blank(11.0, LINE * len(methods) + 2.0)
        axes = figure.subplots(1, len(sets), squeeze=False, sharey=True)[0]
        for name, each in zip(sets, axes, strict=True):
            grid = np.array([[found.get((name, case, method), np.nan) for case in cases]
                             for method in methods])
            each.set_facecolor(GREY)
            each.grid(visible=False)
            drawn = each.imshow(np.ma.masked_invalid(grid), cmap=style.DIVERGING, vmin=-LIMIT,
                                vmax=LIMIT, aspect="auto", interpolation="nearest")
            for (y, x), value in np.ndenumerate(grid):
                if not np.isnan(value):
                    text = f"{value:+.0f}".replace("-", "\N{MINUS SIGN}") if round(value) else "0"
                    each.text(x, y, text, ha="center", va="center", color=style.ON_DARK
                              if abs(value) > 0.6 * LIMIT else style.ON_LIGHT)
            few = [(x, y) for y, method in enumerate(methods) for x, case in enumerate(cases)
                   if seeds[name, case, method] == 1]
            if few:
                each.plot([x + 0.36 for x, _ in few], [y + 0.34 for _, y in few], ".",
                          color=style.FAINT, markeredgecolor="white", markeredgewidth=0.4)
            each.set_title(dataset_name(names.get(name, name)))
            each.set_xticks(range(len(cases)), [cell_words(case)[1] for case in cases])
            each.set_xlabel("clients x images of each; dot: one seed")
            _write_skews(each, [cell_words(case)[0] for case in cases])
            each.set_yticks(range(len(methods)), methods)
        bar = figure.colorbar(drawn, ax=axes.tolist(), shrink=0.6, aspect=30, pad=0.01,
                              extend="both")
        bar.set_label("personal accuracy above alone, points")
        bar.outline.set_visible(False)  # type: ignore[operator]
        style.write_figure(into, "methods", figure, None)


def cell_words(case: str) -> tuple[str, str]:
    """Return a cell's label skew in words, and its clients and images a client."""
    skew, _, size = case.partition(" ")
    clients, _, images = size.partition("x")
    named = next(one for one in SKEWS if one.split()[0] == skew)
    return skew_words(named), f"{clients} x\n{images}"


def _write_skews(axes: Axes, skews: Sequence[str]) -> None:
    """Write each label skew once above its columns, and part it from the next by a line."""
    at = {skew: [x for x, one in enumerate(skews) if one == skew] for skew in skews}
    above = axes.secondary_xaxis("top")
    above.set_xticks([fmean(columns) for columns in at.values()], list(at))
    above.tick_params(length=0)
    above.spines["top"].set_visible(False)
    for columns in list(at.values())[1:]:
        axes.axvline(columns[0] - 0.5, color="white", linewidth=2.5)


def draw_fixed(real: Sequence[Mapping[str, Any]], into: Path) -> None:
    """Write ``fixed.png``: gain of a real run over that of its fixed point, a mark for a cell."""
    kept = [row for row in real if row["fixed"] is not None and row["alone"] is not None]
    if not kept:
        return
    with style.use_style():
        figure = style.blank(6.8, 3.6)
        axes = figure.subplots(1, 2, sharex=True, sharey=True)
        for i, (method, each) in enumerate(zip(("FedAvg", "Ditto"), axes, strict=True)):
            some = [row for row in kept if row["method"] == method]
            each.axline((0, 0), slope=1, color=style.FAINT, linewidth=0.7)
            for shift, mark, word in ((False, "o", "same scanner"), (True, "^", FIVE)):
                points = [(row["fixed"] - row["alone"], row["personal"] - row["alone"])
                          for row in some if row["shift"] is shift]
                if points:
                    each.scatter(*zip(*points, strict=True), s=11, marker=mark,
                                 color=style.PALETTE[i + 2 * shift], alpha=0.75,
                                 linewidths=0, label=word)
            each.set_title(f"{method}, {len(some)} cells")
            each.set_aspect("equal")
            each.set_xlabel("gain at the end of training, points")
            each.legend(loc="upper left", frameon=False)
        axes[0].set_ylabel("gain of a run of 20 rounds, points")
        style.write_figure(into, "fixed", figure, None)
