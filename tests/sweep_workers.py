"""Workers of a sweep without processes, for tests of what a sweep does with its cells."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

from fedvlm.sweep.pool import Pool, Task, Worker, do

MAKERS: list[Any] = []  # the memos of the workers made so far


class InProcess:
    """A worker without a process: a cell is run when it is given; its memo is kept as usual."""

    cell: Any = None

    def __init__(self, threads: int, device: str) -> None:
        from multiprocessing import Pipe

        from fedvlm.job.maker import Memo

        self.group, self.began, self.device, self.memo = "", 0.0, device, Memo()
        self.process = SimpleNamespace(is_alive=lambda: True)
        self.pipe, self.other = Pipe()
        MAKERS.append(self.memo)

    def give(self, cell: Any, journal: Any) -> None:
        self.cell, self.group = cell, cell.group
        log = journal.log(cell)
        log.unlink(missing_ok=True)
        with (  # what the run says goes to the handles, which ``do`` turns to the log
            open(1, "w", closefd=False) as out, open(2, "w", closefd=False) as err,  # noqa: PTH123
            contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
        ):
            self.other.send(do(Task(cell.number, cell.words, cell.digest, log), self.memo))

    outcome = Worker.outcome

    def stop(self) -> None:
        """Nothing runs between two cells."""

    def end(self, patience: float) -> None:
        self.pipe.close()
        self.other.close()


def pool(*args: Any, **more: Any) -> Pool:
    """Return a ``Pool`` of such workers."""
    return Pool(*args, **more, start=InProcess)
