"""A table of finished runs as plain data: rows, columns, cells with mean and spread, caption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedvlm.core.errors import ConfigError
from fedvlm.report.collect import Collected
from fedvlm.report.tables.caption import caption, notes_on
from fedvlm.report.tables.cells import AVERAGE, Grid, TableCell, averages, cell_of, with_marks
from fedvlm.report.tables.check import same_config, same_protocol
from fedvlm.report.tables.facts import (
    METRIC,
    Pair,
    RunFacts,
    check_keys,
    facts_of,
    filtered,
    with_references,
)
from fedvlm.report.tables.metrics import (
    ROUNDS_TO,
    check_metrics,
    metric,
    rounds_to_problems,
    value_of,
)


@dataclass(frozen=True)
class Spec:
    """What table is asked for.

    Attributes:
        rows, cols: protocol keys, config keys or ``metric``; several are combined.
        metrics: numbers (``target.*`` for all of a kind); without an axis ``metric`` each gets a
            table of its own.
        where, exclude: key and value that runs must, or must not, have.
        reference: names in ``facts.REFERENCES``.
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


def tables(collected: Collected, spec: Spec, command: str = "") -> list[Table]:
    """Return the tables that ``spec`` asks for: one, or one per metric without such an axis.

    Raises:
        ConfigError: unknown keys or metrics, nothing left after the filters, mixed protocols.
    """
    every, notes = facts_of(collected.runs)
    axes = (*spec.rows, *spec.cols)
    _check_axes(spec, axes)
    check_keys(spec.rows, every, "--rows")
    check_keys(spec.cols, every, "--cols")
    check_keys(spec.mixed or (), every, "--mixed")
    entries = filtered(every, spec.where, spec.exclude)
    spec = replace(spec, metrics=check_metrics(spec.metrics, entries))
    mixed = same_protocol(entries, axes, spec.mixed)
    everyone = with_references(entries, spec.reference)
    notes += [*notes_on(entries, axes), *collected.notes(),
              *rounds_to_problems(spec.metrics, entries)]
    if collected.unfinished:
        notes.append(f"{len(collected.unfinished)} unfinished run(s) left out: "
                     f"{_listed([str(p) for p in collected.unfinished])}")
    groups = [spec.metrics] if METRIC in axes else [(name,) for name in spec.metrics]
    return [_one(everyone, spec, names, mixed, notes, command) for names in groups]


def _check_axes(spec: Spec, axes: Sequence[str]) -> None:
    twice = [key for key in axes if axes.count(key) > 1]
    if twice:
        raise ConfigError(f"--rows and --cols both name {twice[0]}; give it one of them")
    if spec.reference and "trainer" not in axes:
        raise ConfigError("--reference needs trainer among --rows or --cols: its numbers stand "
                          "beside those of the methods")


def _label(entry: RunFacts, keys: Sequence[str], axes: Sequence[str], name: str) -> str:
    """Return an entry's row or column label for the metric ``name``."""
    return " / ".join(
        metric(name).title if key == METRIC else entry.label(key, axes) for key in keys
    )


def _ordered(
    entries: Sequence[RunFacts], keys: Sequence[str], axes: Sequence[str], names: Sequence[str]
) -> list[str]:
    """Return all labels of an axis: metrics as asked, numbers by size, the rest by name.

    The zero-shot reference comes first.
    """
    places: dict[str, tuple[tuple[int, float, str], ...]] = {}
    for entry in entries:
        for at, name in enumerate(names):
            order = tuple(
                (0, float(at), "") if key == METRIC else _order(entry, key, axes) for key in keys
            )
            places[_label(entry, keys, axes, name)] = order
    return sorted(places, key=lambda text: (places[text], text))


def _order(entry: RunFacts, key: str, axes: Sequence[str]) -> tuple[int, float, str]:
    if key == "trainer" and entry.reference == "zero-shot":
        return 0, 0.0, ""
    value = entry.fact(key)
    if key == "shots" and value == -1:
        return 2, 0.0, ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 1, float(value), ""
    return 3, 0.0, entry.label(key, axes).casefold()


def _one(
    entries: Sequence[RunFacts], spec: Spec, names: tuple[str, ...], mixed: Sequence[str],
    notes: Sequence[str], command: str,
) -> Table:
    """Return the table of ``names``."""
    axes = (*spec.rows, *spec.cols)
    rows = _ordered(entries, spec.rows, axes, names)
    columns = _ordered(entries, spec.cols, axes, names)
    places: dict[tuple[str, str, str], list[RunFacts]] = {}
    for entry in entries:
        for name in names:
            place = (_label(entry, spec.rows, axes, name), _label(entry, spec.cols, axes, name))
            places.setdefault((*place, name), []).append(entry)
    cells, differing, seeds = {}, list(mixed), []
    for (row, column, name), here in places.items():
        runs, inside = same_config(here, f"{row}, {column}", spec.mixed)
        cells[row, column] = _cell(runs, name, spec)
        seeds.append({e.seeds for e in runs})
        differing += [words for words in inside if words not in differing]
    missing = TableCell(names[0])
    grid = tuple(tuple(cells.get((r, c), missing) for c in columns) for r in rows)
    most = max((cell.n for line in grid for cell in line), default=0)
    grid = tuple(tuple(replace(c, fewer=0 < c.n < most) for c in line) for line in grid)
    grid, rows, columns, averaged = averages(grid, rows, columns, spec.rows, spec.cols)
    grid = with_marks(grid, spec.rows, spec.cols)
    extra = _extra(entries, spec, axes, names)
    runs = [e for e in entries if not e.reference]
    return Table(
        names, " / ".join(spec.rows),
        tuple(f"{r}*" if r in extra else r for r in rows),
        tuple(f"{c}*" if c in extra else c for c in columns), grid,
        caption(runs, names, axes, differing, averaged, spec.ci, most, command),
        (*_remarks(grid, rows, columns, most, extra, averaged), *_unpaired(seeds), *notes),
        spec.ci, most,
    )


def _cell(runs: Sequence[RunFacts], name: str, spec: Spec) -> TableCell:
    values = [v for entry in runs if (v := value_of(entry, name)) is not None]
    decimals = metric(name).digits
    digits = spec.digits if decimals is None else decimals
    if name.startswith(ROUNDS_TO) and len(values) < len(runs):  # a mean of the lucky seeds lies
        return TableCell(name, n=len(values), of=len(runs), reached=len(values), digits=digits)
    return cell_of(name, values, len(runs), spec.ci, digits)


def _extra(
    entries: Sequence[RunFacts], spec: Spec, axes: Sequence[str], names: Sequence[str]
) -> dict[str, str]:
    """Return the row or column labels of methods that use extra data, and which."""
    keys = spec.rows if "trainer" in spec.rows or "trainer" not in axes else spec.cols
    return {
        _label(e, keys, axes, name): str(e.fact("extra_data"))
        for e in entries if e.fact("extra_data") and not e.reference for name in names
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
        whose = ", ".join(label for label, what in extra.items() if what == words)
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
