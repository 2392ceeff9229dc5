"""A sweep's worker process: takes one cell after another, and dies with its parent.

Imports nothing heavy at the top: the threads are set, and the parent is watched, before PyTorch is
loaded. Ctrl-C reaches the parent alone, which asks the workers to stop (SIGTERM).
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedvlm.console.guard import exit_code_of
from fedvlm.console.screen import complain
from fedvlm.core.signals import STOPS, install_handlers
from fedvlm.core.threads import begin_peak, peak_mib

if TYPE_CHECKING:
    from fedvlm.job.inputs import Inputs

INTERRUPTED = 130
BEAT = 1.0  # seconds between two signs of life


@dataclass(frozen=True)
class WorkOrder:
    """One cell for a worker: its command line, its config's digest, where its screen goes.

    ``task``, ``package.module:function``, does something else with it than the main job: called
    with words, digest and inputs, which stay in the worker; what it returns goes to the parent.
    """

    words: tuple[str, ...]
    digest: str
    log: Path
    device: str = ""
    task: str = ""


@dataclass(frozen=True)
class Outcome:
    """How an attempt at a cell ended.

    Attributes:
        code: exit code of the run; negative: the signal that killed its worker.
        sentence: what went wrong; empty for nothing.
        seconds: wall time of the attempt.
        peak_mib: largest resident memory of the worker since its run began; None where unknown.
        answer: what another task than the main job returned.
    """

    code: int
    sentence: str
    seconds: float
    peak_mib: float | None = None
    answer: Any = None


def serve_cells(pipe: Any, threads: int, beat: Any) -> None:
    """Run the cells that come through ``pipe`` until None comes, or the parent dies.

    Args:
        beat: a shared counter that moves as long as this process is at work.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    install_handlers()
    threading.Thread(target=_die_with_parent, daemon=True).start()
    threading.Thread(target=_count, args=(beat,), daemon=True).start()
    os.environ["OMP_NUM_THREADS"] = str(threads)
    gc.disable()  # modules that are loaded hold nothing to collect
    with contextlib.suppress(KeyboardInterrupt, EOFError, ConnectionError):
        try:
            import torch  # start-up: after the number of threads is set

            torch.set_num_threads(threads)
            from fedvlm.job.inputs import SharedInputs  # start-up: PyTorch

            inputs = SharedInputs()
        except Exception as error:  # a broken installation: one message for the cell
            refusal = f"the worker could not start: {type(error).__name__}: {error}"
            while pipe.recv() is not None:
                pipe.send(Outcome(1, refusal, 0.0))
            return
        finally:
            gc.enable()
        settled = False
        while (assignment := pipe.recv()) is not None:
            outcome = run_cell(assignment, inputs)
            pipe.send(outcome)
            if outcome.code == INTERRUPTED:
                return
            gc.collect()  # what this cell leaves
            if not settled:  # no later collection walks modules, nor the data that cells share
                gc.freeze()
                inputs.settled = True
            settled = True


def serve_and_leave(
    serve: Callable[[Any, int, Any], None], pipe: Any, threads: int, beat: Any
) -> None:
    """Call ``serve`` (``serve_cells``), then end the process as it stands.

    The teardown of libraries whose work was stopped writes to the screen what they never freed.
    """
    serve(pipe, threads, beat)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def run_cell(assignment: WorkOrder, inputs: Inputs | None) -> Outcome:
    """Run a cell with everything it writes to the screen in its log."""
    began = time.monotonic()
    begin_peak()
    device = ["DEVICE", assignment.device] if assignment.device else []
    words = [*assignment.words, *device]
    sys.argv = ["fedvlm", *words]  # the manifest names the command that repeats the run
    answer: list[Any] = []

    def task() -> int:
        if not assignment.task:
            return _job(words, assignment.digest, inputs)
        module, _, name = assignment.task.partition(":")
        answer.append(getattr(import_module(module), name)(words, assignment.digest, inputs))
        return 0

    with _screen_in(assignment.log):
        code = exit_code_of(task, words)
    code = INTERRUPTED if code in (128 + signum for signum in STOPS) else code
    sentence = _last_error(assignment.log) if code not in (0, INTERRUPTED) else ""
    return Outcome(code, sentence, time.monotonic() - began, peak_mib(), *answer)


def _job(words: list[str], digest: str, inputs: Inputs | None) -> int:
    from fedvlm.job.flags import parse  # start-up: PyTorch, as all of these
    from fedvlm.job.identity import identity_config  # start-up: PyTorch
    from fedvlm.job.resolve import resolve  # start-up: PyTorch
    from fedvlm.job.run import run_job  # start-up: PyTorch
    from fedvlm.runs.identity import identity_digest  # start-up: PyTorch

    jobs = resolve(parse(words[1:]))
    complain(*jobs.notes, prefix="note")
    (job,) = jobs.jobs
    if identity_digest(identity_config(job.cfg)) != digest:
        raise RuntimeError("the cell's command line and its plan give different configs")
    run_job(job, jobs.request, inputs)
    return 0


def _count(beat: Any) -> None:
    while True:
        beat.value += 1
        time.sleep(BEAT)


def _die_with_parent() -> None:
    """Wait for the parent's death; what a run has saved by then is whole (see ``runs``)."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


@contextlib.contextmanager
def _screen_in(path: Path) -> Iterator[None]:
    """Let stdout and stderr, of C code too, go to a file for the block."""
    before = []
    with path.open("ab") as log:
        for stream, handle in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            before.append(os.dup(handle))
            os.dup2(log.fileno(), handle)
        faulthandler.enable(file=log.fileno())
        try:
            yield
        finally:
            faulthandler.disable()
            for stream, handle, old in zip((sys.stdout, sys.stderr), (1, 2), before, strict=True):
                stream.flush()
                os.dup2(old, handle)
                os.close(old)


def _last_error(log: Path) -> str:
    """Return the last error message of the run."""
    lines = log.read_text("utf-8", errors="replace").splitlines()
    errors = [line.partition(": ")[2] for line in lines if line.startswith("error: ")]
    return errors[-1] if errors else (lines[-1] if lines else "no message")
