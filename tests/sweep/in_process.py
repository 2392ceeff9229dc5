"""Workers of a sweep without processes, for tests of what a sweep does with its cells."""

from __future__ import annotations

import contextlib
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any

from fedvlm.job.inputs import SharedInputs
from fedvlm.sweep.processes import Processes, Worker
from fedvlm.sweep.worker import WorkOrder, run_cell

INPUTS: list[Any] = []  # those of the workers made so far


class InProcess:
    """A worker without a process: a cell is run when it is given; its inputs are kept as usual."""

    cell: Any = None
    verdict = ""

    def __init__(self, threads: int, device: str) -> None:
        self.group, self.began, self.device, self.inputs = "", 0.0, device, SharedInputs()
        self.process = SimpleNamespace(is_alive=lambda: True)
        self.pipe, self.other = Pipe()
        INPUTS.append(self.inputs)

    def give(self, cell: Any, journal: Any) -> None:
        self.cell, self.group = cell, cell.group
        log = journal.log(cell)
        log.unlink(missing_ok=True)
        with (  # what the run says goes to the handles, which ``work`` turns to the log
            open(1, "w", closefd=False) as out, open(2, "w", closefd=False) as err,  # noqa: PTH123
            contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
        ):
            self.other.send(run_cell(WorkOrder(cell.words, cell.digest, log), self.inputs))

    outcome = Worker.outcome

    def watch(self, passed: float, limit: float) -> None:
        """What runs here cannot fall silent."""

    def save(self) -> None:
        """Nothing runs between two cells."""

    def stop(self) -> None:
        """Nothing runs between two cells."""

    def end(self, patience: float) -> None:
        self.pipe.close()
        self.other.close()


def processes(*args: Any, **more: Any) -> Processes:
    """Return ``Processes`` of such workers."""
    return Processes(*args, **more, start=InProcess)
