"""Worker processes of this machine, and the frames to them: a socket pair for each."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.distributed.schema import LIMIT
from fedvlm.distributed.sockets.lines import SILENT, Pulses, exchange
from fedvlm.distributed.sockets.stream import StreamError, answer_hello

LAST_WORDS = 3.0  # seconds for a worker to leave by itself, and again when it is told to
DEATHS = 3  # of each worker, on average, after which no more are begun
_TAIL = 4000  # bytes of a log that may hold its last line


class WorkerProcesses:
    """Worker processes of this machine, begun and ended here; see ``Carrier``.

    Each has one end of a socket pair: nobody else can speak to it, and it ends when the other end
    is closed, whatever became of this process. Its standard input is the end of another pair, on
    which it gives signs of life. Who gives none is killed and replaced, whether it builds or works.

    Args:
        command: number of a worker, its end of the socket -> the words that begin it.
        count: how many.
        logs: folder of their logs.
        environ: number of a worker -> its environment.
        say: hears what became of workers that are being begun.
        silence: seconds without a sign of life while a worker builds the run.
    """

    def __init__(
        self, command: Callable[[int, int], Sequence[str]], count: int, logs: Path,
        environ: Callable[[int], Mapping[str, str]] = lambda slot: os.environ,
        say: Callable[[str], None] = lambda words: None, silence: float = 600.0,
    ) -> None:
        self._command, self._logs, self._environ = command, logs, environ
        self.most = LIMIT
        self._say, self._silence, self._pulses = say, silence, Pulses()
        self._count, self._number = count, 0
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._slots: dict[str, int] = {}
        self._starting: dict[str, socket.socket] = {}
        self._lines: dict[str, socket.socket] = {}
        for slot in range(count):
            self._begin(slot)

    def _begin(self, slot: int) -> None:
        (ours, theirs), (pulse, beat) = socket.socketpair(), socket.socketpair()
        name, self._number = f"worker{self._number}", self._number + 1
        with theirs, beat, self.log(name).open("wb") as log:
            self.processes[name] = subprocess.Popen(  # noqa: S603
                list(self._command(slot, theirs.fileno())), pass_fds=(theirs.fileno(),),
                stdin=beat.fileno(), stdout=log, stderr=subprocess.STDOUT,
                env=dict(self._environ(slot)), start_new_session=True,  # Ctrl-C is for us alone
            )
        self._starting[name], self._slots[name] = ours, slot
        self._pulses.watch(name, pulse)

    def key(self, site: str) -> str:
        """See ``Carrier.key``: the socket pair is proof."""
        return ""

    def log(self, name: str) -> Path:
        """Return where what a worker says is kept."""
        return self._logs / f"{name}.log"

    def open(self, seconds: float) -> None:
        """Wait until all of them are built; one that is killed before is replaced.

        Raises:
            ConfigError: one ended by itself, or takes longer than ``seconds``, or too many were
                killed; its last line is shown.
        """
        until = time.monotonic() + seconds
        while self._starting:
            lost = self._look(0.2)
            codes = {n: self.processes[n].poll() for n in lost}
            late = [n for n, code in codes.items() if code is not None and code >= 0]
            late += list(self._starting) if time.monotonic() >= until else []
            late += lost if len(self._starting) + len(self._lines) < self._count else []
            if late:
                raise ConfigError(f"{late[0]} did not start: {self._obituary(late[0])}")

    def absent(self) -> list[str]:
        """Return who is away: nobody, once ``open`` is done."""
        return []

    def sites(self) -> list[str]:
        """See ``Carrier.sites``; waits for one that is begun (``FedvlmError``: none is left)."""
        self._look(0)
        while not self._lines:
            if not self._starting:
                last = list(self.processes)[-1]
                raise FedvlmError(f"no worker is left: {last} {self._obituary(last)}")
            self._look(0.2)
        return list(self._lines)

    def ask(self, frames: Mapping[str, bytes], seconds: float) -> Mapping[str, bytes | str]:
        """See ``Carrier.ask``; who does not answer is ended, and another begun in its place.

        Args:
            frames: see ``Carrier.ask``.
            seconds: without a sign of life; who is at work may take any time.
        """
        there = {n: f for n, f in frames.items() if n in self._lines}
        answers, failures = exchange(self._lines, there, seconds, self._pulses, self.most)
        for name, why in failures.items():
            self._bury(name, self._lines.pop(name), why)
            failures[name] = f"{why} ({self._obituary(name)})"
            self._replace(name)
        return dict.fromkeys(frames, "not there any more") | answers | failures

    def close(self) -> None:
        """End all of them."""
        for line in [*self._lines.values(), *self._starting.values()]:
            line.close()
        for name in [*self._lines, *self._starting]:
            self._pulses.drop(name)
        self._lines.clear()
        self._starting.clear()
        self._end(list(self.processes))

    def _look(self, seconds: float) -> list[str]:
        """Let in who is built by now; return who ended before, or was silent and is killed."""
        lost = dict[str, str]()
        by = {line: name for name, line in self._starting.items()}
        for line in select.select(list(by), [], [], seconds)[0] if by else ():
            try:
                answer_hello(line, b"")
            except StreamError as error:  # a line of a process that dies closes before it is gone
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.processes[by[line]].wait(LAST_WORDS)
                lost[by[line]] = str(error)
            else:
                self._lines[by[line]] = self._starting.pop(by[line])
        silent = set(self._pulses.silent(self._silence))
        for name in self._starting:
            if self.processes[name].poll() is not None:
                lost[name] = "it ended"
            elif name in silent:
                lost[name] = f"{SILENT} {self._silence:g} s"
        for name, why in lost.items():
            self._bury(name, self._starting.pop(name), why)
            self._say(f"{name}, as it built the run: {why} ({self._obituary(name)})")
            self._replace(name)
        return list(lost)

    def _bury(self, name: str, line: socket.socket, why: str) -> None:
        """End a worker that is lost, at once if it is silent: a stopped one hears nothing else."""
        self._pulses.drop(name)
        if why.startswith(SILENT):
            self.processes[name].kill()
        line.close()
        self._end([name])

    def _replace(self, name: str) -> None:
        if self._number < self._count * (1 + DEATHS):
            self._begin(self._slots[name])

    def _end(self, names: Sequence[str]) -> None:
        """Let processes go whose line is closed, and make those that stay."""
        for seconds, make in ((LAST_WORDS, subprocess.Popen.terminate),
                              (LAST_WORDS, subprocess.Popen.kill)):
            until = time.monotonic() + seconds
            alive = [self.processes[n] for n in names]
            for process in alive:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, until - time.monotonic()))
            for process in alive:
                if process.poll() is None:
                    make(process)
        for name in names:  # one that a disk holds is left behind: it dies as the disk lets it go
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.processes[name].wait(LAST_WORDS)

    def _obituary(self, name: str) -> str:
        """Return how a process ended, and the last line that it said."""
        code, said = self.processes[name].poll(), ""
        with contextlib.suppress(OSError):
            data = self.log(name).read_bytes()[-_TAIL:]
            said = data.decode(errors="replace").strip().rpartition("\n")[2]
        how = "it does not finish its start" if code is None else f"exit code {code}"
        if code is not None and code < 0:
            how = f"killed by {signal.Signals(-code).name}"
        return f"{how}{f'; {said[:300]}' if said else ''}; log: {self.log(name)}"
