"""A federation's processes: begun for good, known by their ids, ended to the last of them.

What is begun here outlives this process. Its id and the time of its start are written to
``pids/<name>.json``, so that another process that got the same number later is left alone. All
have the federation's mark in their environment, and so have those that they begin in turn: that is
how they are found when their parent was killed (on systems with ``/proc``).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvlm.core import files
from fedvlm.core.errors import FedvlmError
from fedvlm.distributed.flower.place import Place
from fedvlm.runs import lock

MARK, PART = "FEDVLM_FEDERATION", "FEDVLM_PART"
PATIENCE = 15.0  # seconds for a process that is told to end, and for what it began
_TAIL = 20_000
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TRAFFIC = "uvicorn.access"  # lines of each request, which say nothing
_children: list[subprocess.Popen[bytes]] = []  # so that those of this process leave no zombie


def begin(
    place: Place, name: str, words: Sequence[str], environ: Mapping[str, str], cwd: Path,
    about: str = "",
) -> int:
    """Begin a process in a session of its own; return its id.

    Args:
        about: what it was begun for, see ``about``.

    Raises:
        FedvlmError: there is no such command.
    """
    log = place.log(name)
    with files.explain_errors(log):
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as out:
            out.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
            out.flush()
            try:
                child = subprocess.Popen(  # noqa: S603
                    list(words), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                    env={**environ, MARK: place.mark, PART: name}, cwd=cwd,
                    start_new_session=True,
                )
            except OSError as error:
                raise FedvlmError(f"'{words[0]}' cannot be started: {error.strerror}") from error
        _children.append(child)
        place.folder.joinpath("pids").mkdir(exist_ok=True)
        files.write_json(_note(place, name), {
            "pid": child.pid, "began": _began(child.pid), "about": about})
    return child.pid


def pid_of(place: Place, name: str) -> int:
    """Return the id of a process that lives; 0: it does not."""
    note = _read(place, name)
    pid = int(note.get("pid", 0))
    for child in _children:
        if child.pid == pid and child.poll() is not None:
            return 0
    return pid if pid and _began(pid) == note.get("began") and _began(pid) else 0


def about(place: Place, name: str) -> str:
    """Return what a process was begun for."""
    return str(_read(place, name).get("about", ""))


def names(place: Place) -> list[str]:
    """Return the names of all that was begun and not ended."""
    return sorted(p.stem for p in (place.folder / "pids").glob("*.json"))


def end(place: Place, which: Collection[str]) -> int:
    """End processes and all that they began; return how many there were.

    Raises:
        FedvlmError: one does not go.
    """
    def begun() -> set[int]:
        return {pid_of(place, name) for name in which} - {0}

    def living() -> set[int]:
        return begun() | strays(place, which)

    pids = left = living()
    # What they began they end themselves, a SuperNode with a good-bye; else it is ended after them.
    for stop, whom in ((signal.SIGTERM, begun), (signal.SIGTERM, living), (signal.SIGKILL, living)):
        asked = whom()
        for pid in asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, stop)
        until = time.monotonic() + PATIENCE
        while asked and (left := living()) and time.monotonic() < until:
            time.sleep(0.1)
    left = living()
    if left:
        raise FedvlmError(f"processes {sorted(left)} of '{place.folder}' do not end")
    for name in which:
        _note(place, name).unlink(missing_ok=True)
    return len(pids)


def strays(place: Place, which: Collection[str] | None = None) -> set[int]:
    """Return ids of living processes that have the mark; of those parts, if any are named."""
    out = set()
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        told = _marks(pid)
        ours = told.get(MARK) == place.mark and (which is None or told.get(PART) in which)
        if ours and pid != os.getpid() and _began(pid):
            out.add(pid)
    return out


def process_part(pid: int) -> str:
    """Return which part of a federation a process is."""
    return _marks(pid).get(PART, "")


def _marks(pid: int) -> dict[str, str]:
    """Return the words in a process's environment by which it is known."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    told = dict(word.partition("=")[::2] for word in words)
    return {name: told[name] for name in (MARK, PART) if name in told}


def tail(path: Path, lines: int = 1) -> str:
    """Return the last lines of a log that say something; empty: there are none."""
    try:
        data = path.read_bytes()[-_TAIL:]
    except OSError:
        return ""
    said = [line.strip() for line in _COLOUR.sub("", data.decode(errors="replace")).splitlines()]
    told = [line for line in said if line and not line.startswith("---") and _TRAFFIC not in line]
    return "\n".join(told[-lines:])


def _began(pid: int) -> str:
    """Return when a process began, as the system counts; empty: it does not live."""
    ticks = lock.start_ticks(pid)
    if ticks is not None or Path("/proc/self").exists():
        return "" if ticks is None else str(ticks)
    done = subprocess.run(  # noqa: S603
        ["ps", "-o", "lstart=", "-p", str(pid)],  # noqa: S607
        capture_output=True, text=True, check=False,
    )
    return done.stdout.strip()


def _note(place: Place, name: str) -> Path:
    return place.folder / "pids" / f"{name}.json"


def _read(place: Place, name: str) -> dict[str, Any]:
    told = files.read_json(_note(place, name))
    return told if isinstance(told, dict) else {}
