"""A job of a batch system: cells one after another in a worker, with stops and requeues between.

What travels to the node is a ``Task`` (a pickle of plain values). It holds no progress: finished
cells are seen in their run folders, and a run that was begun goes on after its last saved round.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedvlm.console.screen import say
from fedvlm.core.errors import FedvlmError
from fedvlm.sweep.cells import Cell
from fedvlm.sweep.processes import Processes
from fedvlm.sweep.scheduler import Scheduler
from fedvlm.sweep.state import DONE, Journal, cell_state
from fedvlm.sweep.worker import INTERRUPTED, Outcome


@dataclass
class Task:
    """Cells for one job.

    Attributes:
        name, output: of the sweep.
        cells: in order; those that are done are passed over.
        threads: of the worker.
        timeout: seconds that a cell may take; 0 for any time.
        patience: seconds between a stop of the worker and the end of the job.
    """

    name: str
    output: Path
    cells: tuple[Cell, ...]
    threads: int = 1
    timeout: float = 0
    patience: float = 600.0
    _over: set[int] = field(default_factory=set, repr=False)
    _workers: Processes | None = field(default=None, repr=False)

    def __call__(self) -> int:
        """Run the cells; return how many were tried here."""
        journal = Journal(self.output, self.name, self.cells[0].number)
        journal.mend()
        todo = [c for c in self.cells if not is_done(c)]
        self._workers = Processes(1, threads=self.threads, timeout=self.timeout)
        Scheduler(self._workers, journal, self).run(todo)
        return len(todo)

    def checkpoint(self) -> Any:
        """Stop the worker, which saves its last whole round, and return what is to be queued again.

        ``submitit`` calls it on the signal that comes before a time limit or a preemption.
        """
        from submitit.helpers import DelayedSubmission  # optional: fedvlm[slurm]

        if self._workers is not None:
            self._workers.stop()
        rest = tuple(c for c in self.cells if c.number not in self._over)
        again = replace(self, cells=rest or self.cells, _over=set(), _workers=None)
        return DelayedSubmission(again)

    def started(self, cell: Cell) -> None:
        """See ``Watcher``."""
        say(f"{cell}: begins")

    def ended(self, cell: Cell, outcome: Outcome) -> None:
        """See ``Watcher``; after a stop that was not ours the system's next step is waited for.

        Raises:
            FedvlmError: there is none.
        """
        say(f"{cell}: {outcome.sentence or f'ended with exit code {outcome.code}'}")
        if outcome.code != INTERRUPTED:
            self._over.add(cell.number)
            return
        end = time.monotonic() + self.patience  # a preemption or scancel: it kills, or warns first
        while time.monotonic() < end:
            time.sleep(min(1.0, self.patience))
        raise FedvlmError(f"{cell}: its worker was stopped by a signal and not restarted")


def is_done(cell: Cell) -> bool:
    """Say whether a cell is done; what is wrong with its folder its own run says, in its log."""
    try:
        return cell_state(cell, None).name == DONE
    except FedvlmError:
        return False
