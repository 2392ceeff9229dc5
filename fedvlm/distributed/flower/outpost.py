"""A site's own end of a federation: its key, and its SuperNode.

All lies in ``flower/`` of the site's folder: the private key, which never leaves, the SuperNode's
log, and the files of the installed fedvlm that Flower's Python runs here. The SuperNode is a child
of the process that serves the site and ends with it, however that ends.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedvlm.core import files
from fedvlm.core.errors import ConfigError
from fedvlm.distributed.flower import commands, processes
from fedvlm.distributed.flower.carrier import APP, copy_modules
from fedvlm.distributed.flower.invitation import Invitation, PublicKey, check_name, host_port
from fedvlm.distributed.flower.keys import write_secret
from fedvlm.distributed.flower.place import HOST, free_port
from fedvlm.distributed.sockets.stream import reason

FOLDER, KEY, STATUS = "flower", "key", "status.json"
PARTS = (*APP, "distributed/flower/relay/node.py")
AGAIN = 15.0  # seconds before a SuperNode is begun again, at first; the SuperLink forgets it in 60
LONGEST = 300.0  # seconds that they grow to
LEAVE = 12.0  # seconds for a SuperNode to say good-bye
LATE = 30.0  # seconds without a connection until the log says so
EVERY = 0.2  # seconds between two looks at it
LET_IN = "SuperNode ID:"  # in a SuperNode's log, once the SuperLink has let it in
CONNECTED = "connected to"  # what a site's log says then
CODE = (  # what a site's log says as it begins
    "no code is received: this site's own relay passes frames to its worker; an app that the "
    "SuperLink sends is neither unpacked nor run"
)
_REASONS = {  # what stands in a SuperNode's log -> what that means here
    "SSL/TLS handshake error": "the server's certificate is not the invitation's",
    "2004": "the SuperLink refuses this site's key: it is not admitted, or another process uses it",
    "terminated gracefully": "its key is refused: it is not admitted, or no longer, or the "
                             "clocks of the two machines differ",
}
Say = Callable[[str], None]


def make_key(folder: Path, name: str, anew: bool) -> tuple[PublicKey, Path]:
    """Make the keys of a site on a machine of its own; return the public one and its file.

    Args:
        folder: of the ``site.yaml``.
        name: of the site.
        anew: another pair in the place of one that is there.

    Raises:
        ConfigError: Flower is not installed, or a key with another name is there.
        FedvlmError: its Python can make no keys.
        DataError: the folder cannot be written.
    """
    check_name(name)
    told = make_pair(commands.find_flower(), folder, name, anew)
    if told.name != name:
        raise ConfigError(f"'{folder / FOLDER / KEY}' is the key of '{told.name}': say --name "
                          f"{told.name}, or --anew for another key")
    out = folder / f"{name}.pub"
    files.write_text(out, f"{told.line} {name}\n")
    return told, out


def make_pair(flower: Path, folder: Path, name: str, anew: bool = False) -> PublicKey:
    """Make a site's pair of keys, unless there is one; return the public one.

    Args:
        flower: folder of its commands.
        folder: of the site.

    Raises:
        FedvlmError: Flower's Python can make no keys.
        DataError: the folder cannot be written.
    """
    place = folder / FOLDER
    with files.explain_errors(place):
        place.mkdir(mode=0o700, exist_ok=True)
        place.chmod(0o700)
    private, public = place / KEY, place / f"{KEY}.pub"
    if anew or not private.is_file() or not public.is_file():
        private.unlink(missing_ok=True)
        public.unlink(missing_ok=True)
        commands.make_keys(flower, place, (), [KEY])
        line = " ".join(public.read_text(encoding="utf-8").split()[:2])
        files.write_text(public, f"{line} {name}\n")
    return _pair(folder)


def _pair(folder: Path) -> PublicKey:
    """Return the public key of a site's pair."""
    words = (folder / FOLDER / f"{KEY}.pub").read_text(encoding="utf-8").split()
    return PublicKey(words[2], f"{words[0]} {words[1]}")


def key_folder(invitation: Invitation, folders: Sequence[Path]) -> Path:
    """Return the first of some folders that has the key which an invitation is for.

    Raises:
        ConfigError: none has.
    """
    keys = {folder: _pair(folder).fingerprint for folder in folders
            if (folder / FOLDER / KEY).is_file() and (folder / FOLDER / f"{KEY}.pub").is_file()}
    for folder, mark in keys.items():
        if mark == invitation.key:
            return folder
    if not keys:
        raise ConfigError(f"there is no key in '{folders[0] / FOLDER}': fedvlm site key makes one, "
                          "and the invitation is for the key")
    raise ConfigError(
        f"the invitation is for the key {invitation.key}, and this site's is "
        f"{next(iter(keys.values()))}: take the invitation that was made for this site (that one "
        f"is for {invitation.name}); if the site made a new key, hand over its .pub again"
    )


