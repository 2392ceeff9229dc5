"""One cell of a table, and its words; how they are set in bold is the renderer's business."""

from __future__ import annotations

from dataclasses import dataclass

from fedvlm.report.table_metrics import metric

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
