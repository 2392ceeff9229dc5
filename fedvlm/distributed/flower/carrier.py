"""Frames carried by Flower: from this driver through the SuperLink to the sites' workers.

The driver stays an ordinary process. Flower runs the two ends of a relay (``relay/``), which this
carrier submits, and submits again where it is gone; nothing of a run is kept there.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.repository import PACKAGE
from fedvlm.core.version import __version__
from fedvlm.distributed.flower import commands, conversation, processes
from fedvlm.distributed.flower.commands import LINK
from fedvlm.distributed.flower.invitation import PublicKey
from fedvlm.distributed.flower.place import Place
from fedvlm.distributed.schema import LIMIT
from fedvlm.distributed.sockets.stream import StreamError

SUBMIT = 120.0  # seconds for a relay to come
LOOK = 10.0  # seconds between looks whether it has ended before
SHORT = 5.0  # seconds: a relay that ends sooner ended at once
MOST = 3  # of them in a row
APP = (  # what the relay is made of: these files, and two that name its ends
    "core/errors.py", "core/files.py", "distributed/schema.py", "distributed/sockets/stream.py",
    "distributed/flower/relay/server.py", "distributed/flower/relay/client.py",
    "distributed/flower/relay/frames.py",
)
_ENDS = {"serverapp": "server", "clientapp": "client"}
Say = Callable[[str], None]


class Lost(FedvlmError):
    """The relay is gone, or did not come: one clause."""


class Flower:
    """Sites behind a SuperLink; see ``Carrier``. A site is who its registered key says:
    the node that the SuperLink made of it, whatever other nodes are called.

    Args:
        place: the federation.
        say: hears of relays that end.
    """

    def __init__(self, place: Place, say: Say = lambda words: None) -> None:
        self.place, self.say = place, say
        self.order = [site.name for site in place.sites]
        self.nodes = {name: node for name in self.order if (node := place.node(name))}
        self.submissions, self.most = 0, LIMIT
        self._ended = 0  # relays in a row that ended at once
        self._folder = Path(tempfile.mkdtemp(prefix="fedvlm-driver-"))  # its owner's alone
        self._token = secrets.token_hex(32).encode()
        (self._folder / "token").write_bytes(self._token)
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(self._folder / "driver.sock"))
        self._door.listen(1)
        self._relay: socket.socket | None = None
        self._since = 0.0

    def open(self, seconds: float) -> None:
        """Wait until all sites are there, or some after ``seconds``.

        Raises:
            ConfigError: nobody is after ``seconds``, or the SuperLink is not; says why.
            FedvlmError: relay after relay ends at once.
        """
        until = time.monotonic() + seconds
        while True:
            why = ""
            try:
                lacking = set(self.order) - set(self._online())
            except Lost as error:
                lacking, why = set(self.order), str(error)
                if not self._runs():
                    raise ConfigError(why) from None
                self.say(why)
            if not lacking:
                return
            if time.monotonic() >= until:
                if lacking < set(self.order):
                    return
                raise ConfigError(why or " ".join(self._away(self.order)))
            time.sleep(1.0)

    def absent(self) -> list[str]:
        """Return site -> why it cannot be reached.

        Raises:
            FedvlmError: relay after relay ends at once.
        """
        try:
            here = self._online()
        except Lost as error:
            return [str(error)]
        return self._away([name for name in self.order if name not in here])

    def _away(self, names: list[str]) -> list[str]:
        return [
            f"{name} is not connected to the SuperLink at {self.place.address}: fedvlm federation "
            f"status --federation {self.place.folder} says what runs" for name in names
        ]

    def sites(self) -> list[str]:
        """See ``Carrier.sites``."""
        try:
            here = self._online()
        except Lost as error:
            self.say(str(error))
            return []
        return [name for name in self.order if name in here]

    def ask(self, frames: Mapping[str, bytes], seconds: float) -> Mapping[str, bytes | str]:
        """See ``Carrier.ask``.

        Raises:
            FedvlmError: relay after relay ends at once.
        """
        try:
            relay = self._connected()
            try:
                out = conversation.ask(relay, self.nodes, frames, seconds, self._runs, self.most)
            except StreamError as error:
                raise self._gone(error) from None
        except Lost as error:
            return dict.fromkeys(frames, str(error))
        self._ended = 0
        return out

    def key(self, site: str) -> str:
        """See ``Carrier.key``: the SuperLink lets nobody in without the registered key."""
        path = self.place.public(site)
        words = path.read_text(encoding="utf-8").split() if path.is_file() else []
        return PublicKey(site, " ".join(words[:2])).fingerprint if words else ""

    def close(self) -> None:
        """Hang up, which ends the relay."""
        self._drop()
        self._door.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # ---- the relay ---------------------------------------------------------------------------
    def _online(self) -> dict[str, int]:
        """Return the sites that are there (``Lost``: the relay is gone)."""
        relay = self._connected()
        try:
            told = conversation.online(relay, self.nodes)
        except StreamError as error:
            raise self._gone(error) from None
        self._ended = 0
        return told

    def _gone(self, error: StreamError) -> Lost:
        """Let go of a relay; say why."""
        self._drop()
        self._count(time.monotonic() - self._since < SHORT)
        link = "" if self._runs() else (
            ", and the SuperLink is not running: start it with fedvlm federation up --federation "
            f"{self.place.folder}")
        return Lost(f"Flower's relay has ended ({error}){link}")

    def _count(self, soon: bool) -> None:
        """Count relays that end at once (``FedvlmError``: too many in a row)."""
        self._ended = self._ended + 1 if soon else 0
        if self._ended >= MOST:
            log = self.place.log(LINK)
            raise FedvlmError(
                f"{MOST} relays in a row ended right after their start; the SuperLink's log "
                f"({log}) ends: {' | '.join(processes.tail(log, 4).splitlines())[-600:]}"
            )

    def _connected(self) -> socket.socket:
        """Return the relay's connection; submit one where there is none (``Lost``: none comes)."""
        if self._relay is not None:
            return self._relay
        if not self._runs():
            raise Lost(
                "the SuperLink is not running: start it with fedvlm federation up --federation "
                f"{self.place.folder}"
            )
        app = self._folder / "app"
        write_app(app)
        settings = f'driver="{self._folder / "driver.sock"}" token="{self._folder / "token"}"'
        try:
            told = commands.flwr(self.place, "run", str(app), LINK, "--run-config", settings)
        except FedvlmError as error:
            raise Lost(str(error)) from None
        self.submissions += 1
        self._relay = self._wait(str(told.get("run-id", "")))
        self._since = time.monotonic()
        return self._relay

    def _wait(self, run: str) -> socket.socket:
        """Return the connection of the relay that was submitted (``Lost``: it does not come)."""
        until = time.monotonic() + SUBMIT
        while time.monotonic() < until:
            sock = conversation.meet(self._door, self._token, LOOK)
            if sock is not None:
                return sock
            if self._is_over(run):
                self._count(soon=True)
                raise Lost(
                    "Flower's relay ended before it was ready: "
                    f"{processes.tail(self.place.log(LINK))}"
                )
        raise Lost(f"Flower's relay did not start within {SUBMIT:g} s")

    def _is_over(self, run: str) -> bool:
        """Say whether a run of Flower is finished."""
        with contextlib.suppress(FedvlmError):
            told = commands.flwr(self.place, "list", LINK, "--run-id", run)
            runs = told.get("runs", [])
            return bool(runs) and str(runs[0].get("status", "")).startswith("finished")
        return not self._runs()

    def _runs(self) -> bool:
        """Say whether the SuperLink does."""
        return processes.pid_of(self.place, LINK) > 0

    def _drop(self) -> None:
        if self._relay is not None:
            self._relay.close()
            self._relay = None


