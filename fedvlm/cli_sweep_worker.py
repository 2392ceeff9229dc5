"""A sweep's worker process: takes one cell after another, and dies with its parent.

Imports nothing heavy at the top: the threads are set, and the parent is watched, before PyTorch is
loaded. Ctrl-C reaches the parent alone, which asks the workers to stop (SIGTERM).
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import signal
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedvlm.cli_build import Maker

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
            from fedvlm.cli_sweep_memo import Memo

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
    from fedvlm import cli

    began = time.monotonic()
    _forget_peak()
    words = [*task.words, *(["DEVICE", task.device] if task.device else [])]
    sys.argv = ["fedvlm", *words]  # the manifest names the command that repeats the run
    with _screen_in(task.log):
        code = cli.guarded(lambda: _job(words, task.digest, maker), words)
    sentence = _last_error(task.log) if code not in (0, INTERRUPTED) else ""
    return Answer(task.number, code, sentence, time.monotonic() - began, _peak())


def _job(words: list[str], digest: str, maker: Maker | None) -> int:
    from fedvlm.cli_build import identity_config
    from fedvlm.cli_config import resolve
    from fedvlm.cli_flags import parse
    from fedvlm.cli_run import run_job
    from fedvlm.console import complain
    from fedvlm.run_names import identity_digest

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
