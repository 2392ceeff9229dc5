"""Labels and their order, the average over data sets, and who is best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedvlm.report.stats import mean
from fedvlm.report.table_cells import BEST, SECOND, Cell, Grid
from fedvlm.report.table_facts import METRIC, Entry
from fedvlm.report.table_metrics import metric

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
