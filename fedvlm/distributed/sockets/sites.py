"""Frames to sites of this machine: each waits at a Unix socket of the same user."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedvlm.core.errors import ConfigError
from fedvlm.distributed.schema import LIMIT
from fedvlm.distributed.sockets.lines import exchange
from fedvlm.distributed.sockets.stream import PATIENCE, StreamError, connect

AGAIN = 5.0  # seconds between two tries to reach a site that is not connected, at first
LONGEST = 300.0  # seconds that they grow to while a run works, doubled each time
HURRY = 1.0  # seconds for such a try: the others wait meanwhile


class SiteSockets:
    """Sites of this machine, each at its socket; see ``Carrier``.

    Args:
        paths: of their sockets; the sites are called ``site0``, ``site1``, ... in this order.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._addresses = {f"site{i}": path for i, path in enumerate(paths)}
        self._away = dict.fromkeys(self._addresses, 0.0)  # when they are tried next
        self._pauses: dict[str, float] = {}
        self._lines: dict[str, socket.socket] = {}
        self.why: dict[str, str] = {}
        self.most = LIMIT

    def key(self, site: str) -> str:
        """See ``Carrier.key``: any process of this user could have it."""
        return ""

    def open(self, seconds: float) -> None:
        """Reach all of them, or as many as can be reached within ``seconds``.

        Raises:
            ConfigError: none can.
        """
        until = time.monotonic() + seconds
        self._reach(PATIENCE, AGAIN)
        while self._away and time.monotonic() < until:
            time.sleep(AGAIN / 5)
            self._reach(PATIENCE, AGAIN)
        if not self._lines:
            raise ConfigError("no site can be reached: " + "; ".join(
                f"{self._addresses[name]}: {why}" for name, why in sorted(self.why.items())
            ) + " (fedvlm site serve SITE.YAML --listen PATH starts one)")

    def absent(self) -> list[str]:
        """Return which sites are not connected, and why: a message each."""
        return [f"{name} ({self._addresses[name]}) is away: {self.why.get(name, 'not tried yet')}"
                for name in self._away]

    def sites(self) -> list[str]:
        """See ``Carrier.sites``; a site that is not connected is tried again, ever less often."""
        self._reach(HURRY, LONGEST)
        return sorted(self._lines, key=list(self._addresses).index)

    def _reach(self, seconds: float, longest: float) -> None:
        """Try sites that are not connected and whose time has come.

        Args:
            seconds: for each.
            longest: seconds until the next try.
        """
        for name, next_ in list(self._away.items()):
            if time.monotonic() < next_:
                continue
            try:
                self._lines[name] = connect(self._addresses[name], b"", seconds)
                del self._away[name]
                self._pauses.pop(name, None)
            except StreamError as error:
                self.why[name] = str(error)
                pause = self._pauses.get(name, AGAIN)
                self._away[name] = time.monotonic() + pause
                self._pauses[name] = min(2 * pause, longest)

    def ask(self, frames: Mapping[str, bytes], seconds: float) -> Mapping[str, bytes | str]:
        """See ``Carrier.ask``; a site that is not connected is tried once more."""
        if not frames.keys() <= self._lines.keys():
            self._reach(HURRY, LONGEST)
        there = {n: f for n, f in frames.items() if n in self._lines}
        answers, failures = exchange(self._lines, there, seconds, most=self.most)
        for name, why in failures.items():
            self._lines.pop(name).close()
            self._away[name] = time.monotonic()
            self.why[name] = why
        away = {name: f"not connected: {self.why.get(name, 'not tried yet')}" for name in frames}
        return away | answers | failures

    def close(self) -> None:
        """Hang up; the sites stay."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()
