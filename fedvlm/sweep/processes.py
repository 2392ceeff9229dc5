"""Workers that are processes of this machine: which gets which cell, what happens if one dies."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection

import torch

from fedvlm.core.signals import SAVE, STOPS, save_asked
from fedvlm.job.build import find_device
from fedvlm.sweep.cells import Cell
from fedvlm.sweep.scheduler import AttemptLog, Ending, Watcher
from fedvlm.sweep.worker import INTERRUPTED, Outcome, WorkOrder, serve_and_leave, serve_cells

WARNING = signal.SIGUSR2
TICK = 0.25  # seconds between two looks at the screen
PATIENCE = 60.0  # seconds for a round to end after Ctrl-C
SILENCE = 120.0  # seconds without a sign of life after which a worker is given up
GAP = 1.0  # more time than this between two looks, and the pool itself was stopped (Ctrl-Z)


class Worker:
    """One process and the cell it works on; ``task``: see ``WorkOrder``."""

    def __init__(self, threads: int, device: str, task: str = "") -> None:
        self.device, self.task, self.group, self.began = device, task, "", 0.0
        self.cell: Cell | None = None
        self.verdict, self.heard, self.silent, self.spent = "", 0, 0.0, 0.0
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.beat = context.Value("Q", 0, lock=False)
        self.process = context.Process(
            target=serve_and_leave, args=(serve_cells, theirs, threads, self.beat), daemon=True
        )
        # SAVE until it listens; a batch system's warning is for the pool, never for a worker
        signal.pthread_sigmask(signal.SIG_BLOCK, {SAVE, WARNING})
        self.process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {SAVE, WARNING})
        theirs.close()  # so that its death closes the pipe

    def give(self, cell: Cell, attempts: AttemptLog) -> None:
        """Hand over a cell."""
        self.cell, self.group, self.began = cell, cell.group, time.monotonic()
        self.silent = self.spent = 0.0
        log = attempts.log(cell)
        log.unlink(missing_ok=True)
        self.pipe.send(WorkOrder(cell.words, cell.digest, log, self.device, self.task))

    def outcome(self) -> Outcome | None:
        """Return how the cell ended, also where the worker died over it; None: it still works."""
        try:
            if not self.pipe.poll():
                return None
            outcome: Outcome = self.pipe.recv()
            return outcome
        except (EOFError, OSError):
            self.process.join()
            code, sentence = self._death()
            return Outcome(code, self.verdict or sentence, time.monotonic() - self.began)

    def watch(self, passed: float, limit: float) -> None:
        """Kill a worker that shows no sign of life, or whose cell takes longer than ``limit``.

        Args:
            passed: seconds since the last look, in which the pool was at work itself.
            limit: seconds for a cell; 0 for none.
        """
        heard = self.beat.value
        self.silent = 0.0 if heard != self.heard else self.silent + passed
        self.heard, self.spent = heard, self.spent + passed
        if self.silent > SILENCE:
            self.verdict = f"its worker gave no sign of life for {SILENCE:g} s and was killed"
        elif limit and self.spent > limit:
            self.verdict = f"it ran longer than --cell-timeout {limit:g} s and was killed"
        if self.verdict:
            self.process.kill()

    def _death(self) -> tuple[int, str]:
        code = self.process.exitcode or 0
        if code in (0, *(-stop for stop in STOPS)):  # asked to leave before its cell began
            return INTERRUPTED, "its worker was stopped"
        if code > 0:
            return code, f"its worker ended with exit code {code} before the cell was done"
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
            more = " (the system does that when memory runs out)" if name == "SIGKILL" else ""
            return code, f"its worker was killed by {name}{more}"
        return code, f"its worker was killed by signal {-code}"

    def save(self) -> None:
        """Ask the process to save after its round."""
        if self.process.is_alive() and self.process.pid is not None:
            os.kill(self.process.pid, SAVE)

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


def deal_devices(asked: Sequence[str], cells: Sequence[Cell], jobs: int) -> tuple[str, ...]:
    """Return the devices that are dealt to so many workers: those asked for, else all GPUs.

    None are dealt, and each cell keeps its own, where one names another device, or deals workers
    of its own over the GPUs (``FED.ENGINE workers``).

    Raises:
        ConfigError: a device that is not on this machine.
    """
    own = {cell.device for cell in cells}
    for name in asked or sorted(own):
        find_device(name)
    free = own <= {"auto", "cuda"} and all(cell.engine == "local" for cell in cells)
    if asked or jobs == 1 or not free or not torch.cuda.is_available():
        return tuple(asked)
    count = torch.cuda.device_count()
    return tuple(f"cuda:{i}" for i in range(count)) if count > 1 else ()


class Processes:
    """Up to ``count`` worker processes; one that dies is replaced (``scheduler.CellWorkers``).

    Args:
        threads: of each worker.
        devices: dealt to the workers in turn; empty leaves each cell's own.
        timeout: seconds that a cell may take; 0 for any time.
        start: makes a worker (tests replace it).
    """

    def __init__(
        self, count: int, *, threads: int, devices: Sequence[str] = (), timeout: float = 0,
        start: Callable[[int, str], Worker] = Worker,
    ) -> None:
        self.count, self.threads, self.devices = count, threads, tuple(devices)
        self.timeout, self.start = timeout, start
        self.workers: list[Worker] = []
        self._looked = time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether a worker has a cell."""
        return any(worker.cell is not None for worker in self.workers)

    def give(self, left: list[Cell], log: AttemptLog, watcher: Watcher) -> None:
        """Give every idle worker a cell, as long as there are any; a dead one is replaced."""
        if not self.busy:
            self._looked = time.monotonic()
        while left and len(self.workers) < self.count and all(w.cell for w in self.workers):
            self.workers.append(self._new(len(self.workers)))
            self._next(self.workers[-1], left, log, watcher)
        for at, worker in enumerate(self.workers):
            if left and worker.cell is None:
                if worker.verdict or not worker.process.is_alive():  # killed, perhaps not dead yet
                    worker.end(0)
                    worker = self.workers[at] = self._new(at)
                self._next(worker, left, log, watcher)

    def look(self) -> Iterator[Ending]:
        """Wait for a moment, or a worker; yield the cells that have ended."""
        busy = [worker for worker in self.workers if worker.cell is not None]
        connection.wait([worker.pipe for worker in busy], TICK)
        if save_asked():
            for worker in busy:
                worker.save()
        passed, self._looked = time.monotonic() - self._looked, time.monotonic()
        for worker in busy:
            worker.watch(min(passed, GAP), self.timeout)
            outcome, cell = worker.outcome(), worker.cell
            if outcome is not None and cell is not None:
                worker.cell = None
                yield Ending(cell, outcome)

    def _new(self, i: int) -> Worker:
        return self.start(self.threads, self.devices[i % len(self.devices)] if self.devices else "")

    def _next(self, worker: Worker, left: list[Cell], log: AttemptLog, watcher: Watcher) -> None:
        """Give a worker the first cell that shares its data, else one that no other's shares."""
        others = {w.group for w in self.workers if w is not worker}
        same = [c for c in left if c.group == worker.group]
        free = [c for c in left if c.group not in others]
        cell = (same or free or left)[0]
        left.remove(cell)
        watcher.started(cell)
        with contextlib.suppress(BrokenPipeError):  # it died: the next look says so
            worker.give(cell, log)

    def stop(self) -> None:
        """Let the workers save and leave; a Ctrl-C meanwhile does not wait for that."""
        for worker in self.workers:
            worker.stop()
        deadline = time.monotonic() + PATIENCE
        with contextlib.suppress(KeyboardInterrupt):
            for worker in self.workers:
                worker.process.join(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Let idle workers leave; end those that still have a cell."""
        for worker in self.workers:
            if worker.cell is None:
                with contextlib.suppress(OSError):
                    worker.pipe.send(None)
            worker.end(10.0 if worker.cell is None else 0.0)
