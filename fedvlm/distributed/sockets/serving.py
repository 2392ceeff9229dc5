"""A site's side of a socket: one caller at a time, an answer to each frame, until it is gone."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable

from fedvlm.distributed.carriers import Answer
from fedvlm.distributed.sockets.stream import StreamError, check_peer, greet, receive, send

_GONE = getattr(select, "POLLRDHUP", select.POLLHUP) | select.POLLHUP | select.POLLERR
REST = 0.1  # seconds before the next caller, where the system could not serve one
_LOOK = 1000  # milliseconds between looks for a caller that is gone


def converse(sock: socket.socket, token: bytes, answer: Answer) -> None:
    """Answer a caller's frames until it hangs up.

    Raises:
        StreamError: it does not know the token, or does not keep to the protocol.
    """
    greet(sock, token)
    while (frame := receive(sock)) is not None:
        send(sock, answer(frame))


def serve(
    door: socket.socket, token: bytes, answer: Answer, say: Callable[[str], None]
) -> None:
    """Answer callers of this user that know the token, one after the other, for ever.

    Raises:
        OSError: the door is closed.
    """
    while True:
        try:
            sock, _ = door.accept()
            with sock:
                check_peer(sock)
                converse(sock, token, answer)
        except (StreamError, OSError) as error:
            if door.fileno() < 0:
                raise
            say(f"a connection ended: {error}")
            if isinstance(error, OSError):  # no file handle is left, for instance
                time.sleep(REST)


def end_with(sock: socket.socket) -> None:
    """End this process as soon as the other side is gone, whatever it is doing.

    A worker whose answer nobody waits for has nothing to do; what it writes is whole at any time.
    """
    def look() -> None:
        poll = select.poll()
        poll.register(sock, _GONE)
        while not poll.poll(_LOOK):
            pass
        os._exit(0)

    threading.Thread(target=look, daemon=True).start()
