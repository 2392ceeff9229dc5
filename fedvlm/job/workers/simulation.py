"""Frames carried by Flower's own simulation: to workers of this machine, by actors of Ray.

A check of the relay, and of what Flower costs; nothing is protected. The workers are those of
``--engine workers``: each listens at a socket of its owner, and ends with this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.distributed.flower import commands, conversation
from fedvlm.distributed.flower.carrier import APP, copy_modules
from fedvlm.distributed.sockets.stream import StreamError
from fedvlm.job.workers.carrier import LAST_WORDS, WorkerProcesses

READY = b"ready at"  # what a worker says when it is built
RELAY = "flower"  # what its log is called
ENTRY = "distributed/flower/relay/simulation.py"
LONGEST_PATH = 40  # characters of its folder: Ray puts sockets below it, which may have 107
OBJECTS = 1 << 28  # bytes of Ray's memory for messages; what is more goes to disk
LEAVE = 20.0  # seconds for Ray to end by itself
EVERY = 0.2
Command = Callable[[Sequence[str]], Sequence[str]]


class RayCarrier(WorkerProcesses):
    """Workers behind Flower's simulation; see ``Carrier``.

    Args:
        command: the words that say where a worker listens -> the command that begins it.
        count: how many.
        logs: folder of their logs, and of Flower's.
        environ: number of a worker -> its environment.

    Raises:
        ConfigError: Flower or its Ray is not installed, or the folder for temporary files has too
            long a path.
    """

    def __init__(
        self, command: Command, count: int, logs: Path,
        environ: Callable[[int], Mapping[str, str]] = lambda slot: os.environ,
    ) -> None:
        self._flower = commands.find_ray()
        self._place = Path(tempfile.mkdtemp(prefix="fedvlm-"))  # its owner's alone
        if len(str(self._place)) > LONGEST_PATH:
            self._place.rmdir()
            raise ConfigError(
                f"the path '{self._place}' is too long for Ray's sockets: let TMPDIR name a folder "
                f"with a path of at most {LONGEST_PATH - len('/fedvlm-12345678')} characters"
            )
        self._token = secrets.token_hex(32).encode()
        file = self._place / "token"
        file.touch(mode=0o600)
        file.write_bytes(self._token)
        self._talk: socket.socket | None = None
        self._nodes: dict[str, int] = {}

        def words(slot: int, handle: int) -> Sequence[str]:
            return command([
                "--listen", str(self._socket(slot)), "--token-file", str(file),
                "--handle", str(handle),
            ])

        super().__init__(words, count, logs, environ)

    def _socket(self, slot: int) -> Path:
        return self._place / f"{slot}.sock"

    def open(self, seconds: float) -> None:
        """Wait until the workers are built, and Flower's simulation has begun.

        Raises:
            ConfigError: one of them ended before, or takes longer than ``seconds``; its last line
                is shown.
        """
        until = time.monotonic() + seconds
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(self._place / "driver.sock"))
            door.listen(1)
            self._begin_relay()
            while self._starting:
                for name in [n for n in self._starting if READY in self.log(n).read_bytes()]:
                    self._lines[name] = self._starting.pop(name)
                self._check(time.monotonic() >= until)
                time.sleep(EVERY)
            self._talk = self._met(door, until)
        told: dict[str, int] = {}
        with contextlib.suppress(StreamError):
            self._talk.settimeout(max(until - time.monotonic(), EVERY))
            told = json.loads(conversation.hear(self._talk))
            self._talk.settimeout(None)
        if not told:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.processes[RELAY].wait(LAST_WORDS)
            raise ConfigError(f"Flower's simulation did not begin: {self._obituary(RELAY)}")
        self._nodes = {name: told[str(slot)] for name, slot in self._slots.items()}

    def _met(self, door: socket.socket, until: float) -> socket.socket:
        """Return the connection of the relay."""
        while (sock := conversation.meet(door, self._token, EVERY)) is None:
            self._check(time.monotonic() >= until)
        return sock

    def _check(self, late: bool) -> None:
        """Look whether all that was begun is alive.

        Raises:
            ConfigError: something is not, or it is too late.
        """
        for name in [*self._starting, RELAY]:
            if late or self.processes[name].poll() is not None:
                what = "Flower's simulation" if name == RELAY else name
                raise ConfigError(f"{what} did not start: {self._obituary(name)}")

    def _begin_relay(self) -> None:
        """Begin the process of Flower's Python that holds both ends of the relay."""
        app, plan, ray = self._place / "app", self._place / "plan.json", self._place / "ray"
        copy_modules(app, (*APP, ENTRY))
        ray.mkdir()
        token = str(self._place / "token")
        plan.write_text(json.dumps({
            "driver": str(self._place / "driver.sock"), "token": token,
            "workers": [{"worker": str(self._socket(slot)), "token": token}
                        for slot in range(self._count)],
            "ray": {"_temp_dir": str(ray), "object_store_memory": OBJECTS},
        }))
        module = ENTRY.removesuffix(".py").replace("/", ".")
        with self.log(RELAY).open("wb") as log:
            self.processes[RELAY] = subprocess.Popen(  # noqa: S603
                [str(self._flower / "python"), "-m", f"fedvlm.{module}", str(plan)], cwd=app,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env=commands.quiet(self._flower, self._place / "flwr"), start_new_session=True,
            )

    def sites(self) -> list[str]:
        """See ``Carrier.sites``: the workers that live.

        Raises:
            FedvlmError: none does, or the relay is gone.
        """
        self._need_relay()
        live = [name for name in self._nodes if self.processes[name].poll() is None]
        if not live:
            last = next(reversed(self._nodes))
            raise FedvlmError(f"no worker is left: {last} {self._obituary(last)}")
        return live

    def ask(self, frames: Mapping[str, bytes], seconds: float) -> Mapping[str, bytes | str]:
        """See ``Carrier.ask``.

        Raises:
            FedvlmError: the relay is gone.
        """
        relay = self._need_relay()
        try:
            out = conversation.ask(
                relay, self._nodes, frames, seconds,
                lambda: self.processes[RELAY].poll() is None,
            )
        except StreamError as error:
            raise self._gone(error) from None
        for name, said in out.items():
            if isinstance(said, str) and self.processes[name].poll() is not None:
                out[name] = f"{said} ({self._obituary(name)})"
        return out

    def _need_relay(self) -> socket.socket:
        if self._talk is None:
            raise self._gone("it has not begun")
        return self._talk

    def _gone(self, why: object) -> FedvlmError:
        return FedvlmError(
            f"Flower's simulation is gone ({why}; {self._obituary(RELAY)}); what was saved is "
            "kept, and the same command goes on there"
        )

    def close(self) -> None:
        """End all of them."""
        if self._talk is not None:
            self._talk.close()  # which the relay takes for the end
            self._talk = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.processes[RELAY].wait(LEAVE)
        super().close()
        shutil.rmtree(self._place, ignore_errors=True)
