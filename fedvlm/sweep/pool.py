"""The worker processes of a sweep: who gets which cell, and what happens when one dies.

A sweep's worker process: takes one cell after another, and dies with its parent.

Imports nothing heavy at the top: the threads are set, and the parent is watched, before PyTorch is
loaded. Ctrl-C reaches the parent alone, which asks the workers to stop (SIGTERM).
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedvlm.console.guard import guarded
from fedvlm.sweep.cells import Cell
from fedvlm.sweep.state import Journal, Outcome

if TYPE_CHECKING:
    from fedvlm.job.build import Maker

INTERRUPTED = 130


@dataclass(frozen=True)
class Task:
    """One cell for a worker: its command line, its config's digest, where its screen goes."""

    number: int
    words: tuple[str, ...]
    digest: str
    log: Path
    device: str = ""


@dataclass(frozen=True)
class Answer:
    """How it ended; see ``cli_sweep_state.Outcome``."""

    number: int
    code: int
    sentence: str
    seconds: float
    peak_mib: float | None


def serve(tasks: Any, threads: int) -> None:
    """Run the cells that come through the pipe ``tasks`` until None comes, or the parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    os.environ["OMP_NUM_THREADS"] = str(threads)
    with contextlib.suppress(KeyboardInterrupt, EOFError, BrokenPipeError):
        try:
            import torch

            torch.set_num_threads(threads)
            from fedvlm.job.maker import Memo

            memo = Memo()
        except Exception as error:  # a broken installation is said of the cell, in one sentence
            refused = f"the worker could not start: {type(error).__name__}: {error}"
            while (task := tasks.recv()) is not None:
                tasks.send(Answer(task.number, 1, refused, 0.0, None))
            return
        while (task := tasks.recv()) is not None:
            answer = do(task, memo)
            tasks.send(answer)
            if answer.code == INTERRUPTED:
                return


def _die_with_parent() -> None:
    """Wait for the parent's death; what a run has saved by then is whole (see ``runs``)."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def do(task: Task, maker: Maker | None) -> Answer:
    """Run a cell with everything it writes to the screen in its log."""
    began = time.monotonic()
    _forget_peak()
    words = [*task.words, *(["DEVICE", task.device] if task.device else [])]
    sys.argv = ["fedvlm", *words]  # the manifest names the command that repeats the run
    with _screen_in(task.log):
        code = guarded(lambda: _job(words, task.digest, maker), words)
    sentence = _last_error(task.log) if code not in (0, INTERRUPTED) else ""
    return Answer(task.number, code, sentence, time.monotonic() - began, _peak())


def _job(words: list[str], digest: str, maker: Maker | None) -> int:
    from fedvlm.console.screen import complain
    from fedvlm.job.build import identity_config
    from fedvlm.job.flags import parse
    from fedvlm.job.resolve import resolve
    from fedvlm.job.run import run_job
    from fedvlm.runs.identity import identity_digest

    args = parse(words[1:])
    asked = resolve(args)
    complain(*asked.notes, prefix="note")
    (job,) = asked.jobs
    if identity_digest(identity_config(job.cfg)) != digest:
        raise RuntimeError("the cell's command line gives another config than its plan")
    return run_job(job.cfg, job.origins, args, maker)


@contextlib.contextmanager
def _screen_in(path: Path) -> Any:
    """Let stdout and stderr, of C code too, go to a file for the block."""
    kept = []
    with path.open("ab") as log:
        for stream, handle in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            kept.append(os.dup(handle))
            os.dup2(log.fileno(), handle)
        faulthandler.enable(file=log.fileno())
        try:
            yield
        finally:
            faulthandler.disable()
            for stream, handle, old in zip((sys.stdout, sys.stderr), (1, 2), kept, strict=True):
                stream.flush()
                os.dup2(old, handle)
                os.close(old)


def _last_error(log: Path) -> str:
    """Return the last sentence that the run complained with."""
    lines = log.read_text("utf-8", errors="replace").splitlines()
    errors = [line.partition(": ")[2] for line in lines if line.startswith("error: ")]
    return errors[-1] if errors else (lines[-1] if lines else "no message")


def _forget_peak() -> None:
    """Begin a new peak of resident memory, where the system can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> float | None:
    """Return the peak of resident memory in MiB."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    scale = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


TICK = 0.25  # seconds between two looks at the screen
PATIENCE = 60.0  # seconds for a round to end after Ctrl-C


class Watcher(Protocol):
    """Who wants to know."""

    def started(self, cell: Cell) -> None:
        """A worker took a cell."""

    def ended(self, cell: Cell, outcome: Outcome) -> None:
        """A cell ended, well or not."""


