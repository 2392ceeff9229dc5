"""A site's side of a socket: an answer to each frame of its callers, one at a time."""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

from fedvlm.distributed.carriers import Answer
from fedvlm.distributed.schema import LIMIT
from fedvlm.distributed.sockets.stream import StreamError, TooLong, check_peer, greet, receive, send

_GONE = getattr(select, "POLLRDHUP", select.POLLHUP) | select.POLLHUP | select.POLLERR
Reply = queue.SimpleQueue[bytes]
CALLERS = 64  # at once; then the one that is silent for the longest goes
HURRY = 5.0  # seconds for a caller's greeting
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
    door: socket.socket, token: bytes, answer: Answer, say: Callable[[str], None],
    most: int = LIMIT, refuse: Callable[[int], bytes] | None = None,
) -> None:
    """Answer callers of this user that know the token, a frame at a time, for ever.

    Each caller is heard in a thread of its own, so that who is silent or slow delays nobody; the
    answers are made here, in the order in which frames came.

    Args:
        most: bytes of a frame; a longer one is refused at its length.
        refuse: its length -> the answer to it.

    Raises:
        OSError: the door is closed.
    """
    hall = _Hall(door, token, say, most, refuse)
    threading.Thread(target=hall.let_in, daemon=True).start()
    while True:
        asked = hall.asked.get()
        if isinstance(asked, OSError):
            raise asked
        sock, frame, reply = asked
        reply.put(b"" if _is_gone(sock) else answer(frame))


class _Hall:
    """The callers that are there; see ``serve``."""

    def __init__(
        self, door: socket.socket, token: bytes, say: Callable[[str], None], most: int,
        refuse: Callable[[int], bytes] | None,
    ) -> None:
        self.door, self.token, self.say, self.most, self.refuse = door, token, say, most, refuse
        self.asked: queue.SimpleQueue[OSError | tuple[socket.socket, bytes, Reply]] = (
            queue.SimpleQueue())
        self._free = threading.BoundedSemaphore(CALLERS)
        self._idle: dict[socket.socket, None] = {}  # who says nothing, the longest first

    def let_in(self) -> None:
        """Hear each caller in a thread, until the door is closed."""
        while True:
            try:
                sock, _ = self.door.accept()
            except OSError as error:
                if self.door.fileno() < 0:
                    self.asked.put(error)
                    return
                self.say(f"a connection ended: {error}")
                time.sleep(REST)  # no file handle is left, for instance
                continue
            while not self._free.acquire(timeout=REST):
                for longest in list(self._idle)[:1]:
                    with contextlib.suppress(OSError):
                        longest.shutdown(socket.SHUT_RDWR)  # its thread hears that
            threading.Thread(target=self._hear, args=(sock,), daemon=True).start()

    def _hear(self, sock: socket.socket) -> None:
        """Pass a caller's frames on and bring the answers, until it hangs up."""
        reply: Reply = queue.SimpleQueue()
        try:
            with sock:
                check_peer(sock)
                greet(sock, self.token, HURRY)
                while (frame := self._next(sock)) is not None:
                    self.asked.put((sock, frame, reply))
                    send(sock, reply.get())
        except (StreamError, OSError) as error:
            self.say(f"a connection ended: {error}")
        finally:
            self._free.release()

    def _next(self, sock: socket.socket) -> bytes | None:
        """Return the caller's next frame (``StreamError``: it is cut, or too long)."""
        self._idle[sock] = None
        try:
            return receive(sock, self.most)
        except TooLong as error:
            if self.refuse is not None:
                send(sock, self.refuse(error.size))
            raise
        finally:
            del self._idle[sock]


def _is_gone(sock: socket.socket) -> bool:
    """Say whether a caller hung up: nobody waits for its answer."""
    poll = select.poll()
    poll.register(sock, _GONE)
    return bool(poll.poll(0))


def end_with(sock: socket.socket, beat: socket.socket | None = None) -> None:
    """End this process as soon as the other side is gone, whatever it is doing.

    A worker whose answer nobody waits for has nothing to do; what it writes is whole at any time.
    A process that is stopped (SIGSTOP) ends with the one that began it, too, where the system can.

    Args:
        beat: gets a byte in each second in which another thread of this process did something.
    """
    def tell() -> None:
        with contextlib.suppress(OSError):  # full: the other side is busy
            if beat is not None:
                beat.send(b".", socket.MSG_DONTWAIT)

    def look() -> None:
        poll, done = select.poll(), 0.0
        poll.register(sock, _GONE)
        while not poll.poll(_LOOK):
            spent = time.process_time() - time.thread_time()  # others': who hangs spends none
            if spent - done >= _WORK:
                done = spent
                tell()
        os._exit(0)

    tell()

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH, signal.SIGKILL)
    threading.Thread(target=look, daemon=True).start()
