"""Frames on a socket of this machine, which only its owner can open: there is no other address.

A site waits at a path: in a folder that its owner alone may enter, with a mode of 600, and each
side asks the system whose process the other one is. The site speaks first: ``HELLO`` and 32 random
bytes. The caller answers with 32 bytes of its own and HMAC-SHA256(token, "caller" + both); the site
checks that and proves itself by HMAC-SHA256(token, "worker" + both). From then on each frame is its
length (8 bytes, little endian) and its bytes. Processes of one user have an empty token, Flower's
relay one that its site made for it; the token never travels.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import struct
import time
from pathlib import Path

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.distributed.schema import LIMIT, too_long

HELLO = b"fedvlm-socket/1\n"
NONCE = PROOF = 32
LENGTH = struct.Struct("<Q")
_PEER = struct.Struct("3i")  # process, user, group
PATIENCE = 10.0  # seconds for the whole greeting
EVER = 30 * 86400.0  # seconds, where another sign than time ends a wait
ALONE = 0o77  # bits of a mode that let others in
_PIECE = 1 << 20


class StreamError(FedvlmError):
    """The other side is gone, or does not keep to the protocol: one clause."""


class TooLong(StreamError):
    """A frame above a limit, of which only the length was read.

    Attributes:
        size: in bytes, as its sender says.
    """

    def __init__(self, size: int, most: int) -> None:
        super().__init__(too_long(size, most))
        self.size = size


def greet(sock: socket.socket, token: bytes, seconds: float | None = None) -> None:
    """Say hello as a worker and let nobody in who does not know the token.

    Args:
        seconds: for the whole greeting; None: ``PATIENCE``.

    Raises:
        StreamError: the caller does not, or is gone.
    """
    seconds = PATIENCE if seconds is None else seconds
    until = time.monotonic() + seconds
    sock.settimeout(seconds)
    ours = secrets.token_bytes(NONCE)
    try:
        sock.sendall(HELLO + ours)
        said = _exactly(sock, NONCE + PROOF, until=until)
        both = ours + said[:NONCE]
        if not hmac.compare_digest(said[NONCE:], _proof(token, b"caller", both)):
            raise StreamError("a caller does not know the token")
        sock.sendall(_proof(token, b"worker", both))
    except OSError as error:
        raise StreamError(reason(error)) from None
    sock.settimeout(None)


def answer_hello(sock: socket.socket, token: bytes, seconds: float | None = None) -> None:
    """Answer a worker's hello, and make sure that it knows the token.

    Args:
        seconds: for the whole greeting; None: ``PATIENCE``.

    Raises:
        StreamError: it does not, is busy, or is no worker.
    """
    until = time.monotonic() + (PATIENCE if seconds is None else seconds)
    try:
        said = _exactly(sock, len(HELLO) + NONCE, until=until)
        if said[: len(HELLO)] != HELLO:
            raise StreamError("the process that answers is not a worker of this version")
        ours = secrets.token_bytes(NONCE)
        both = said[len(HELLO) :] + ours
        sock.sendall(ours + _proof(token, b"caller", both))
        proof = _exactly(sock, PROOF, until=until)
    except TimeoutError:
        raise StreamError("it does not answer: another run may be using it") from None
    except StreamError as error:
        if "closed" in str(error):
            raise StreamError("it closed the connection: is the token the same?") from None
        raise
    except OSError as error:
        raise StreamError(reason(error)) from None
    if not hmac.compare_digest(proof, _proof(token, b"worker", both)):
        raise StreamError("it does not know the token")
    sock.settimeout(None)


def send(sock: socket.socket, data: bytes) -> None:
    """Write a frame.

    Raises:
        StreamError: the other side is gone.
    """
    try:
        sock.sendall(LENGTH.pack(len(data)))
        sock.sendall(data)
    except OSError as error:
        raise StreamError(reason(error)) from None


def receive(sock: socket.socket, most: int = LIMIT) -> bytes | None:
    """Read a frame; None where the other side has closed the connection between two.

    Args:
        most: bytes of it; a longer one is refused at its length.

    Raises:
        StreamError: it is gone within a frame, or the frame is above the limit.
    """
    try:
        head = _exactly(sock, LENGTH.size, end=True)
        return _exactly(sock, read_length(head, most)) if head else None
    except OSError as error:
        raise StreamError(reason(error)) from None


def skip(sock: socket.socket, size: int) -> None:
    """Read so many bytes and keep none: of a frame whose length was too long.

    Raises:
        StreamError: the other side is gone before.
    """
    try:
        while size > 0:
            piece = sock.recv(min(_PIECE, size))
            if not piece:
                raise StreamError("it closed the connection")
            size -= len(piece)
    except OSError as error:
        raise StreamError(reason(error)) from None


def read_length(head: bytes, most: int = LIMIT) -> int:
    """Return the length that a frame's first bytes tell.

    Raises:
        TooLong: above the limit.
    """
    size: int = LENGTH.unpack(head)[0]
    if size > most:
        raise TooLong(size, most)
    return size


def connect(path: Path, token: bytes, seconds: float | None = None) -> socket.socket:
    """Return a connection to the site at a path, made sure of.

    Args:
        seconds: to reach it, and again for the greeting; None: ``PATIENCE``.

    Raises:
        StreamError: no process listens there, or another user's, or one with another token.
    """
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(PATIENCE if seconds is None else seconds)
        try:
            sock.connect(str(path))
        except OSError as error:
            raise StreamError(reason(error)) from None
        check_peer(sock)
        answer_hello(sock, token, seconds)
    except BaseException:
        sock.close()
        raise
    return sock


def check_peer(sock: socket.socket) -> None:
    """Refuse a connection to a process of another user.

    Where the system does not tell whose it is, the folder's mode alone stands for that.

    Raises:
        StreamError: it is another user's.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return
    told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    if _PEER.unpack(told)[1] != os.getuid():
        raise StreamError("its process belongs to another user")


