"""The cells of a table: numbers over seeds, their average over data sets, and who is best.

A cell is a mean over seeds. An average stands only where no cell is missing. That of a harmonic
mean comes twice: H of the averages (CoOp's and MaPLe's tables) and the mean of the sets' H (the
federated ones). A cell keeps its values by seed and data set, so that cells are compared in pairs.
How a cell is set in bold is the renderer's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedvlm.core.stats import mean, sample_std, t_interval
from fedvlm.report.statistics.contrast import leaders
from fedvlm.report.statistics.images import Answers
from fedvlm.report.tables.facts import METRIC
from fedvlm.report.tables.metrics import metric

MISSING = "-"
FEWER, BELOW = "†", "↓"
BEST, PEER = 1, 2
AVERAGE = "average"
H_OF_AVERAGES, MEAN_OF_H = "average (H of averages)", "average (mean of H)"
AVERAGED = (("dataset",), ("held_out",))  # axes that get an average
NOT_RIVALS = {"dataset", "held_out", METRIC}  # nobody wins between two data sets

Seeds = Mapping[Any, float]  # seed's key -> value


@dataclass(frozen=True)
class TableCell:
    """A number over seeds, unscaled.

    Attributes:
        metric: what it is.
        mean: None where it is missing.
        std: sample standard deviation; ci: half the 95 % t-interval; None where there is none.
        n: seeds that have the number; of: runs of the cell.
        rank: ``BEST`` where it is significantly better than all others, ``PEER`` where it is not
            significantly worse than the best, or is the best of such; else 0.
        fewer: whether a cell of the table has more seeds.
        reached: of ``rounds_to:``, the seeds that got there where not all did.
        average: whether it is a mean over data sets.
        digits: decimals shown.
        below: whether a reference of the method's kind has more.
        words: shown instead of the number: a difference with its interval.
        values: per data set the value by seed; of a cell of one data set one mapping.
        answers: the same of the clients' answers that the values are means of; () of others.
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
    below: bool = False
    words: str = ""
    values: tuple[Seeds, ...] = field(default=(), repr=False, compare=False)
    answers: tuple[Mapping[Any, Answers], ...] = field(default=(), repr=False, compare=False)

    @property
    def text(self) -> str:
        """The mean as shown, ``81.2``; ``-`` where it is missing."""
        if self.words or self.mean is None:
            return self.words or MISSING
        return f"{self.mean * metric(self.metric).scale:.{self.digits}f}"

    def spread(self, ci: bool) -> str:
        """Return the standard deviation as shown, or with ``ci`` the interval; empty for none.

        What was counted (steps, bytes) has none where all seeds agree.
        """
        spread, meant = self.ci if ci else self.std, metric(self.metric)
        if spread is None or self.mean is None or self.words:
            return ""
        if meant.counted and not spread:
            return ""
        digits = self.digits if meant.unit == "count" else max(self.digits, 1)
        return f"{spread * meant.scale:.{digits}f}"

    @property
    def suffix(self) -> str:
        """What follows the number: `` (n=2)†``, ``↓``, `` (2/3)`` or nothing."""
        if self.reached is not None:
            return f" ({self.reached}/{self.of})"
        count = f" (n={self.n})" if self.fewer and not self.average else ""
        return (f"{count}{FEWER}" if self.fewer else "") + (BELOW if self.below else "")

    @property
    def counted(self) -> str:
        """Over what the mean is, as a tool tip."""
        return "mean over data sets" if self.average else f"n = {self.n}"


CellRows = tuple[tuple[TableCell, ...], ...]


def cell_of(
    name: str, values: Seeds, of: int, ci: bool, digits: int,
    answers: Mapping[Any, Answers] | None = None,
) -> TableCell:
    """Return the cell of the metric ``name``.

    Args:
        values: of the seeds that have it.
        of: seeds in all.
        answers: by seed, of a metric that is the mean over clients of their accuracy.
    """
    numbers = list(values.values())
    return TableCell(
        name, mean(numbers), sample_std(numbers), t_interval(numbers) if ci else None,
        len(numbers), of, digits=digits, values=(values,),
        answers=(answers,) if answers else (),
    )


def averaged_by(row_keys: Sequence[str], col_keys: Sequence[str], rows: int, columns: int) -> str:
    """Return the axis that holds data sets (or domains left out) alone, and several; '' for none.

    Returns:
        ``cols`` (an average gets a column), ``rows`` or an empty text.
    """
    if tuple(col_keys) in AVERAGED and columns > 1:
        return "cols"
    return "rows" if tuple(row_keys) in AVERAGED and rows > 1 else ""


