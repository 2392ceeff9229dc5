"""Frames on a stream socket; who is on the other side is made sure of before a frame is read.

The worker speaks first: ``HELLO`` and 32 random bytes. The caller answers with 32 bytes of its own
and HMAC-SHA256(token, "caller" + both); the worker checks that and proves itself by
HMAC-SHA256(token, "worker" + both). From then on each frame is its length (8 bytes, little endian)
and its bytes. The token itself never travels. Nothing is encrypted: beyond a machine or a cluster's
own network that is for a tunnel, or another carrier.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import stat
import struct
import time
from pathlib import Path

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.files import user_path
from fedvlm.distributed.schema import LIMIT

HELLO = b"fedvlm-socket/1\n"
NONCE = PROOF = 32
LENGTH = struct.Struct("<Q")
PATIENCE = 10.0  # seconds for the whole greeting
SHORTEST = 16  # characters of a token
UNIX = "unix:"
_PIECE = 1 << 20


class StreamError(FedvlmError):
    """The other side is gone, or does not keep to the protocol: one clause."""


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


def present(sock: socket.socket, token: bytes, seconds: float | None = None) -> None:
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
            raise StreamError("what answers there is no worker of this version")
        ours = secrets.token_bytes(NONCE)
        both = said[len(HELLO) :] + ours
        sock.sendall(ours + _proof(token, b"caller", both))
        proof = _exactly(sock, PROOF, until=until)
    except TimeoutError:
        raise StreamError("it says nothing: another run may be using it") from None
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


def receive(sock: socket.socket) -> bytes | None:
    """Read a frame; None where the other side has closed the connection between two.

    Raises:
        StreamError: it is gone within a frame, or the frame is above the limit.
    """
    try:
        head = _exactly(sock, LENGTH.size, end=True)
        return _exactly(sock, sized(head)) if head else None
    except OSError as error:
        raise StreamError(reason(error)) from None


def sized(head: bytes) -> int:
    """Return the length that a frame's first bytes tell.

    Raises:
        StreamError: above the limit.
    """
    size: int = LENGTH.unpack(head)[0]
    if size > LIMIT:
        raise StreamError(f"a frame of {size} bytes is above the limit of {LIMIT}")
    return size


def connect(address: str, token: bytes, seconds: float | None = None) -> socket.socket:
    """Return a connection to a worker that knows the token.

    Args:
        address: ``host:port`` or ``unix:PATH``.
        seconds: to reach it, and again for the greeting; None: ``PATIENCE``.

    Raises:
        StreamError: nobody is there, or somebody else.
    """
    try:
        sock = _opened(address, PATIENCE if seconds is None else seconds)
    except OSError as error:
        raise StreamError(reason(error)) from None
    try:
        present(sock, token, seconds)
    except BaseException:
        sock.close()
        raise
    return sock


def _opened(address: str, seconds: float) -> socket.socket:
    if address.startswith(UNIX):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(seconds)
        try:
            sock.connect(address.removeprefix(UNIX))
        except BaseException:
            sock.close()
            raise
        return sock
    sock = socket.create_connection(host_port(address), seconds)
    watch(sock)
    return sock


def watch(sock: socket.socket) -> None:
    """Let a connection end within two minutes of the other machine's end, where it is TCP."""
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):  # not everywhere
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def listen(address: str) -> socket.socket:
    """Return a socket that waits for callers; one of a path is its owner's alone.

    Raises:
        ConfigError: no address, or one that cannot be had.
    """
    try:
        if address.startswith(UNIX):
            path = Path(address.removeprefix(UNIX))
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
        host, port = host_port(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(f"cannot listen at {address}: {reason(error)}") from None


def _clear(path: Path) -> None:
    """Delete the socket of a process that is gone.

    Raises:
        ConfigError: somebody listens there.
        OSError: nobody can say.
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
    raise ConfigError(
        f"cannot listen at {UNIX}{path}: another worker does; end it, or take another path"
    )


def host_port(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``.

    Raises:
        ConfigError: it is none.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"'{address}' is no address: it is host:port, or {UNIX}PATH")
    return host.strip("[]"), int(port)


def read_token(path: str) -> bytes:
    """Return the secret in a file that only its owner may read.

    Raises:
        ConfigError: it is not there, too short, or others may read it.
    """
    file = user_path(path)
    try:
        token, mode = file.read_bytes().strip(), file.stat().st_mode
    except OSError as error:
        raise ConfigError(f"the token file '{file}' cannot be read: {reason(error)}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"others may read the token file '{file}': chmod 600 {file}")
    if len(token) < SHORTEST:
        raise ConfigError(
            f"the token in '{file}' is shorter than {SHORTEST} characters: write a new one, for "
            f"instance with (umask 077; openssl rand -hex 32 > {file})"
        )
    return token


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
