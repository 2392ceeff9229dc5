"""All figures, as the folder holds them; written to files for ``fedvlm figures``."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from matplotlib.figure import Figure
from matplotlib.text import Text

from fedvlm.core.errors import ConfigError, DataError, did_you_mean
from fedvlm.core.spelling import NOT_RANKED
from fedvlm.report import figures as folder
from fedvlm.report.figures import style
from fedvlm.report.figures.drawing.lines import MANY, order_of
from fedvlm.report.figures.selection import FigureRuns, partition_words
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.verify.answer import in_measure

MEMBERS = ("ORDER", "CAPTION", "OF", "select", "draw", "rows")
RANKING = ("forest", "distribution", "pareto")  # say which method is best
# Numbers of a round that are no accuracy.
_NOT_PERCENT = ("round", "seconds", "bytes", "val", "val_loss")


class FigureModule(Protocol):
    """A module of this folder that declares ``NAME``; the folder's docstring tells its parts."""

    NAME: str
    ORDER: int
    CAPTION: str
    OF: str

    def select(self, selection: FigureRuns, /) -> Any:
        """Return the data, the reason why there are none, or None."""

    def draw(self, data: Any, /, title: str = "", width: float = style.PAGE) -> Figure:
        """Return the drawing."""

    def rows(self, data: Any, /) -> Sequence[Mapping[str, Any]]:
        """Return the rows of the CSV."""


def all_figures() -> list[FigureModule]:
    """Return the figures of this folder and those below by order and name.

    Raises:
        TypeError: a module names itself a figure and lacks a part of one.
    """
    modules = []
    for info in pkgutil.walk_packages(folder.__path__, f"{folder.__name__}."):
        module = importlib.import_module(info.name)
        if not hasattr(module, "NAME"):
            continue
        lacking = [name for name in MEMBERS if not hasattr(module, name)]
        if lacking:
            raise TypeError(f"the figure {module.__file__} lacks {', '.join(lacking)}")
        modules.append(cast(FigureModule, module))
    return sorted(modules, key=lambda one: (one.ORDER, one.NAME))


def data_of(figure: FigureModule, selection: FigureRuns) -> tuple[Any, str]:
    """Return a figure's data, or None and the reason why there are none (empty: no matter)."""
    if figure.NAME in RANKING and any(run.simulated for run in selection.runs):
        return None, NOT_RANKED
    try:
        data = figure.select(selection)
    except DataError as error:
        data = str(error)
    return (None, data) if isinstance(data, str) else (data, "")


def drawing_of(
    figure: FigureModule, data: Any, measure: str, title: str = "", width: float = style.PAGE
) -> Figure:
    """Return the drawing of a figure whose words name the measure of its runs."""
    drawing = figure.draw(data, title, width)
    for text in drawing.findobj(Text):
        text.set_text(in_measure(text.get_text(), measure))
    return drawing


def parts_of(figure: FigureModule) -> Callable[[Any], Mapping[str, Any]] | None:
    """Return the figure's ``parts``; None where it is drawn whole everywhere."""
    return getattr(figure, "parts", None)


def write_figures(
    selection: FigureRuns, into: Path, width: float = style.PAGE, font: str = "sans"
) -> tuple[list[str], list[str]]:
    """Write every figure that the runs have numbers for, as PDF, PNG, SVG and CSV.

    Seeds of one config are averaged, nothing else is. Of more methods than colours tell apart each
    panel also gets a figure of its own, in which each method has axes.

    Args:
        width: inches; font: of ``style.FONTS``.

    Returns:
        Names of figures, and one message per figure that could not be made.

    Raises:
        ConfigError: no run has such a metric.
        DataError: ``into`` cannot be written.
    """
    _check_metric(selection)
    names, missing = [], list(selection.problems)
    single = len(selection.runs) == 1
    title = title_of(selection.run) if single else ""
    of_one = []
    for figure in all_figures():
        if figure.OF == "run" and not single:
            of_one.append(figure.NAME)
            continue
        data, why = data_of(figure, selection)
        if data is not None:
            for name, part in {figure.NAME: data, **_apart(figure, data)}.items():
                with style.font(font):
                    drawing = drawing_of(figure, part, selection.measure, title, width)
                    style.write_figure(into, name, drawing, figure.rows(part))
                names.append(name)
        elif why:
            missing.append(f"{figure.NAME}: {why}")
    if of_one:
        missing.append(f"{', '.join(of_one)}: are of one run; give its folder alone")
    return names, missing


def _apart(figure: FigureModule, data: Any) -> dict[str, Any]:
    """Return the panels of many methods by the names of their files."""
    divide = parts_of(figure)
    if divide is None or len(data) < 2 or len(order_of(data)) <= MANY:
        return {}
    alone: dict[str, Any] = {}
    for at, (title, part) in enumerate(divide(data).items(), start=1):
        slug = re.sub(r"[^a-z0-9.]+", "-", title.lower()).strip("-") or str(at)
        name = f"{figure.NAME}-{slug}"
        alone[name if name not in alone else f"{name}-{at}"] = part
    return alone


def title_of(run: FinishedRun) -> str:
    """Return what a figure of one run is of: method, dataset, partition and seeds."""
    protocol = run.protocol
    parts = [run.method, str(protocol.get("dataset", "")),
             partition_words(str(protocol.get("partition", "")))]
    seeds = f"seed {protocol.get('seed')}, data seed {protocol.get('data_seed')}"
    return ", ".join([*(p for p in parts if p), seeds])


def _check_metric(selection: FigureRuns) -> None:
    metric = selection.metric
    names = sorted({
        name for run in selection.runs for name, value in run.last.items()
        if isinstance(value, float) and name not in _NOT_PERCENT
    })
    if metric not in names and names:
        raise ConfigError(
            f"no run has the metric '{metric}'{did_you_mean(metric, names)} "
            f"(known: {', '.join(names)})"
        )
