"""The cells of a table: numbers over seeds, their average over data sets, and who is best.

A cell is a mean over seeds. An average is the mean over data sets of the cells' means, so that of a
harmonic mean is a mean of harmonic means; it stands only where no cell is missing. How a cell is
set in bold is the renderer's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedvlm.core.stats import mean, sample_std, t_interval
from fedvlm.report.tables.facts import METRIC
from fedvlm.report.tables.metrics import metric

MISSING = "-"
FEWER = "†"
BEST, SECOND = 1, 2
AVERAGE = "average"
AVERAGED = (("dataset",), ("held_out",))  # axes that get an average
NOT_RIVALS = {"dataset", "held_out", METRIC}  # nobody wins between two data sets


@dataclass(frozen=True)
class TableCell:
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
        spread = self.ci if ci else self.std
        if spread is None or self.mean is None:
            return ""
        return f"{spread * metric(self.metric).scale:.{max(self.digits, 1)}f}"

    @property
    def suffix(self) -> str:
        """What follows the number: `` (n=2)†``, `` (2/3)`` or nothing."""
        if self.reached is not None:
            return f" ({self.reached}/{self.of})"
        count = f" (n={self.n})" if self.fewer and not self.average else ""
        return f"{count}{FEWER}" if self.fewer else ""

    @property
    def counted(self) -> str:
        """Over what the mean is, as a tool tip."""
        return "mean over data sets" if self.average else f"n = {self.n}"


Grid = tuple[tuple[TableCell, ...], ...]


def cell_of(name: str, values: Sequence[float], of: int, ci: bool, digits: int) -> TableCell:
    """Return the cell of the metric ``name``.

    Args:
        values: of the seeds that have it.
        of: seeds in all.
    """
    return TableCell(
        name, mean(values), sample_std(values), t_interval(values) if ci else None, len(values), of,
        digits=digits,
    )


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


def average(cells: Sequence[TableCell]) -> TableCell:
    """Return the mean of the cells' means, without a spread; missing where one is missing."""
    there = [cell for cell in cells if cell.mean is not None] or [*cells]
    whole = all(cell.mean is not None for cell in cells)
    return TableCell(
        there[0].metric, mean(cell.mean for cell in cells) if whole else None,
        digits=there[0].digits, average=True, fewer=whole and any(cell.fewer for cell in cells),
    )


def with_marks(grid: Grid, row_keys: Sequence[str], col_keys: Sequence[str]) -> Grid:
    """Mark best and second of each column, or of each row where the columns are the methods."""
    by_row = "trainer" in col_keys and not NOT_RIVALS & {*col_keys}
    if by_row:
        return tuple(tuple(ranked(line)) for line in grid)
    if NOT_RIVALS & {*row_keys} or not grid:
        return grid
    columns = [ranked(column) for column in zip(*grid, strict=True)]
    return tuple(zip(*columns, strict=True))


def ranked(cells: Sequence[TableCell]) -> list[TableCell]:
    """Rank cells by what is shown, so that equal figures get equal marks.

    The second is the next figure after the best; where all are equal nobody gets a mark.
    """
    there = [cell for cell in cells if cell.mean is not None]
    figures = {float(cell.text) for cell in there}
    if len(figures) < 2:
        return list(cells)
    better = sorted(figures, reverse=not metric(there[0].metric).lower)
    marks = dict(zip(better, (BEST, SECOND), strict=False))
    return [
        cell if cell.mean is None else replace(cell, rank=marks.get(float(cell.text), 0))
        for cell in cells
    ]
