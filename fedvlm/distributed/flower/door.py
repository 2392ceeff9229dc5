"""The door of a federation to other machines; run by Flower's own Python.

A SuperLink has one port for all its interfaces, and the one that controls it asks for no password.
So it listens on its own machine only, and this process listens for others: over TLS it lets the
requests of admitted sites' SuperNodes through, and nothing else. Whoever has no admitted key is
refused before a byte of the request's body is read; that the caller has the private key, too, the
SuperLink checks.

``python -m fedvlm.distributed.flower.door KEYS UPSTREAM HOST PORT``: the folder of keys,
``host:port`` of the SuperLink, where to listen.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from fedvlm.distributed.flower.invitation import point

LOG = logging.getLogger("door")  # to standard error, which is the door's log
FLEET = "/v1/fleet/"
CALLS = (  # of a SuperNode with a registered key; keys are registered by the coordinator alone
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages",
    "get-run", "get-fab", "push-object", "pull-object", "confirm-message-received",
)
KEY = b"flwr-public-key"  # the header in which a SuperNode says who it is
LARGEST = 64 << 20  # bytes of a request; Flower cuts messages into pieces of 5 MiB
CALLERS = 512  # at once
SECONDS = 60.0  # for the SuperLink to answer
EVERY = 1.0  # seconds between two lines of the log about who was refused
_HOPS = {b"host", b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te",
         b"trailer", b"proxy-authorization", b"proxy-authenticate", b"expect"}
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
Forward = Callable[[str, Headers, AsyncIterator[bytes], Send], Awaitable[None]]


class TooLarge(Exception):
    """A request above the limit."""


class Door:
    """An ASGI application that lets sites through to the SuperLink.

    Args:
        keys: folder with the public keys that are admitted (``*.pub``), read again as it changes.
        forward: brings a request to the SuperLink and its answer back.
    """

    def __init__(self, keys: Path, forward: Forward) -> None:
        self.keys, self.forward = keys, forward
        self._points: set[bytes] = set()
        self._read = -1  # when the folder was last changed, as it was read
        self._said = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        headers: Headers = list(scope["headers"])
        code, why = self.refusal(scope["method"], scope["path"], headers)
        if code:
            self._log(scope, why)
            await _answer(send, code, why)
            return
        kept = [(name, value) for name, value in headers if name.lower() not in _HOPS]
        try:
            await self.forward(scope["path"], kept, _body(receive), send)
        except TooLarge:
            await _answer(send, 413, f"above {LARGEST} bytes")

    def refusal(self, method: str, path: str, headers: Headers) -> tuple[int, str]:
        """Return the HTTP status of a refusal and why; 0: the request may go on."""
        told = {name.lower(): value for name, value in headers}
        if method != "POST" or path not in {FLEET + call for call in CALLS}:
            return 404, "only the requests of SuperNodes go through"
        size = told.get(b"content-length", b"")
        if not size.isdigit() or int(size) > LARGEST:
            return 413, f"a request must state its length, at most {LARGEST} bytes"
        if self._of(told.get(KEY, b"")) not in self.admitted():
            return 401, "this key is not admitted"
        return 0, ""

    def admitted(self) -> set[bytes]:
        """Return the points of the admitted keys."""
        with contextlib.suppress(OSError):
            changed = self.keys.stat().st_mtime_ns
            if changed != self._read:
                self._points = {point(p.read_text()) for p in self.keys.glob("*.pub")}
                self._read = changed
        return self._points

    @staticmethod
    def _of(header: bytes) -> bytes:
        """Return the point of the key in a header; empty: there is none."""
        with contextlib.suppress(ValueError, IndexError):
            return point(base64.b64decode(header, validate=True).decode())
        return b""

    def _log(self, scope: Scope, why: str) -> None:
        now = time.monotonic()
        if now - self._said >= EVERY:
            self._said = now
            who = (scope.get("client") or ("?",))[0]
            LOG.warning("refused %s: %.8s %.60r: %s", who, scope["method"], scope["path"], why)


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the pieces of a request (``TooLarge``: it is more than it said)."""
    size, more = 0, True
    while more:
        part = await receive()
        if part["type"] == "http.disconnect":
            return
        piece = part.get("body", b"")
        more, size = part.get("more_body", False), size + len(piece)
        if size > LARGEST:
            raise TooLarge
        if piece:
            yield piece


async def _answer(send: Send, code: int, why: str) -> None:
    await send({"type": "http.response.start", "status": code,
                "headers": [(b"content-type", b"text/plain"), (b"connection", b"close")]})
    await send({"type": "http.response.body", "body": why.encode()})


def main(keys: Path, upstream: str, host: str, port: int) -> None:
    """Listen until this process is ended."""
    import httpx  # optional: fedvlm[flower]
    import uvicorn  # optional: fedvlm[flower]

    trust = ssl.create_default_context(cafile=str(keys / "ca.crt"))
    link = httpx.AsyncClient(base_url=f"https://{upstream}", verify=trust, timeout=SECONDS,
                             trust_env=False)

    async def forward(path: str, headers: Headers, body: AsyncIterator[bytes], send: Send) -> None:
        asked = link.build_request("POST", path, headers=headers, content=body)
        try:
            said = await link.send(asked, stream=True)
        except httpx.TransportError:
            await _answer(send, 503, "the SuperLink does not answer")
            return
        kept = [(name, value) for name, value in said.headers.raw if name.lower() not in _HOPS]
        try:
            await send({"type": "http.response.start", "status": said.status_code, "headers": kept})
            async for piece in said.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body"})
        finally:
            await said.aclose()

    config = uvicorn.Config(
        Door(keys, forward), host=host, port=port, lifespan="off", access_log=False,
        log_level="warning", server_header=False, limit_concurrency=CALLERS,
        timeout_keep_alive=30, ws="none", ssl_certfile=str(keys / "link.pem"),
        ssl_keyfile=str(keys / "link.key"),
    )
    config.load()
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_3
    LOG.warning("listens at %s:%d", host, port)
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
