"""A sweep's worker process that loads nothing heavy, for tests of real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

from fedvlm.core import signals
from fedvlm.sweep.worker import Outcome


def light(tasks: Any, threads: int, beat: Any) -> None:
    """Serve as ``sweep.worker.serve_cells`` does; a cell's first word says what happens to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(KeyboardInterrupt, EOFError):
        signals.install_handlers()
        while (task := tasks.recv()) is not None:
            what = task.words[0]
            if what == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "leave":
                os._exit(7)
            if what == "quit":
                os._exit(0)  # as a worker that is stopped before its cell begins
            if what == "wait":
                Path(task.log).write_text("waiting")
                time.sleep(60)
            if what == "freeze":
                os.kill(os.getpid(), signal.SIGSTOP)
            if what == "busy":
                for _ in range(600):
                    beat.value += 1
                    time.sleep(0.1)
            if what == "save":
                Path(task.log).write_text("working")
                while not signals.save_asked():
                    time.sleep(0.02)
            sentence = "no luck" if what == "fail" else ""
            tasks.send(Outcome(int(what == "fail"), sentence, 0.5, os.getpid()))
