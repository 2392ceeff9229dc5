"""Connections to several workers: a frame to each and its answer, all at once, in one thread.

One thread, so that Ctrl-C and a worker's end are heard at once.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedvlm.distributed.schema import LIMIT
from fedvlm.distributed.sockets.stream import EVER, LENGTH, StreamError, read_length, reason

_PIECE = 1 << 20
GRACE = 120.0  # seconds more for a process that begins: it has to load PyTorch before
SILENT = "no sign of life for"
LOOK = 1.0  # seconds between looks for signs of life; a longer pause was this process's own


class Pulses:
    """Signs of life of worker processes: a byte now and then on a socket of each.

    Only time in which this process looked is counted: after it was busy, or stopped itself, nobody
    is silent. What came meanwhile lies in the sockets.
    """

    def __init__(self) -> None:
        self._sockets: dict[str, socket.socket] = {}
        self._silent: dict[str, float] = {}
        self._looked = time.monotonic()

    def watch(self, name: str, sock: socket.socket) -> None:
        """Listen to a worker from now on."""
        sock.setblocking(False)
        self._sockets[name] = sock
        self._silent[name] = -GRACE

    def heard(self, name: str) -> None:
        """Note that a worker is alive, or that its silence counts from now."""
        self._silent[name] = 0.0

    def drop(self, name: str) -> None:
        """Listen to a worker no more."""
        self._sockets.pop(name).close()
        del self._silent[name]

    def silent(self, seconds: float) -> list[str]:
        """Return who gave no sign of life for so long; to be called again and again."""
        passed, self._looked = time.monotonic() - self._looked, time.monotonic()
        for name, sock in self._sockets.items():
            self._silent[name] += min(passed, LOOK)
            try:
                while sock.recv(_PIECE):
                    self.heard(name)
            except OSError:
                continue  # nothing more: it waits, or is gone, which its line tells
        return [name for name, silent in self._silent.items() if silent >= seconds]


@dataclass
class _Talk:
    """A frame on its way to a worker, or the answer on its way back."""

    left: memoryview
    most: int = LIMIT
    data: bytearray = field(default_factory=bytearray)
    size: int = -1

    def write(self, sock: socket.socket) -> bool:
        """Send what can be sent; say whether all of it is, or the other side reads no more.

        It may have said why (the message is too long, for instance) before it closed.
        """
        try:
            self.left = self.left[sock.send(self.left[:_PIECE]) :]
        except (BrokenPipeError, ConnectionResetError):
            return True
        return not self.left

    def read(self, sock: socket.socket) -> bool:
        """Take what has come; say whether that is the answer.

        Raises:
            StreamError: the worker closed the connection, or says too much.
        """
        piece = sock.recv(_PIECE)
        if not piece:
            raise StreamError("it closed the connection")
        self.data += piece
        if self.size < 0 and len(self.data) >= LENGTH.size:
            self.size = read_length(bytes(self.data[: LENGTH.size]), self.most)
        if self.size >= 0 and len(self.data) > self.size + LENGTH.size:
            raise StreamError("it sent more than was requested")
        return self.size >= 0 and len(self.data) == self.size + LENGTH.size


def exchange(
    lines: Mapping[str, socket.socket], frames: Mapping[str, bytes], seconds: float,
    pulses: Pulses | None = None, most: int = LIMIT,
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Send each worker its frame; return the answers, and why there is none of the others.

    Whoever is among the latter has a line that is good for nothing more: an answer may be under way
    on it.

    Args:
        lines: a connection to each worker of ``frames``, greeted.
        seconds: for all of it; with ``pulses`` without a sign of life.
        pulses: of all of them: they may take as long as they are at work.
        most: bytes of an answer.
    """
    answers, failures = dict[str, bytes](), dict[str, str]()
    until = time.monotonic() + (EVER if pulses else seconds)
    with selectors.DefaultSelector() as selector:
        for name, data in frames.items():
            lines[name].setblocking(False)
            talk = _Talk(memoryview(LENGTH.pack(len(data)) + data), most)
            events = selectors.EVENT_READ | selectors.EVENT_WRITE
            selector.register(lines[name], events, (name, talk))
            if pulses:
                pulses.heard(name)  # who waits for a question is silent
        while selector.get_map():
            left = until - time.monotonic()
            for key, events in selector.select(max(0.0, min(left, LOOK if pulses else 60.0))):
                name, talk = key.data
                sock = lines[name]
                try:
                    if events & selectors.EVENT_WRITE and talk.write(sock):
                        selector.modify(sock, selectors.EVENT_READ, key.data)
                    if events & selectors.EVENT_READ and talk.read(sock):
                        answers[name] = bytes(memoryview(talk.data)[LENGTH.size :])
                        selector.unregister(sock)
                except BlockingIOError:
                    continue
                except (OSError, StreamError) as error:
                    failures[name] = reason(error)
                    selector.unregister(sock)
            for name in pulses.silent(seconds) if pulses else ():
                if name in frames and name not in answers.keys() | failures.keys():
                    failures[name] = f"{SILENT} {seconds:g} s"
                    selector.unregister(lines[name])
            if left <= 0:  # also where somebody says a byte now and then
                break
    for name in frames:
        lines[name].setblocking(True)
        if name not in answers:
            failures.setdefault(name, f"no answer within {seconds:g} s")
    return answers, failures
