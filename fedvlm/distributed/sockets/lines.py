"""Connections to several workers: a frame to each and its answer, all at once, in one thread.

One thread, so that Ctrl-C and a worker's end are heard at once.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedvlm.distributed.sockets.stream import LENGTH, StreamError, read_length, reason

_PIECE = 1 << 20


@dataclass
class _Talk:
    """A frame on its way to a worker, or the answer on its way back."""

    left: memoryview
    data: bytearray = field(default_factory=bytearray)
    size: int = -1

    def write(self, sock: socket.socket) -> bool:
        """Send what can be sent; say whether all of it is."""
        self.left = self.left[sock.send(self.left[:_PIECE]) :]
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
            self.size = read_length(bytes(self.data[: LENGTH.size]))
        if self.size >= 0 and len(self.data) > self.size + LENGTH.size:
            raise StreamError("it sent more than was requested")
        return self.size >= 0 and len(self.data) == self.size + LENGTH.size


def exchange(
    lines: Mapping[str, socket.socket], frames: Mapping[str, bytes], seconds: float
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Send each worker its frame; return the answers, and why there is none of the others.

    Whoever is among the latter has a line that is good for nothing more: an answer may be under way
    on it.

    Args:
        lines: a connection to each worker of ``frames``, greeted.
        seconds: for all of it.
    """
    answers, failures = dict[str, bytes](), dict[str, str]()
    until = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for name, data in frames.items():
            lines[name].setblocking(False)
            talk = _Talk(memoryview(LENGTH.pack(len(data)) + data))
            events = selectors.EVENT_READ | selectors.EVENT_WRITE
            selector.register(lines[name], events, (name, talk))
        while selector.get_map():
            left = until - time.monotonic()
            for key, events in selector.select(max(0.0, min(left, 60.0))):
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
            if left <= 0:  # also where somebody says a byte now and then
                break
    for name in frames:
        lines[name].setblocking(True)
        if name not in answers:
            failures.setdefault(name, f"no answer within {seconds:g} s")
    return answers, failures
