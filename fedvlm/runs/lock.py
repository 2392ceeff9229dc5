"""One process per run folder: an advisory lock (filelock), and ``RUNNING``, which says whose it is.

The system gives the lock back when its process dies; where a file system has no such locks,
filelock's own marker file stands in. What ``RUNNING`` says decides two cases that a lock cannot: a
forked worker that holds the lock of its killed parent, and a file system that grants every lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout

from fedvlm.core import files
from fedvlm.core.errors import ConfigError

NAME = "RUNNING"
_LOCK = f".{NAME}.lock"
_ATTEMPTS = 20


@dataclass
class RunLock:
    """The lock as held by this process."""

    path: Path
    lock: BaseFileLock
    notes: list[str] = field(default_factory=list)

    def release(self) -> None:
        """Remove the files and give the lock back; twice is harmless."""
        if not self.lock.is_locked:
            return
        with contextlib.suppress(OSError):
            self.path.write_bytes(b"")  # says "free" where the folder became read-only
            self.path.unlink()
            self.path.with_name(_LOCK).unlink()
        self.lock.release()


def acquire(folder: Path) -> RunLock:
    """Take the lock of ``folder``; one left by a dead process is taken over, with a note.

    Raises:
        ConfigError: a living process holds it (the message names pid, host and since when).
        DataError: the folder cannot be written.
    """
    path = folder / NAME
    lock = FileLock(folder / _LOCK, thread_local=False)
    for _ in range(_ATTEMPTS):
        with files.explain_errors(path):
            locked = _try(lock)
        owner = holder(folder)
        if locked and (not owner or not _is_here(owner)):
            break
        if owner:
            lock.release()
            raise _in_use(folder, owner)
        if _owner(path):  # a forked child of a dead owner has the lock: leave it the old file
            (folder / _LOCK).unlink(missing_ok=True)
        else:
            time.sleep(0.05)  # its owner is about to write itself in
    else:
        raise ConfigError(
            f"several processes use the run folder '{path}' at once: start one of them, or "
            "give each its own --tag"
        )
    dead = _owner(path)
    with files.explain_errors(path):
        path.write_text(json.dumps(_self()))
    return RunLock(path, lock, [] if not dead else [
        f"took over the run from process {dead['pid']} on {dead.get('host')}, which no "
        "longer exists"
    ])


def refuse_busy(folder: Path) -> None:
    """Refuse a folder in which a process of this machine works; looks only.

    Raises:
        ConfigError: as ``acquire``.
    """
    owner = holder(folder)
    if owner and _is_here(owner):
        raise _in_use(folder, owner)


def _in_use(folder: Path, owner: dict[str, Any]) -> ConfigError:
    return ConfigError(
        f"'{folder}' is in use by process {owner['pid']} on {owner.get('host')} "
        f"(since {owner.get('since')}); wait for it, stop it, or choose another --tag"
        f"{way_out(folder)}"
    )


def way_out(folder: Path) -> str:
    """Return what to do where the owner is dead and nobody here can see it."""
    return f" (if that process no longer exists, delete '{folder / _LOCK}' and '{folder / NAME}')"


def holder(folder: Path) -> dict[str, Any]:
    """Return what ``RUNNING`` says of the living process that works in ``folder``; {} for none.

    Looks only; an owner on another machine counts as living while its file is there.
    """
    owner = _owner(folder / NAME)
    return owner if owner and (not _is_here(owner) or _alive(owner)) else {}


def _try(lock: BaseFileLock) -> bool:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True


def _owner(path: Path) -> dict[str, Any]:
    """Return what the file says of its owner; nothing where it is absent, empty or garbage."""
    try:
        owner = json.loads(path.read_bytes()[:4096])
        return owner if isinstance(owner, dict) and isinstance(owner.get("pid"), int) else {}
    except (OSError, ValueError, RecursionError):
        return {}


def _self() -> dict[str, Any]:
    return {
        "pid": os.getpid(), "host": socket.gethostname(), "started": start_ticks(os.getpid()),
        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _is_here(owner: dict[str, Any]) -> bool:
    return owner.get("host") == socket.gethostname()


def _alive(owner: dict[str, Any]) -> bool:
    """Say whether a process of this machine lives: a pid used again has another start time."""
    if os.path.exists("/proc/self/stat"):
        ticks = start_ticks(owner["pid"])
        return ticks is not None and owner.get("started") in (None, ticks)
    try:
        os.kill(max(owner["pid"], 1), 0)
    except PermissionError:
        pass  # it lives, under another user
    except (ProcessLookupError, OverflowError):
        return False
    return bool(owner["pid"] > 0)


def start_ticks(pid: int) -> int | None:
    """Return a living process's start in clock ticks since boot; None for a zombie, or no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
