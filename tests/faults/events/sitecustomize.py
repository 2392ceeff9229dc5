"""Lets something happen to a process of a run, at a place of its work; once for each event.

Python imports this file by its name where its folder is in PYTHONPATH. ``FEDVLM_EVENTS`` is a
folder: ``events.json`` has a list of ``[who, place, kind, nth]``, and of each event that happened a
file ``N.done``.
"""

from __future__ import annotations

import errno
import importlib.machinery
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("FEDVLM_EVENTS", "/nowhere"))
SLOW = 2.0  # seconds
WHO = ("worker" if "fedvlm.job.workers" in sys.orig_argv
       else "site" if "serve" in sys.orig_argv else "driver")
seen: dict[int, int] = {}


def happen(place: str, full: Callable[[], None]) -> None:
    """Do what is due at a place."""
    events = json.loads((FOLDER / "events.json").read_text())
    for at, (who, where, kind, nth) in enumerate(events):
        if (who, where) != (WHO, place):
            continue
        seen[at] = seen.get(at, 0) + 1
        if seen[at] < nth:
            continue
        try:
            os.close(os.open(FOLDER / f"{at}.done", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif kind == "slow":
            time.sleep(SLOW)
        else:
            full()


def full_disk() -> None:
    """As a write that fails, where files are written."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def data_error() -> None:
    """As what becomes of it anywhere else."""
    from fedvlm.core.errors import DataError

    raise DataError("the disk is full")


def before(place: str, name: str, owner: str = "") -> Callable[[Any], None]:
    """Return what puts a place before a function of a module."""
    def patch(module: Any) -> None:
        there = getattr(module, owner) if owner else module
        real = getattr(there, name)

        def wrapped(*given: Any, **named: Any) -> Any:
            happen(place, data_error)
            return real(*given, **named)

        setattr(there, name, wrapped)

    return patch


def writes(module: Any) -> None:
    """Put a place at every step of a file's writing."""
    module.on_write_point = lambda point: happen("save", full_disk)


AFTER = {
    "fedvlm.job.build": before("build", "prepare_run"),
    "fedvlm.federation.engine": before("work", "run", "LocalEngine"),
    "fedvlm.federation.rounds": before("evaluate", "measured", "Federation"),
    "fedvlm.core.files": writes,
}


class Finder:
    """Patches modules as they are imported."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        patch = AFTER.pop(name, None)
        if patch is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None and spec.loader is not None
        real = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            real(module)
            patch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if FOLDER.is_dir():
    sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]
