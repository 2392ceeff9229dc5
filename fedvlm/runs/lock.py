"""One process per run folder: the ``RUNNING`` file.

Two signs, because each alone fails somewhere: an advisory lock (``flock``) that the system gives
back when the process dies, and the owner's pid, host and start time inside the file. A forked
worker can hold the first for a while after its parent was killed; a shared folder of another
machine may not know the first at all.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedvlm.core import files as atomic
from fedvlm.core.errors import ConfigError

try:
    import fcntl
except ImportError:  # no flock on this system: the file's content alone decides
    fcntl = None  # type: ignore[assignment]

NAME = "RUNNING"
_ATTEMPTS = 20


@dataclass
class RunLock:
    """The lock as held by this process."""

    path: Path
    handle: int
    notes: list[str] = field(default_factory=list)

    def release(self) -> None:
        """Remove the file and give the lock back; twice is harmless."""
        if self.handle < 0:
            return
        with contextlib.suppress(OSError):
            os.ftruncate(self.handle, 0)  # says "free" where the folder became read-only
            if _same_file(self.path, self.handle):
                self.path.unlink()
        os.close(self.handle)
        self.handle = -1


def acquire(folder: Path) -> RunLock:
    """Take the lock of ``folder``; one left by a dead process is taken over, with a note.

    Raises:
        ConfigError: a living process holds it (the sentence names pid, host and since when).
        DataError: the folder cannot be written.
    """
    path = folder / NAME
    for _ in range(_ATTEMPTS):
        with atomic.explained(path):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            lock = _try(path, handle)
        except BaseException:
            os.close(handle)
            raise
        if lock is not None:
            return lock
        os.close(handle)
        time.sleep(0.05)
    raise ConfigError(
        f"'{path}' changes hands all the time: several processes want the same run folder; "
        "start one of them, or give each its own --tag"
    )


def holder(folder: Path) -> dict[str, Any]:
    """Return what the lock says of the living process that works in ``folder``; {} for none.

    Looks only; an owner on another machine counts as living while its lock file is there.
    """
    try:
        handle = os.open(folder / NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        owner = _owner(handle)
        return owner if owner and (not _is_here(owner) or _alive(owner)) else {}
    finally:
        os.close(handle)


def _try(path: Path, handle: int) -> RunLock | None:
    """Return the lock, or None where the file was replaced meanwhile; raise if it is held."""
    flocked = _flock(handle)
    if not _same_file(path, handle):
        return None
    owner = _owner(handle)
    if flocked is False and not owner:
        return None  # its owner is about to write itself in
    held = _alive(owner) if _is_here(owner) else flocked is not True
    if owner and held:
        raise ConfigError(
            f"'{path.parent}' is in use by process {owner.get('pid')} on {owner.get('host')} "
            f"(since {owner.get('since')}); wait for it or stop it, or give this run its own "
            f"--tag (if that process is surely dead, delete '{path}')"
        )
    if flocked is False:  # a forked child of a dead owner still holds it: leave it the old file
        path.unlink(missing_ok=True)
        return None
    notes = []
    if owner:
        notes.append(
            f"the run was left by process {owner.get('pid')} on {owner.get('host')}, "
            "which is gone: taken over"
        )
    with atomic.explained(path):
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(_self()).encode(), 0)
        os.fsync(handle)
    return RunLock(path, handle, notes)


def _flock(handle: int) -> bool | None:
    """Return True where the lock is ours, False where another has it, None where there is none."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EAGAIN, errno.EACCES) else None
    return True


def _same_file(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _owner(handle: int) -> dict[str, Any]:
    """Return what the file says of its owner; nothing where it is empty or garbage."""
    try:
        owner = json.loads(os.pread(handle, 4096, 0))
        return owner if isinstance(owner, dict) and isinstance(owner.get("pid"), int) else {}
    except (ValueError, RecursionError):
        return {}


def _self() -> dict[str, Any]:
    return {
        "pid": os.getpid(), "host": socket.gethostname(), "started": _start_ticks(os.getpid()),
        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _is_here(owner: dict[str, Any]) -> bool:
    return owner.get("host") == socket.gethostname()


def _alive(owner: dict[str, Any]) -> bool:
    """Say whether the owner's process lives: a pid used again has another start time."""
    pid = int(owner["pid"])
    try:
        os.kill(max(pid, 1), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it lives, under another user
    if not os.path.exists("/proc/self/stat"):
        return pid > 0
    ticks = _start_ticks(pid)
    return ticks is not None and owner.get("started") in (None, ticks)


def _start_ticks(pid: int) -> int | None:
    """Return a living process's start in clock ticks since boot; None for a zombie, or no /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
