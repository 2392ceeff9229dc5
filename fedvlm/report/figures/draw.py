"""All figures of one run, or of several: made where runs have the numbers, else told why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedvlm.core.errors import ConfigError, DataError, did_you_mean
from fedvlm.report.collect import Run
from fedvlm.report.figures import clients as figure_clients
from fedvlm.report.figures import convergence as figure_convergence
from fedvlm.report.figures import few_shot as figure_few_shot
from fedvlm.report.figures import partition as figure_partition
from fedvlm.report.figures import series as figures_cells
from fedvlm.report.figures import series as figures_series
from fedvlm.report.figures import similarity as figure_similarity
from fedvlm.report.figures import style
from fedvlm.report.figures import traffic as figure_traffic
from fedvlm.report.figures.lines import rows_of

WORDS = {
    "personal": "personal accuracy (%)", "global": "global accuracy (%)",
    "personal_worst": "worst client's accuracy (%)", "new": "accuracy on new classes (%)",
    "base_all": "accuracy on base classes (%)",
}
_NOT_PERCENT = ("round", "seconds", "bytes", "val")  # numbers of a round that are no accuracy


@dataclass
class Drawn:
    """What came of it.

    Attributes:
        made: names of figures; each is a PNG, an SVG and a CSV in the folder asked for.
        missing: one sentence per figure that could not be made.
    """

    made: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def draw_run(run: Run, into: Path, metric: str = "personal", width: float = style.PAGE) -> Drawn:
    """Write the figures of one run: partition, convergence, clients, similarity, traffic.

    Raises:
        ConfigError: no run has such a metric.
        DataError: ``into`` cannot be written.
    """
    found = draw_runs([run], into, metric, width)
    records = run.rounds()
    title = title_of(run)
    try:
        data, rows = partition_of(run.path)
    except DataError as error:
        found.missing.append(f"partition: {error}")
    else:
        style.write(into, "partition", figure_partition.draw(data, title, width), rows)
        found.made.append("partition")
    clients = figure_clients.from_rounds(records)
    if clients.clients:
        figure = figure_clients.draw(clients, title, width)
        style.write(into, "clients", figure, figure_clients.rows_of(clients))
        found.made.append("clients")
    else:
        found.missing.append("clients: no round has accuracies of clients")
    alike = figure_similarity.rounds_with(records)
    if alike:
        figure = figure_similarity.draw(alike, title, width)
        style.write(into, "similarity", figure, figure_similarity.rows_of(alike))
        figure = figure_similarity.draw_global(alike, title, width)
        rows_global = figure_similarity.global_rows_of(alike)
        style.write(into, "similarity_to_global", figure, rows_global)
        found.made += ["similarity", "similarity_to_global"]
    else:
        found.missing.append(
            "similarity: no round has it (a method that shares nothing, or a run made before "
            "similarities were recorded)"
        )
    return found


def draw_runs(
    runs: Sequence[Run], into: Path, metric: str = "personal", width: float = style.PAGE
) -> Drawn:
    """Write the figures over several runs: convergence, few-shot curves, accuracy against bytes.

    Seeds of one config are averaged, nothing else is.

    Raises:
        ConfigError: no run has such a metric.
        DataError: ``into`` cannot be written.
    """
    _check_metric(runs, metric)
    cells, problems = figures_cells.cells(runs)
    found = Drawn(missing=problems)
    label = WORDS.get(metric, f"{metric} (%)")
    bare = f"no round has {metric} for all seeds of a method"
    jobs = (
        ("convergence", "round", figures_series.convergence(cells, metric),
         figure_convergence.draw, bare),
        ("traffic", "MB", figures_series.traffic(cells, metric), figure_traffic.draw, bare),
        ("few_shot", "shots", figures_series.few_shot(cells, metric), figure_few_shot.draw,
         "the runs of no dataset differ in shots"),
    )
    for name, x_name, panels, draw, why in jobs:
        if panels:
            style.write(into, name, draw(panels, label, width), rows_of(panels, x_name, metric))
            found.made.append(name)
        else:
            found.missing.append(f"{name}: {why}")
    return found


def draw_partition(folder: Path, title: str, width: float = style.PAGE) -> None:
    """Write ``partition.png`` and ``partition.svg`` beside a run's ``partition.csv``.

    Raises:
        DataError: the CSV cannot be read, or the folder not be written.
    """
    data, _ = partition_of(folder)
    style.write(folder, "partition", figure_partition.draw(data, title, width), None)


def partition_of(folder: Path) -> tuple[figure_partition.Partition, list[dict[str, str]]]:
    """Return a run folder's partition and the rows of its CSV.

    Raises:
        DataError: ``partition.csv`` cannot be read.
    """
    rows = figure_partition.read(folder / "partition.csv")
    order = figure_partition.class_order(folder / "partition.json")
    return figure_partition.from_rows(rows, order), rows


def title_of(run: Run) -> str:
    """Return what a figure of one run is of: method, dataset, partition and seeds."""
    said = run.protocol
    parts = [run.method, str(said.get("dataset", "")), str(said.get("partition", ""))]
    seeds = f"seed {said.get('seed')}, data seed {said.get('data_seed')}"
    return ", ".join([*(p for p in parts if p), seeds])


def _check_metric(runs: Sequence[Run], metric: str) -> None:
    known = sorted({
        name for run in runs for name, value in run.last.items()
        if isinstance(value, float) and name not in _NOT_PERCENT
    })
    if metric not in known and known:
        raise ConfigError(
            f"no run has the metric '{metric}'{did_you_mean(metric, known)} "
            f"(known: {', '.join(known)})"
        )