def write_app(folder: Path) -> None:
    """Write the relay as an app of Flower: ``pyproject.toml``, its two ends, the files they read.

    Raises:
        FedvlmError: the folder cannot be written.
    """
    copy_modules(folder, APP)
    ends = folder / "fedvlm_relay"
    ends.mkdir()
    (ends / "__init__.py").write_text("")
    for end in _ENDS.values():
        (ends / f"{end}.py").write_text(
            f'"""Written by fedvlm."""\nfrom fedvlm.distributed.flower.relay.{end} import make\n\n'
            "app = make()\n"
        )
    components = "".join(f'{kind} = "fedvlm_relay.{end}:app"\n' for kind, end in _ENDS.items())
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n\n'
        f'[project]\nname = "fedvlm-relay"\nversion = "{__version__}"\n'
        'description = "Carries fedvlm frames; knows no tensor"\nlicense = "Apache-2.0"\n'
        'dependencies = []\n\n[tool.flwr.app]\npublisher = "fedvlm"\n\n'
        f'[tool.flwr.app.components]\n{components}\n'
        '[tool.flwr.app.config]\ndriver = ""\ntoken = ""\n'
    )


def copy_modules(folder: Path, names: Sequence[str]) -> None:
    """Copy files of this package to where a Python without PyTorch imports them.

    Raises:
        OSError: the folder cannot be written.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for name in names:
        target = folder / "fedvlm" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PACKAGE / name, target)
    for part in {p for p in folder.rglob("*") if p.is_dir()}:
        (part / "__init__.py").write_text("")
