"""A site's side of a socket: one caller at a time, an answer to each frame, until it is gone."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

from fedvlm.distributed.carriers import Answer
from fedvlm.distributed.sockets.stream import StreamError, check_peer, greet, receive, send

_GONE = getattr(select, "POLLRDHUP", select.POLLHUP) | select.POLLHUP | select.POLLERR
REST = 0.1  # seconds before the next caller, where the system could not serve one
_LOOK = 1000  # milliseconds between looks for a caller that is gone
_WORK = 1e-4  # seconds of processor time that are a sign of life; the watch itself counts as none
_DEATH = 1  # Linux: the signal that comes with the parent's death (``prctl``)


def converse(
    sock: socket.socket, token: bytes, answer: Answer, patience: float | None = None
) -> None:
    """Answer a caller's frames until it hangs up.

    Args:
        patience: seconds for the greeting; by default ``stream.PATIENCE``.

    Raises:
        StreamError: it does not know the token, or does not keep to the protocol.
    """
    greet(sock, token, patience)
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


def end_with(sock: socket.socket, beat: socket.socket | None = None) -> None:
    """End this process as soon as the other side is gone, whatever it is doing.

    A worker whose answer nobody waits for has nothing to do; what it writes is whole at any time.
    A process that is stopped (SIGSTOP) ends with the one that began it, too, where the system can.

    Args:
        beat: gets a byte in each second in which another thread of this process did something.
    """
    def look() -> None:
        poll, done = select.poll(), -1.0
        poll.register(sock, _GONE)
        while not poll.poll(_LOOK):
            spent = time.process_time() - time.thread_time()  # others': who hangs spends none
            if beat is not None and spent - done >= _WORK:
                done = spent
                with contextlib.suppress(OSError):  # full: the other side is busy
                    beat.send(b".", socket.MSG_DONTWAIT)
        os._exit(0)

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH, signal.SIGKILL)
    threading.Thread(target=look, daemon=True).start()
