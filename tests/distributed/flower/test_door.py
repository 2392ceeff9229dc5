"""Who gets through the door to other machines: SuperNodes with an admitted key, nobody else."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fedvlm.distributed.flower import door
from fedvlm.distributed.flower.door import CALLS, FLEET, Door, Headers, Send
from tests.distributed.flower.keys import LINE, NAME, PEM

OURS = (b"Flwr-Public-Key", base64.b64encode(PEM.encode()))


class Link:
    """Stands for the SuperLink: keeps what comes through."""

    def __init__(self) -> None:
        self.came: list[tuple[str, Headers, bytes]] = []

    async def __call__(
        self, path: str, headers: Headers, body: AsyncIterator[bytes], send: Send
    ) -> None:
        self.came.append((path, headers, b"".join([piece async for piece in body])))
        await send({"type": "http.response.start", "status": 200, "headers": []})


def ask(
    door: Door, path: str = FLEET + "pull-messages", *headers: tuple[bytes, bytes],
    method: str = "POST", body: bytes = b"frame", length: int | None = None,
) -> int:
    """Return the status of the answer to a request."""
    size = str(len(body) if length is None else length).encode()
    pieces = [body[:2], body[2:]]
    told: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(part: Any) -> None:
        told.append(part)

    scope = {"type": "http", "method": method, "path": path, "client": ("192.0.2.1", 1),
             "headers": [*headers, (b"content-length", size), (b"Host", b"x")]}
    asyncio.run(door(scope, receive, send))
    return int(told[0]["status"])


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def open_door(tmp_path: Path, link: Link) -> Door:
    (tmp_path / f"{NAME}.pub").write_text(f"{LINE} {NAME}\n")
    return Door(tmp_path, link)


def test_an_admitted_site_s_requests_go_through_as_they_are(open_door: Door, link: Link) -> None:
    assert [ask(open_door, FLEET + call, OURS) for call in CALLS] == [200] * len(CALLS)
    path, headers, body = link.came[-1]
    assert (path, body) == (FLEET + CALLS[-1], b"frame")
    assert OURS in headers and b"Host" not in dict(headers)


def test_nothing_else_of_the_superlink_is_reached(open_door: Door, link: Link) -> None:
    for path in ("/v1/control/list-nodes", "/v1/runtime/acquire-task", "/docs", "/",
                 FLEET + "register-node", FLEET + "unregister-node",
                 FLEET + "../control/list-nodes", FLEET + "pull-messages/"):
        assert ask(open_door, path, OURS) == 404, path
    assert ask(open_door, FLEET + "get-fab", OURS, method="GET") == 404
    assert not link.came


def test_who_is_not_admitted_or_not_any_more_stays_outside(
    open_door: Door, link: Link, tmp_path: Path
) -> None:
    other = PEM.replace("kGw\n", "kGx\n")
    for headers in ([], [(OURS[0], b"")], [(OURS[0], b"????")],
                    [(OURS[0], base64.b64encode(other.encode()))],
                    [(OURS[0], base64.b64encode(b"-----"))]):
        assert ask(open_door, FLEET + "get-run", *headers) == 401
    assert not link.came and ask(open_door, FLEET + "get-run", OURS) == 200
    (tmp_path / f"{NAME}.pub").unlink()
    assert ask(open_door, FLEET + "get-run", OURS) == 401


def test_what_is_too_large_is_refused(
    open_door: Door, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(open_door, FLEET + "get-run", OURS, length=door.LARGEST + 1) == 413
    monkeypatch.setattr(door, "LARGEST", 4)
    assert ask(open_door, FLEET + "get-run", OURS, length=3) == 413  # more than it said
    assert not link.came
