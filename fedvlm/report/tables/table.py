"""A table of finished runs as plain data: rows, columns, mean and spread per cell, marks, caption.

Cells are means over seeds. An average is the mean over data sets of the cell means, so that of a
harmonic mean is a mean of harmonic means; it stands only where no cell is missing.

One cell of a table, and its words; how they are set in bold is the renderer's business.

Labels and their order, the average over data sets, and who is best.

A table of CoOp-style logs: one row per experiment, one column per keyword.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedvlm.core.errors import ConfigError
from fedvlm.report.collect import (
    Collected,
    Experiment,
    mean,
    population_std,
    read_logs,
    sample_std,
    t_interval,
)
from fedvlm.report.tables import check as caption
from fedvlm.report.tables import check as table_check
from fedvlm.report.tables import check as table_notes
from fedvlm.report.tables.metrics import (
    DEFINED,
    METRIC,
    Entry,
    Pair,
    check_keys,
    check_metrics,
    chosen,
    entries,
    metric,
    metrics_problems,
    value,
    with_references,
)

MISSING = "-"
FEWER = "†"
BEST, SECOND = 1, 2


@dataclass(frozen=True)
class Cell:
    """A number over seeds, unscaled.

    Attributes:
        metric: what it is.
        mean: None where it is missing.
        std: sample standard deviation; ci: half the 95 % t-interval; None where there is none.
        n: seeds that have the number; of: runs of the cell.
        rank: ``BEST``, ``SECOND`` or 0.
        fewer: whether a cell of the table has more seeds.
        reached: of ``rounds_to:``, the seeds that got there where not all did.
        average: whether it is a mean over data sets.
        digits: decimals shown.
    """

    metric: str
    mean: float | None = None
    std: float | None = None
    ci: float | None = None
    n: int = 0
    of: int = 0
    rank: int = 0
    fewer: bool = False
    reached: int | None = None
    average: bool = False
    digits: int = 1

    @property
    def text(self) -> str:
        """The mean as shown, ``81.2``; ``-`` where it is missing."""
        if self.mean is None:
            return MISSING
        return f"{self.mean * metric(self.metric).scale:.{self.digits}f}"

    def spread(self, ci: bool) -> str:
        """Return the standard deviation as shown, or with ``ci`` the interval; empty for none."""
        found = self.ci if ci else self.std
        if found is None or self.mean is None:
            return ""
        digits = max(self.digits, 1)
        return f"{found * metric(self.metric).scale:.{digits}f}"

    @property
    def suffix(self) -> str:
        """What follows the number: `` (n=2)†``, `` (2/3)`` or nothing."""
        if self.reached is not None:
            return f" ({self.reached}/{self.of})"
        count = f" (n={self.n})" if self.fewer and not self.average else ""
        return f"{count}{FEWER}" if self.fewer else ""


Grid = tuple[tuple[Cell, ...], ...]


AVERAGE = "average"
AVERAGED = (("dataset",), ("held_out",))  # axes that get an average
NOT_RIVALS = {"dataset", "held_out", METRIC}  # nobody wins between two data sets


def label(entry: Entry, keys: Sequence[str], axes: Sequence[str], name: str) -> str:
    """Return an entry's row or column label for the metric ``name``."""
    return " / ".join(
        metric(name).title if key == METRIC else entry.label(key, axes) for key in keys
    )


def ordered(
    found: Sequence[Entry], keys: Sequence[str], axes: Sequence[str], names: Sequence[str]
) -> list[str]:
    """Return all labels of an axis: metrics as asked, numbers by size, the rest by name.

    The zero-shot reference comes first.
    """
    places: dict[str, tuple[tuple[int, float, str], ...]] = {}
    for entry in found:
        for at, name in enumerate(names):
            order = tuple(
                (0, float(at), "") if key == METRIC else _order(entry, key, axes) for key in keys
            )
            places[label(entry, keys, axes, name)] = order
    return sorted(places, key=lambda text: (places[text], text))


def _order(entry: Entry, key: str, axes: Sequence[str]) -> tuple[int, float, str]:
    if key == "trainer" and entry.reference == "zero-shot":
        return 0, 0.0, ""
    found = entry.fact(key)
    if key == "shots" and found == -1:
        return 2, 0.0, ""
    if isinstance(found, int | float) and not isinstance(found, bool):
        return 1, float(found), ""
    return 3, 0.0, entry.label(key, axes).casefold()


def averages(
    grid: Grid, rows: Sequence[str], columns: Sequence[str], row_keys: Sequence[str],
    col_keys: Sequence[str],
) -> tuple[Grid, list[str], list[str], bool]:
    """Add an average where an axis holds data sets (or domains left out) alone, and several.

    Returns:
        The grid, row labels, column labels, and whether there is an average.
    """
    if tuple(col_keys) in AVERAGED and len(columns) > 1:
        wider = tuple((*line, average(line)) for line in grid)
        return wider, list(rows), [*columns, AVERAGE], True
    if tuple(row_keys) in AVERAGED and len(rows) > 1:
        below = tuple(average(column) for column in zip(*grid, strict=True))
        return (*grid, below), [*rows, AVERAGE], list(columns), True
    return grid, list(rows), list(columns), False


def average(cells: Sequence[Cell]) -> Cell:
    """Return the mean of the cells' means, without a spread; missing where one is missing."""
    known = [cell for cell in cells if cell.mean is not None] or [*cells]
    values = [cell.mean for cell in known if cell.mean is not None]
    whole = len(values) == len(cells)
    return Cell(
        known[0].metric, mean(values) if whole else None, digits=known[0].digits, average=True,
        fewer=whole and any(cell.fewer for cell in cells),
    )


def with_marks(
    grid: Grid, row_keys: Sequence[str], col_keys: Sequence[str]
) -> Grid:
    """Mark best and second of each column, or of each row where the columns are the methods."""
    by_row = "trainer" in col_keys and not NOT_RIVALS & {*col_keys}
    if by_row:
        return tuple(tuple(ranked(line)) for line in grid)
    if NOT_RIVALS & {*row_keys} or not grid:
        return grid
    columns = [ranked(column) for column in zip(*grid, strict=True)]
    return tuple(zip(*columns, strict=True))


def ranked(cells: Sequence[Cell]) -> list[Cell]:
    """Rank cells by what is shown, so that equal figures get equal marks.

    The second is the next figure after the best; where all are equal nobody gets a mark.
    """
    known = [cell for cell in cells if cell.mean is not None]
    shown = {float(cell.text) for cell in known}
    if len(shown) < 2:
        return list(cells)
    better = sorted(shown, reverse=not metric(known[0].metric).lower)
    marks = dict(zip(better, (BEST, SECOND), strict=False))
    return [
        cell if cell.mean is None else replace(cell, rank=marks.get(float(cell.text), 0))
        for cell in cells
    ]


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
    cells = [[_cell_logs(one, keyword, ci, digits) for keyword in columns] for one in found]
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


def _cell_logs(one: Experiment, keyword: str, ci: bool, digits: int) -> Cell:
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