class Worker:
    """One process and the cell it works on."""

    def __init__(self, threads: int, device: str) -> None:
        self.device, self.group, self.cell = device, "", None
        self.began = 0.0
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, threads), daemon=True)
        self.process.start()
        theirs.close()  # so that its death closes the pipe

    cell: Cell | None

    def give(self, cell: Cell, journal: Journal) -> None:
        """Hand over a cell."""
        self.cell, self.group, self.began = cell, cell.group, time.monotonic()
        log = journal.log(cell)
        log.unlink(missing_ok=True)
        self.pipe.send(Task(cell.number, cell.words, cell.digest, log, self.device))

    def outcome(self) -> Outcome | None:
        """Return how the cell ended, also where the worker died over it; None: it still works."""
        try:
            if not self.pipe.poll():
                return None
            answer: Answer = self.pipe.recv()
            return Outcome(answer.code, answer.sentence, answer.seconds, answer.peak_mib)
        except (EOFError, OSError):
            self.process.join()
            return Outcome(*self._death(), time.monotonic() - self.began)

    def _death(self) -> tuple[int, str]:
        code = self.process.exitcode or 0
        if code >= 0:
            return code or 1, f"its worker ended with exit code {code} before the cell was done"
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
            more = " (the system does that when memory runs out)" if name == "SIGKILL" else ""
            return code, f"its worker was killed by {name}{more}"
        return code, f"its worker was killed by signal {-code}"

    def stop(self) -> None:
        """Ask the process to save and leave (SIGTERM)."""
        if self.process.is_alive():
            self.process.terminate()

    def end(self, patience: float) -> None:
        """Wait for the process to leave; kill it in the end."""
        self.process.join(patience)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


class Pool:
    """Runs cells in ``jobs`` workers; a worker that dies is replaced.

    Args:
        journal: told of every attempt.
        threads: of each worker.
        devices: dealt to the workers in turn; empty leaves each cell's own.
        start: makes a worker (tests replace it).
    """

    def __init__(
        self, jobs: int, journal: Journal, watcher: Watcher, *, threads: int,
        devices: Sequence[str] = (), start: Callable[[int, str], Worker] = Worker,
    ) -> None:
        self.jobs, self.journal, self.watcher = jobs, journal, watcher
        self.threads, self.devices, self.start = threads, tuple(devices), start
        self.workers: list[Worker] = []

    def run(self, cells: Sequence[Cell]) -> None:
        """Run all cells to their end.

        Raises:
            KeyboardInterrupt: the workers have saved what they had and are gone.
        """
        left = list(cells)
        try:
            for i in range(min(self.jobs, len(left))):
                self.workers.append(self._new(i))
            for worker in self.workers:
                self._next(worker, left)
            while busy := [w for w in self.workers if w.cell is not None]:
                connection.wait([w.pipe for w in busy], TICK)
                for worker in busy:
                    self._look(worker, left)
        except KeyboardInterrupt:
            self._stop()
            raise
        finally:
            self._close()

    def _new(self, i: int) -> Worker:
        return self.start(self.threads, self.devices[i % len(self.devices)] if self.devices else "")

    def _look(self, worker: Worker, left: list[Cell]) -> None:
        outcome, cell = worker.outcome(), worker.cell
        if outcome is None or cell is None:
            return
        worker.cell = None
        self.journal.add(cell, outcome)
        self.watcher.ended(cell, outcome)
        if not left:
            return
        if not worker.process.is_alive():
            at = self.workers.index(worker)
            worker.end(0)
            worker = self.workers[at] = self._new(at)
        self._next(worker, left)

    def _next(self, worker: Worker, left: list[Cell]) -> None:
        """Give a worker the first cell that shares its data, else one that nobody else's shares."""
        if not left:
            return
        others = {w.group for w in self.workers if w is not worker}
        same = [c for c in left if c.group == worker.group]
        free = [c for c in left if c.group not in others]
        cell = (same or free or left)[0]
        left.remove(cell)
        self.watcher.started(cell)
        with contextlib.suppress(BrokenPipeError):  # it died: the next look says so
            worker.give(cell, self.journal)

    def _stop(self) -> None:
        """After Ctrl-C: let the workers save; a second Ctrl-C does not wait for that."""
        for worker in self.workers:
            worker.stop()
        deadline = time.monotonic() + PATIENCE
        with contextlib.suppress(KeyboardInterrupt):
            for worker in self.workers:
                worker.process.join(max(0.0, deadline - time.monotonic()))

    def _close(self) -> None:
        for worker in self.workers:
            if worker.cell is None:
                with contextlib.suppress(OSError):
                    worker.pipe.send(None)
            worker.end(10.0 if worker.cell is None else 0.0)


def usual_threads(jobs: int, environ: Any, cores: int) -> int:
    """Return the threads of each worker: ``OMP_NUM_THREADS``, else the cores shared out."""
    word = str(environ.get("OMP_NUM_THREADS", ""))
    if word.isascii() and word.isdigit() and int(word) > 0:
        return int(word)
    return max(1, cores // jobs)
