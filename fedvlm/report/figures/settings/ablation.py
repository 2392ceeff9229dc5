"""What a part of a method is worth: bars of the difference to the method itself, paired by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedvlm.core.stats import mean, t_interval
from fedvlm.report.figures import style
from fedvlm.report.figures.drawing.titles import write_titles
from fedvlm.report.figures.selection import FigureRuns, RunGroup, titles

NAME, ORDER, OF = "ablation", 7, "runs"
CAPTION = ("Variants of a method (runs with a tag) against the method itself: mean difference, "
           "paired by seed, with its 95 % t-interval. Left of zero: the variant is worse. Hollow: "
           "the interval holds zero.")
BAR, MOST = 0.17, 34  # inches for a bar; characters of a name


@dataclass(frozen=True)
class Bar:
    """A variant's difference to its method in points; ``half`` is None of one seed."""

    method: str
    variant: str
    mean: float
    half: float | None
    seeds: int

    @property
    def sure(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.half is not None and abs(self.mean) > self.half


def select(selection: FigureRuns) -> Mapping[str, list[Bar]] | str:
    """Return title of a place -> its bars, by method, the worst variant first."""
    found: dict[tuple[Any, ...], dict[tuple[str, str], dict[str, list[RunGroup]]]] = {}
    for group in selection.groups:
        run = next(iter(group.runs.values()))
        key = (str(run.protocol.get("trainer")), str(run.protocol.get("peft", "")))
        tag = str(run.protocol.get("tag", ""))
        found.setdefault(group.place, {}).setdefault(key, {}).setdefault(tag, []).append(group)
    bars: dict[tuple[Any, ...], list[Bar]] = {}
    for place, methods in found.items():
        for tags in methods.values():
            if len(tags.get("", ())) == 1:
                (own,) = tags[""]
                some = [bar for tag, several in tags.items() if tag and len(several) == 1
                        for bar in [_bar(own, several[0], tag, selection.metric)] if bar]
                bars.setdefault(place, []).extend(sorted(some, key=lambda bar: bar.mean))
    kept = {place: some for place, some in bars.items() if some}
    if not kept:
        return "no method has runs with and without a tag"
    return dict(zip(titles(list(kept)), kept.values(), strict=True))


def rows(data: Mapping[str, Sequence[Bar]]) -> list[dict[str, Any]]:
    """Return one row per bar."""
    return [{"of": title, "method": bar.method, "variant": bar.variant, "difference": bar.mean,
             "half": bar.half, "seeds": bar.seeds} for title, bars in data.items() for bar in bars]


def draw(
    data: Mapping[str, Sequence[Bar]], title: str = "", width: float = style.PAGE
) -> Figure:
    """Return one panel per place."""
    most = max(map(len, data.values()))
    with style.use_style():
        figure, axes = style.panels(len(data), width, BAR * most + 0.8, 2)
        write_titles(figure, axes, list(data), width)
        for bars, each in zip(data.values(), axes, strict=True):
            for y, bar in enumerate(reversed(bars)):
                colour = style.PALETTE[0 if bar.mean >= 0 else 1]
                each.barh(y, bar.mean, height=0.62, color=colour if bar.sure else "none",
                          edgecolor=colour, linewidth=0.8)
                if bar.half is not None:
                    each.errorbar(bar.mean, y, xerr=bar.half, color=style.INK, linewidth=0.7,
                                  capsize=1.5, capthick=0.7)
            each.axvline(0, color=style.INK, linewidth=0.7)
            each.set_yticks(range(len(bars)), [
                style.cut_label(f"{bar.method}: {bar.variant}", MOST) for bar in reversed(bars)])
            each.set_ylim(-0.6, len(bars) - 0.4)
            each.grid(visible=False, axis="y")
            each.xaxis.set_major_locator(MaxNLocator(5))
        figure.supxlabel("points above the method itself", fontsize=style.SMALL)
    return figure


def _bar(own: RunGroup, other: RunGroup, tag: str, metric: str) -> Bar | None:
    differences = [
        b - a for seeds, run in own.runs.items() if seeds in other.runs
        and (a := run.value(metric)) is not None
        and (b := other.runs[seeds].value(metric)) is not None]
    if not differences:
        return None
    return Bar(own.method, tag, mean(differences) or 0.0,
               t_interval(differences), len(differences))
