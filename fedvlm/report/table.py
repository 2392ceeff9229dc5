"""A table of finished runs as plain data: rows, columns, mean and spread per cell, marks, caption.

Cells are means over seeds. An average is the mean over data sets of the cell means, so that of a
harmonic mean is a mean of harmonic means; it stands only where no cell is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedvlm.errors import ConfigError
from fedvlm.report import caption, table_check, table_notes
from fedvlm.report.collect import Collected
from fedvlm.report.stats import mean, sample_std, t_interval
from fedvlm.report.table_axes import AVERAGE, averages, label, ordered, with_marks
from fedvlm.report.table_cells import Cell, Grid
from fedvlm.report.table_facts import (
    METRIC,
    Entry,
    Pair,
    check_keys,
    chosen,
    entries,
    with_references,
)
from fedvlm.report.table_metrics import check_metrics, metric, metrics_problems, value


@dataclass(frozen=True)
class Spec:
    """What table is asked for.

    Attributes:
        rows, cols: protocol keys, config keys or ``metric``; several are combined.
        metrics: numbers (``target.*`` for all of a kind); without an axis ``metric`` each gets a
            table of its own.
        where, exclude: key and value that runs must, or must not, have.
        reference: names in ``table_facts.REFERENCES``.
        mixed: keys in which runs may differ; empty: any; None: nothing may.
        ci: whether the 95 % t-interval is shown instead of the standard deviation.
        digits: decimals of percentages.
    """

    rows: tuple[str, ...] = ("trainer",)
    cols: tuple[str, ...] = ("dataset",)
    metrics: tuple[str, ...] = ("personal",)
    where: tuple[Pair, ...] = ()
    exclude: tuple[Pair, ...] = ()
    reference: tuple[str, ...] = ()
    mixed: tuple[str, ...] | None = None
    ci: bool = False
    digits: int = 1


@dataclass(frozen=True)
class Table:
    """A finished table; ``render`` writes it.

    Attributes:
        metrics: the names shown.
        corner: the row keys, joined.
        rows, columns: labels; a trailing ``*`` marks extra data.
        cells: one tuple per row.
        caption: what the numbers are, under which protocol, of which data, made how.
        notes: what is marked, missing, left out.
        ci: whether the spread shown is the 95 % t-interval.
        n: the most seeds of a cell.
    """

    metrics: tuple[str, ...]
    corner: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Grid
    caption: str
    notes: tuple[str, ...] = ()
    ci: bool = False
    n: int = 0


def tables(found: Collected, spec: Spec, command: str = "") -> list[Table]:
    """Return the tables that ``spec`` asks for: one, or one per metric without such an axis.

    Raises:
        ConfigError: unknown keys or metrics, nothing left after the filters, mixed protocols.
    """
    known, notes = entries(found.runs)
    axes = (*spec.rows, *spec.cols)
    _check_axes(spec, axes)
    check_keys(spec.rows, known, "--rows")
    check_keys(spec.cols, known, "--cols")
    check_keys(spec.mixed or (), known, "--mixed")
    kept = chosen(known, spec.where, spec.exclude)
    spec = replace(spec, metrics=check_metrics(spec.metrics, kept))
    mixed = table_check.same_protocol(kept, axes, spec.mixed)
    everyone = with_references(kept, spec.reference)
    notes += [*table_check.finetuned(kept, axes), *table_notes.tuned(kept, axes),
              *table_check.unknown(kept), *table_notes.left_out(kept), *table_notes.made_with(kept),
              *found.problems, *metrics_problems(spec.metrics, kept)]
    if found.unfinished:
        notes.append(f"{len(found.unfinished)} unfinished run(s) left out: "
                     f"{_listed([str(p) for p in found.unfinished])}")
    groups = [spec.metrics] if METRIC in axes else [(name,) for name in spec.metrics]
    return [_one(everyone, spec, names, mixed, notes, command) for names in groups]


def _check_axes(spec: Spec, axes: Sequence[str]) -> None:
    twice = [key for key in axes if axes.count(key) > 1]
    if twice:
        raise ConfigError(f"--rows and --cols both name {twice[0]}; give it one of them")
    if spec.reference and "trainer" not in axes:
        raise ConfigError("--reference needs trainer among --rows or --cols: its numbers stand "
                          "beside those of the methods")


def _one(
    found: Sequence[Entry], spec: Spec, names: tuple[str, ...], mixed: Sequence[str],
    notes: Sequence[str], command: str,
) -> Table:
    """Return the table of ``names``."""
    axes = (*spec.rows, *spec.cols)
    rows = ordered(found, spec.rows, axes, names)
    columns = ordered(found, spec.cols, axes, names)
    places: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in found:
        for name in names:
            place = (label(entry, spec.rows, axes, name), label(entry, spec.cols, axes, name))
            places.setdefault((*place, name), []).append(entry)
    cells, differing, seeds = {}, list(mixed), []
    for (row, column, name), here in places.items():
        runs, own = table_check.same_config(here, f"{row}, {column}", spec.mixed)
        cells[row, column] = _cell(runs, name, spec)
        seeds.append({e.seeds for e in runs})
        differing += [words for words in own if words not in differing]
    missing = Cell(names[0])
    grid = tuple(tuple(cells.get((r, c), missing) for c in columns) for r in rows)
    most = max((cell.n for line in grid for cell in line), default=0)
    grid = tuple(tuple(replace(c, fewer=0 < c.n < most) for c in line) for line in grid)
    grid, rows, columns, averaged = averages(grid, rows, columns, spec.rows, spec.cols)
    grid = with_marks(grid, spec.rows, spec.cols)
    extra = _extra(found, spec, axes, names)
    runs = [e for e in found if not e.reference]
    return Table(
        names, " / ".join(spec.rows),
        tuple(f"{r}*" if r in extra else r for r in rows),
        tuple(f"{c}*" if c in extra else c for c in columns), grid,
        caption.caption(runs, names, axes, differing, averaged, spec.ci, most, command),
        (*_remarks(grid, rows, columns, most, extra, averaged), *_unpaired(seeds), *notes),
        spec.ci, most,
    )


def _cell(runs: Sequence[Entry], name: str, spec: Spec) -> Cell:
    values = [v for entry in runs if (v := value(entry, name)) is not None]
    shown = metric(name)
    digits = spec.digits if shown.digits is None else shown.digits
    if name.startswith("rounds_to:") and len(values) < len(runs):  # a mean of the lucky seeds lies
        return Cell(name, n=len(values), of=len(runs), reached=len(values), digits=digits)
    return Cell(
        name, mean(values), sample_std(values), t_interval(values) if spec.ci else None,
        len(values), len(runs), digits=digits,
    )


def _extra(
    found: Sequence[Entry], spec: Spec, axes: Sequence[str], names: Sequence[str]
) -> dict[str, str]:
    """Return the row or column labels of methods that use extra data, and which."""
    keys = spec.rows if "trainer" in spec.rows or "trainer" not in axes else spec.cols
    return {
        label(e, keys, axes, name): str(e.fact("extra_data"))
        for e in found if e.fact("extra_data") and not e.reference for name in names
    }


def _remarks(
    grid: Grid, rows: Sequence[str], columns: Sequence[str], most: int,
    extra: dict[str, str], averaged: bool,
) -> list[str]:
    """Return the notes that explain a table's signs."""
    notes = []
    fewer = [
        f"{r} / {c} n = {cell.n}" for r, line in zip(rows, grid, strict=True)
        for c, cell in zip(columns, line, strict=True)
        if cell.fewer and not cell.average and cell.reached is None
    ]
    if fewer:
        notes.append(f"† fewer than {most} seeds: {_listed(fewer)}")
    lost = [cell for line in grid for cell in line if cell.reached is not None]
    if lost:
        notes.append("(a/b): only a of b seeds reach that accuracy, so there is no mean")
    if averaged and any(cell.mean is None for line in grid for cell in line):
        notes.append(f"{AVERAGE}: only where no data set is missing")
    for words in dict.fromkeys(extra.values()):
        whose = ", ".join(label for label, found in extra.items() if found == words)
        notes.append(f"* extra data ({whose}): {words}")
    return notes


def _unpaired(seeds: Sequence[set[tuple[Any, ...]]]) -> list[str]:
    """Say where cells of equal size hold different seeds."""
    most = max(map(len, seeds), default=0)
    if len({frozenset(s) for s in seeds if len(s) == most}) < 2:
        return []
    return ["the cells do not hold the same seeds, so differences between them include the seeds'"]


def _listed(words: Sequence[str], most: int = 6) -> str:
    more = len(words) - most
    return "; ".join(words[:most]) + (f"; and {more} more" if more > 0 else "")
