"""The driver's half of a talk with the relay; ``relay/server.py`` has the other one."""

from __future__ import annotations

import contextlib
import json
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping

from fedvlm.distributed.schema import LIMIT
from fedvlm.distributed.sockets.stream import (
    StreamError,
    TooLong,
    answer_hello,
    receive,
    send,
    skip,
)

SLACK = 30.0  # seconds more than a site's that the relay has
EVERY = 0.1  # seconds between looks whether a caller has proved itself
LOOK = 1.0  # seconds between looks whether an answer can come


def meet(door: socket.socket, token: bytes, seconds: float) -> socket.socket | None:
    """Return the connection of a relay that has the token; None if none comes in the time.

    Who comes without the token is hung up on; all are heard at once.
    """
    until, greeted = time.monotonic() + seconds, queue.SimpleQueue[socket.socket]()

    def hear(sock: socket.socket) -> None:
        try:
            answer_hello(sock, token)
        except StreamError:
            sock.close()
        else:
            greeted.put(sock)

    while (left := until - time.monotonic()) > 0:
        with contextlib.suppress(queue.Empty):
            return greeted.get_nowait()
        door.settimeout(min(left, EVERY))
        with contextlib.suppress(TimeoutError):
            sock, _ = door.accept()
            threading.Thread(target=hear, args=(sock,), daemon=True).start()
    return None


def _hear(relay: socket.socket, most: int = LIMIT) -> bytes:
    """Return what the relay says next (``StreamError``: it is gone)."""
    data = receive(relay, most)
    if data is None:
        raise StreamError("it closed the connection")
    return data


def online(relay: socket.socket, nodes: Mapping[str, int]) -> dict[str, int]:
    """Return those of the nodes that are there, by the names of their sites.

    Raises:
        StreamError: the relay is gone.
    """
    send(relay, json.dumps({"op": "sites", "nodes": dict(nodes)}).encode())
    relay.settimeout(SLACK)
    told: dict[str, int] = json.loads(_hear(relay))
    relay.settimeout(None)
    return told


def ask(
    relay: socket.socket, nodes: Mapping[str, int], frames: Mapping[str, bytes], seconds: float,
    runs: Callable[[], bool], most: int = LIMIT,
) -> dict[str, bytes | str]:
    """Return each site's answer, or why there is none; see ``Carrier.ask``.

    Args:
        runs: whether that still runs without which no answer can come.
        most: bytes of an answer.

    Raises:
        StreamError: the relay is gone, or that.
    """
    head = {"op": "ask", "nodes": dict(nodes), "sites": list(frames), "seconds": seconds}
    send(relay, json.dumps(head).encode())
    for frame in frames.values():
        send(relay, frame)
    _wait(relay, seconds + SLACK, runs)
    relay.settimeout(SLACK)
    told = json.loads(_hear(relay))
    out: dict[str, bytes | str] = {}
    for name in frames:
        why = told[name]
        try:
            out[name] = _hear(relay, most) if why is None else str(why)
        except TooLong as error:  # one site's: those of the others come behind it
            skip(relay, error.size)
            out[name] = str(error)
    relay.settimeout(None)
    return out


def _wait(relay: socket.socket, seconds: float, runs: Callable[[], bool]) -> None:
    """Return once the relay says something (``StreamError``: it does not, or no more)."""
    until = time.monotonic() + seconds
    while not select.select([relay], [], [], LOOK)[0]:
        if not runs():
            raise StreamError("the process at the other end has ended")
        if time.monotonic() >= until:
            raise StreamError("timed out")
