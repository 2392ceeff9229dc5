"""The scheduler of cells: who may begin, what is written down and shown when a cell ends.

Workers are started in two ways, as processes of this machine (``processes``) or as jobs of a batch
system (``jobs``); both give cells to workers that are free and report how each cell ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedvlm.sweep.cells import Cell
from fedvlm.sweep.worker import Outcome


class Watcher(Protocol):
    """What shows the cells' progress."""

    def started(self, cell: Cell) -> None:
        """A worker took a cell."""

    def ended(self, cell: Cell, outcome: Outcome) -> None:
        """A cell ended, well or not."""


class AttemptLog(Protocol):
    """Where attempts are written down (``state.Journal`` is a sweep's)."""

    def log(self, cell: Cell) -> Path:
        """Return where a cell's screen goes."""

    def add(self, cell: Cell, outcome: Outcome) -> None:
        """Write down an attempt that ended."""


@dataclass(frozen=True)
class Ending:
    """A cell that ended; ``written``: its worker has written it down itself."""

    cell: Cell
    outcome: Outcome
    written: bool = False


class CellWorkers(Protocol):
    """What computes cells."""

    @property
    def busy(self) -> bool:
        """Whether a cell is with a worker."""
        ...

    def give(self, left: list[Cell], log: AttemptLog, watcher: Watcher) -> None:
        """Take as many cells out of ``left`` as there is room for, and let workers begin them."""

    def look(self) -> Iterator[Ending]:
        """Look at the workers once, after a moment; yield the cells that have ended."""
        ...

    def stop(self) -> None:
        """Let the workers save and leave (Ctrl-C)."""

    def close(self) -> None:
        """Let go of the workers."""


class Scheduler:
    """Runs cells to their end.

    Args:
        workers: what computes them.
        log: told of every attempt.
        allowed: whether a cell may begin now; one that may not is left out for good.
    """

    def __init__(
        self, workers: CellWorkers, log: AttemptLog, watcher: Watcher,
        allowed: Callable[[Cell], bool] = lambda cell: True,
    ) -> None:
        self.workers, self.log, self.watcher, self.allowed = workers, log, watcher, allowed
        self.left: list[Cell] = []

    def run(self, cells: Sequence[Cell]) -> None:
        """Run all cells to their end; a watcher may ``add`` more when one has ended.

        Raises:
            KeyboardInterrupt: the workers have saved what they had and are gone; jobs of a batch
                system go on.
        """
        self.add(cells)
        try:
            self._give()
            while self.workers.busy:
                for ending in self.workers.look():
                    if not ending.written:
                        self.log.add(ending.cell, ending.outcome)
                    self.watcher.ended(ending.cell, ending.outcome)
                self._give()
        except KeyboardInterrupt:
            self.workers.stop()
            raise
        finally:
            self.workers.close()

    def add(self, cells: Iterable[Cell]) -> None:
        """Let more cells be run."""
        self.left += cells

    def _give(self) -> None:
        self.left = [cell for cell in self.left if self.allowed(cell)]
        self.workers.give(self.left, self.log, self.watcher)