class Outpost:
    """A SuperNode that is begun, watched and ended by the process that serves a site.

    Args:
        folders: one of them has the site's key.
        invitation: of the federation.
        say: hears of its connection.

    Attributes:
        path: of the socket at which the site answers; short, since the system limits it to some 100
            bytes, in a folder that its owner alone may enter.
        token: of that socket.

    Raises:
        ConfigError: the invitation is for another key, or Flower is not installed.
    """

    def __init__(self, folders: Sequence[Path], invitation: Invitation, say: Say) -> None:
        self.place = key_folder(invitation, folders).absolute() / FOLDER
        self.invitation, self.say, self.flower = invitation, say, commands.find_flower()
        self.log = self.place / "node.log"
        self.token = secrets.token_hex(32).encode()
        self.path = Path()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @contextlib.contextmanager
    def quarters(self) -> Iterator[None]:
        """Have a folder for the socket and its token, for this user alone."""
        folder = Path(tempfile.mkdtemp(prefix="fedvlm-site-"))  # its owner's alone
        self.path = folder / "socket"
        try:
            write_secret(folder / "token", self.token)
            yield
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def __enter__(self) -> Outpost:
        with files.explain_errors(self.place):
            copy_modules(self.place / "parts", PARTS)
            (self.place / "home").mkdir(exist_ok=True)
            (self.place / "empty").mkdir(exist_ok=True)
            (self.place / "ca.crt").write_text(self.invitation.certificate)
            write_secret(self.place / "secret", secrets.token_hex(32).encode())
        self._note("begins")
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        (self.place / STATUS).unlink(missing_ok=True)

    def words(self, port: int) -> list[str]:
        """Return the command of the SuperNode; it gives its tasks at ``port``."""
        settings = (f'worker="{self.path}" token="{self.path.parent / "token"}" '
                    f'site="{self.invitation.name}"')
        return [
            str(self.flower / "python"), "-m", "fedvlm.distributed.flower.relay.node",
            str(self.place / "secret"), f"{HOST}:{port}", "--superlink", self.invitation.address,
            "--root-certificates", str(self.place / "ca.crt"), "--auth-supernode-private-key",
            str(self.place / KEY), "--host", HOST, "--port", str(port), "--node-config", settings,
        ]

    def _watch(self) -> None:
        """Let a SuperNode run until the site is served no more."""
        pause = AGAIN
        while not self._stop.is_set():
            if self._once():
                pause = AGAIN
            if self._stop.is_set():
                return
            why = self._why()
            self._note(f"away: {why}")
            self.say(f"{self.invitation.address}: not connected: {why}; again in {pause:g} s")
            self._stop.wait(pause)
            pause = min(2 * pause, LONGEST)

    def _once(self) -> bool:
        """Run a SuperNode until it ends or has to; say whether it was ever connected."""
        environ = commands.quiet(self.flower, self.place / "home")
        environ["PYTHONPATH"] = str(self.place / "parts")
        with self.log.open("wb") as out:
            node = subprocess.Popen(  # noqa: S603
                self.words(free_port()), stdin=subprocess.PIPE, stdout=out,
                stderr=subprocess.STDOUT, env=environ, cwd=self.place / "empty",
                start_new_session=True,  # Ctrl-C is for this process, which then ends it
            )
        there, late = False, time.monotonic() + LATE
        try:
            while node.poll() is None and not self._stop.wait(EVERY):
                if not there and LET_IN in processes.tail(self.log, 200):
                    there = True
                    self._note("connected")
                    self.say(f"{CONNECTED} {self.invitation.address} as {self.invitation.name}")
                elif not there and time.monotonic() > late:
                    late = float("inf")
                    why = reach(self.invitation.address) or f"the start takes long; log: {self.log}"
                    self._note(f"tries: {why}")
                    self.say(f"{self.invitation.address}: no connection yet: {why}; retrying")
        finally:
            _end(node)
        return there

    def _why(self) -> str:
        """Return why a SuperNode ended, by its log."""
        said = processes.tail(self.log, 30)
        for mark, words in _REASONS.items():
            if mark in said:
                return words
        return f"{processes.tail(self.log)[:200]} (its log: {self.log})"

    def _note(self, state: str) -> None:
        told = {"address": self.invitation.address, "name": self.invitation.name, "state": state,
                "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        with contextlib.suppress(Exception):  # for ``site status`` alone
            files.write_json(self.place / STATUS, told)


def _end(node: subprocess.Popen[bytes]) -> None:
    """End a SuperNode: its standard input is closed, which it takes as a word to leave."""
    if node.stdin is not None:
        node.stdin.close()
    try:
        node.wait(LEAVE)
    except subprocess.TimeoutExpired:
        node.kill()
        node.wait()


def reach(address: str) -> str:
    """Return why nobody can be reached at an address; empty: somebody can."""
    try:
        socket.create_connection(host_port(address), LEAVE).close()
    except OSError as error:
        return reason(error)
    return ""


def read_status(folder: Path) -> dict[str, Any]:
    """Return what the SuperNode of a site that is served is doing; nothing where there is none."""
    told = files.read_json(folder / FOLDER / STATUS)
    return told if isinstance(told, dict) else {}