def average(cells: Sequence[TableCell], ci: bool = False) -> TableCell:
    """Return the mean of the cells' means; missing where one is missing.

    Its spread is that over the seeds which all cells have, of their mean over the data sets.
    """
    if len(cells) == 1:
        return cells[0]
    there = [cell for cell in cells if cell.mean is not None] or [*cells]
    first, whole = there[0], all(cell.mean is not None for cell in cells)
    if not whole:
        return TableCell(first.metric, digits=first.digits, average=True)
    values = tuple(one for cell in cells for one in cell.values)
    seeds = [mean(column) or 0.0 for column in _by_seed(values)]
    return TableCell(
        first.metric, mean(cell.mean for cell in cells), sample_std(seeds),
        t_interval(seeds) if ci else None, len(seeds), len(seeds), digits=first.digits,
        average=True, fewer=any(cell.fewer for cell in cells), values=values,
        answers=tuple(one for cell in cells for one in cell.answers),
    )


def harmonic_of_averages(
    like: TableCell, parts: Sequence[Sequence[TableCell]], ci: bool = False
) -> TableCell:
    """Return H of the averages: the harmonic mean of each part's mean over the data sets.

    Args:
        like: the mean of the sets' H, for its metric and its marks.
        parts: for each part of the harmonic mean (``base_all``, ``new``) its cells.

    As in CoOp's and MaPLe's tables; the spread is over seeds, of H of that seed's averages.
    """
    means = [average(cells) for cells in parts]
    if not means or any(cell.mean is None for cell in (like, *means)):
        return TableCell(like.metric, digits=like.digits, average=True)
    columns = [[mean(column) or 0.0 for column in _by_seed(cell.values)] for cell in means]
    seeds = [harmonic(numbers) for numbers in zip(*columns, strict=False)]
    same = len({len(column) for column in columns}) == 1
    return replace(
        like, mean=harmonic([cell.mean or 0.0 for cell in means]), values=(), answers=(), rank=0,
        std=sample_std(seeds) if same else None, ci=t_interval(seeds) if same and ci else None,
    )


def harmonic(numbers: Sequence[float]) -> float:
    """Return the harmonic mean; 0 where a number is."""
    return 0.0 if min(numbers) <= 0 else len(numbers) / sum(1 / number for number in numbers)


def _by_seed(values: Sequence[Seeds]) -> list[list[float]]:
    """Return for each seed that all data sets have its values there."""
    common = set(values[0]).intersection(*values[1:]) if values else set()
    return [[one[seed] for one in values] for seed in sorted(common, key=str)]


def mark_best(
    grid: CellRows, row_keys: Sequence[str], col_keys: Sequence[str], rivals: Sequence[bool]
) -> tuple[CellRows, list[int]]:
    """Mark the best of each column, or of each row where the columns are the methods.

    Args:
        rivals: for each row, or column where those are the methods, whether it competes;
            references do not.

    Returns:
        The cells, and the columns (or rows) with several rivals and no seed that all have.
    """
    across = "trainer" in col_keys
    if not grid or NOT_RIVALS & {*(col_keys if across else row_keys)}:
        return grid, []
    ranked = [rank_cells(one, rivals) for one in (grid if across else zip(*grid, strict=True))]
    marked = [cells for cells, _ in ranked]
    apart = [at for at, (_, comparable) in enumerate(ranked) if not comparable]
    return tuple(marked if across else zip(*marked, strict=True)), apart


def rank_cells(
    cells: Sequence[TableCell], rivals: Sequence[bool]
) -> tuple[tuple[TableCell, ...], bool]:
    """Mark the best where it is significantly better than all others in pairs, else its peers.

    Cells with fewer seeds do not compete. Where none is significantly worse than the best there is
    no mark.

    Returns:
        The cells, and whether they can be compared: one alone can, several with a common seed.
    """
    there = [at for at, cell in enumerate(cells)
             if rivals[at] and cell.mean is not None and cell.values and not cell.fewer]
    if len(there) < 2:
        return tuple(cells), True
    meant = metric(cells[there[0]].metric)
    answers = [cells[at].answers for at in there]
    whole = all(len(one) == len(cells[at].values) for one, at in zip(answers, there, strict=True))
    verdict = leaders([cells[at].values for at in there], meant.lower, meant.counted,
                      answers if whole else None)
    if verdict is None or not verdict.beaten:
        return tuple(cells), verdict is not None
    best, peers = verdict.best, verdict.peers
    marks = {there[at]: PEER for at in (best, *peers)} if peers else {there[best]: BEST}
    return tuple(replace(cell, rank=marks.get(at, 0)) for at, cell in enumerate(cells)), True
