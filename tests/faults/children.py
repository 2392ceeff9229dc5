"""Commands in forked children to which something happens before their Nth change of a file.

They are killed, or stopped for a while, or every file from there on is refused by the disk.

``python -m tests.faults.children MODULE...`` imports the modules once, and then forks a child for
each line it reads, so that a trial costs what its command computes and no import. A change of a
file below a folder is what Python tells audit hooks of: a file opened for writing, a rename, a
removal, a new folder; and the middle of a write of ``core.files``.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

NEVER = 10**9
REPOSITORY = Path(__file__).parents[2]
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink",
           "os.truncate")


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        status: as ``os.waitpid`` returns it.
        changes: what it did to files, in order.
        said: on the screen.
    """

    status: int
    changes: tuple[str, ...]
    said: str

    @property
    def stopped(self) -> bool:
        """Whether it was stopped and waits for ``Children.go_on``."""
        return os.WIFSTOPPED(self.status)

    @property
    def killed(self) -> bool:
        """Whether it was killed."""
        return os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL

    @property
    def code(self) -> int:
        """Its exit code."""
        return os.waitstatus_to_exitcode(self.status)


class Children:
    """The process that forks; a context."""

    def __init__(self, place: Path, *modules: str) -> None:
        self.place = place
        place.mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.children", *modules], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY / "scripts")},
        )

    def run(self, task: str, *args: Any, root: Path, at: int = NEVER, how: str = "kill",
            **env: str) -> Ended:
        """Run ``task`` (``module:function``) until its ``at``-th change below root.

        Args:
            args: of the function, as JSON; what it returns is the exit code.
            how: what happens there: ``kill``, ``stop``, or the name of an error (``ENOSPC``) that
                this and all later changes but removals raise.
            env: environment variables.
        """
        return self._ask({"task": task, "args": args, "root": str(root), "at": at, "env": env,
                          "how": how, "place": str(self.place)})

    def go_on(self) -> Ended:
        """Let a stopped command go on to its end."""
        return self._ask({"go": True})

    def _ask(self, order: dict[str, Any]) -> Ended:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        status = int(self.process.stdout.readline())
        changes = (self.place / "changes").read_text().splitlines()
        return Ended(status, tuple(changes), (self.place / "said").read_text(errors="replace"))

    def __enter__(self) -> Children:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def _watch(root: str, at: int, how: str, notes: int) -> None:
    """Note every change of a file below ``root``; let ``how`` happen before number ``at``."""
    from fedvlm.core import files

    count = 0

    def happen(what: str) -> None:
        nonlocal count
        count += 1
        if count == at and how in ("kill", "stop"):
            os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        elif count >= at and how.startswith("E") and not what.startswith(("os.rem", "os.rmdir")):
            raise OSError(getattr(errno, how), os.strerror(getattr(errno, how)))
        os.write(notes, f"{what}\n".encode(errors="replace"))

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            changes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        elif event in CHANGES:
            path, changes = args[0], True
        else:
            return
        if not changes or isinstance(path, int):
            return
        name = os.fsdecode(path)
        if name.startswith(root) or not name.startswith("/") and event in ("os.remove", "os.rmdir"):
            happen(f"{event} {os.path.basename(name)}")

    files.on_write_point = lambda point: happen(point) if point.startswith("mid-") else None
    sys.addaudithook(hook)


def _child(order: dict[str, Any]) -> None:
    place = order["place"]
    said = os.open(f"{place}/said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    notes = os.open(f"{place}/changes", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.environ.update(order["env"])
    module, _, name = order["task"].partition(":")
    function = getattr(importlib.import_module(module), name)
    sys.argv = ["fedvlm", *(order["args"][0] if order["args"] else ())]
    code = 70
    try:
        _watch(order["root"], order["at"], order["how"], notes)
        code = int(function(*order["args"]) or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    for word in sys.argv[1:]:
        importlib.import_module(word)
    child = 0
    for line in sys.stdin:
        order = json.loads(line)
        if "go" in order:
            os.kill(child, signal.SIGCONT)
        else:
            child = os.fork()
        if not child:
            _child(order)
        _, ended = os.waitpid(child, os.WUNTRACED)
        sys.stdout.write(f"{ended}\n")
        sys.stdout.flush()
