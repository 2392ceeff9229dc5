"""The relay's end beside the SuperLink: takes the driver's frames to sites, brings answers back.

It is begun by Flower and comes to the driver's socket. There it proves itself as a worker does
(``sockets.stream``), then answers requests: a head (JSON), and for ``ask`` a frame for each site
of it. ``{"op": "sites", "nodes": {name: node}}`` is answered by those of the nodes that are there,
``{"op": "ask", "nodes": {...}, "sites": [...], "seconds": s}`` by ``{name: null or why there is no
answer}`` and the frames of the nulls, in order. Nodes are the numbers that the SuperLink gave to
the registered keys; names that it tells are not unique, and not read. It keeps nothing; it ends as
the driver hangs up.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvlm.distributed.flower.relay.frames import as_record, frame_of
from fedvlm.distributed.sockets.stream import greet, receive, send

PATIENCE = 120.0  # seconds for the driver, which hears so late of us on a busy machine
EVERY = 1.0  # seconds between two looks for answers
LOOK = 5.0  # seconds between two looks whether the sites are connected
OFFLINE = "it is not connected to the SuperLink"
GONE = "it is not connected to the SuperLink any more"
ERRORS = {  # codes of Flower that somebody can do something about
    1: "its relay cannot be loaded", 2: "its relay failed", 3: "no answer within its time",
    4: "its answer was lost in transit", 5: "its SuperNode has ended", 8: "its relay was ended",
}


def make() -> Any:
    """Return the ServerApp."""
    from flwr.serverapp import ServerApp  # optional: fedvlm[flower]

    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, context: Any) -> None:
        at_driver(grid, context.run_config)

    return app


def at_driver(grid: Any, settings: Mapping[str, Any]) -> None:
    """Come to the driver and answer its requests.

    Args:
        settings: ``driver``, the path of its socket; ``token``, of the file with its token.
    """
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(settings["driver"]))
        greet(sock, Path(str(settings["token"])).read_bytes(), PATIENCE)
        converse(grid, sock)


def converse(grid: Any, sock: socket.socket) -> None:
    """Answer the driver's requests until it hangs up."""
    while (head := receive(sock)) is not None:
        asked = json.loads(head)
        if asked["op"] == "sites":
            send(sock, json.dumps(online(grid, asked["nodes"])).encode())
            continue
        frames = {name: receive(sock) or b"" for name in asked["sites"]}
        told = ask(grid, asked["nodes"], frames, float(asked["seconds"]), sock)
        if told is None:
            return
        why = {name: None if isinstance(said, bytes) else said for name, said in told.items()}
        send(sock, json.dumps(why).encode())
        for said in told.values():
            if isinstance(said, bytes):
                send(sock, said)


def online(grid: Any, nodes: Mapping[str, int]) -> dict[str, int]:
    """Return those of the sites that are there; other nodes are ignored."""
    here = {int(node.node_id) for node in grid.get_nodes() if node.status == "online"}
    return {name: node for name, node in nodes.items() if node in here}


def ask(
    grid: Any, nodes: Mapping[str, int], frames: Mapping[str, bytes], seconds: float,
    driver: socket.socket,
) -> dict[str, bytes | str] | None:
    """Return each site's answer or why there is none; None: the driver is gone."""
    here = online(grid, nodes)
    names = [name for name in frames if name in here]
    ids = list(grid.push_messages([
        _message(frames[name], here[name], seconds) for name in names
    ])) if names else []
    waiting = {message: name for message, name in zip(ids, names) if message}
    out: dict[str, bytes | str] = {name: OFFLINE for name in frames if name not in here}
    until, look = time.monotonic() + seconds, time.monotonic() + LOOK
    while waiting and time.monotonic() < until:
        if select.select([driver], [], [], EVERY)[0]:  # no site has answered at once
            return None  # it says nothing meanwhile, unless it is gone
        if time.monotonic() >= look:  # a SuperNode that said good-bye answers no more
            gone, look = set(names) - set(online(grid, nodes)), time.monotonic() + LOOK
            out |= {name: GONE for name in waiting.values() if name in gone}
            waiting = {message: name for message, name in waiting.items() if name not in gone}
        for reply in grid.pull_messages(list(waiting)):
            name = waiting.pop(reply.metadata.reply_to_message_id)
            out[name] = _read(reply)
    return {name: out.get(name, f"no answer within {seconds:g} s") for name in frames}


def _message(frame: bytes, node: int, seconds: float) -> Any:
    from flwr.app import Message, RecordDict  # optional: fedvlm[flower]

    return Message(
        RecordDict({"frame": as_record(frame)}), dst_node_id=node, message_type="query", ttl=seconds
    )


def _read(reply: Any) -> bytes | str:
    """Return what a site's end of the relay brought."""
    if reply.has_error():
        code = int(reply.error.code)
        return f"{ERRORS.get(code, 'Flower could not bring an answer')} (Flower's code {code})"
    if "frame" in reply.content:
        return frame_of(reply.content["frame"])
    return str(reply.content["why"]["text"])[:300]
