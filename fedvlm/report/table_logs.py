"""A table of CoOp-style logs: one row per experiment, one column per keyword."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedvlm.report.coop_log import Experiment, read_logs
from fedvlm.report.stats import mean, population_std, sample_std, t_interval
from fedvlm.report.table import Table
from fedvlm.report.table_axes import AVERAGE, average
from fedvlm.report.table_cells import Cell
from fedvlm.report.table_metrics import DEFINED

_FIRST = ("accuracy", "error", "macro_f1")


def logs_table(
    folder: Path, *, test_log: bool = False, ci: bool = False, digits: int = 1, command: str = "",
) -> Table:
    """Return mean and spread over the seeds of every experiment below a folder.

    The spread is ours (divisor n - 1); what ``parse_test_res.py`` prints, the population's, is
    told in the notes. Several experiments get an average row (its ``--multi-exp``).

    Raises:
        DataError: see ``read_logs``.
    """
    found, problems = read_logs(folder, test_log)
    keywords = {k: None for e in found for numbers in e.seeds.values() for k in numbers}
    columns = [k for k in _FIRST if k in keywords] + sorted(k for k in keywords if k not in _FIRST)
    cells = [[_cell(one, keyword, ci, digits) for keyword in columns] for one in found]
    most = max(cell.n for line in cells for cell in line)
    cells = [[replace(c, fewer=0 < c.n < most) for c in line] for line in cells]
    rows = [folder.resolve().name if one.name == "." else one.name for one in found]
    notes = [_as_coop(row, one.values("accuracy")) for row, one in zip(rows, found, strict=True)
             if one.values("accuracy")]
    if any(cell.fewer for line in cells for cell in line):
        notes.insert(0, f"† fewer than {most} seeds")
    if len(found) > 1:
        cells.append([average(column) for column in zip(*cells, strict=True)])
        rows.append(AVERAGE)
    return Table(
        tuple(columns), "experiment", tuple(rows), tuple(columns), tuple(map(tuple, cells)),
        _caption(folder, found, columns, ci, most, command), (*notes, *problems), ci, most,
    )


def _cell(one: Experiment, keyword: str, ci: bool, digits: int) -> Cell:
    values = one.values(keyword)
    return Cell(
        keyword, mean(values), sample_std(values), t_interval(values) if ci else None, len(values),
        len(one.seeds), digits=digits,
    )


def _as_coop(row: str, values: Sequence[float]) -> str:
    spread = population_std(values)
    return (f"{row}: parse_test_res.py prints accuracy: {mean(values):.2f}% +- {spread:.2f}% "
            f"(population standard deviation, n = {len(values)})")


def _caption(
    folder: Path, found: Sequence[Experiment], columns: Sequence[str], ci: bool, most: int,
    command: str,
) -> str:
    words = [f"{k}: {DEFINED[k].words}" if k in DEFINED else k for k in columns]
    kind = "half the 95 % t-interval of the mean" if ci else "sample standard deviation"
    parts = ["; ".join(words) + " (%)", f"Mean ± {kind} over n = {most} logs"]
    if len(found) > 1:
        parts.append("Average: mean over experiments of the means")
    parts.append(f"From the logs below {folder}, which name no protocol: nobody checked that the "
                 "rows may be compared")
    if command:
        parts.append(f"Made by: {command}")
    return ". ".join(parts) + "."