def listen(path: Path) -> socket.socket:
    """Return a socket that waits for callers of this user at a path.

    Its folder is made where there is none, for the owner alone.

    Raises:
        ConfigError: others may enter the folder, another process listens there, or the path cannot
            be had.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        told = path.parent.stat()
        if told.st_uid != os.getuid() or told.st_mode & ALONE:
            raise ConfigError(
                f"cannot listen at {path}: others may enter its folder; chmod 700 {path.parent}, "
                "or give a folder that does not exist yet"
            )
        if path.is_socket():
            _clear(path)
        sock = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)
        try:
            sock.bind(str(path))
        finally:
            os.umask(before)
        sock.listen(4)
        return sock
    except OSError as error:
        raise ConfigError(f"cannot listen at {path}: {reason(error)}") from None


def _clear(path: Path) -> None:
    """Delete the socket of a process that is gone.

    Raises:
        ConfigError: a process listens there.
        OSError: the system does not tell.
    """
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE)
        try:
            sock.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except (TimeoutError, BlockingIOError):
            pass  # as many callers as it lets wait
    raise ConfigError(f"cannot listen at {path}: another process does; end it, or take another "
                      "path")


def _proof(token: bytes, who: bytes, both: bytes) -> bytes:
    return hmac.new(token, who + both, hashlib.sha256).digest()


def _exactly(
    sock: socket.socket, size: int, end: bool = False, until: float | None = None
) -> bytes:
    """Return ``size`` bytes; memory grows with what comes, not with what a length promises.

    Args:
        until: time (``time.monotonic``) for all of them, however slowly they come.
    """
    data = bytearray()
    while len(data) < size:
        if until is not None:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            sock.settimeout(left)
        piece = sock.recv(min(_PIECE, size - len(data)))
        if not piece:
            if end and not data:
                return b""
            raise StreamError("it closed the connection")
        data += piece
    return bytes(data)


def reason(error: Exception) -> str:
    """Return what an error says, as a clause."""
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
