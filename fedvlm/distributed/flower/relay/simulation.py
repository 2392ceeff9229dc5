"""The relay in Flower's own simulation: both of its ends on Ray, no SuperLink and no SuperNode.

``python -m fedvlm.distributed.flower.relay.simulation PLAN`` is a process of Flower's Python. The
plan (JSON) is ``{"driver": socket, "token": file, "workers": [{"worker": socket, "token": file},
...], "ray": {...}}``: virtual node ``i`` takes frames to worker ``i``, from an actor of Ray. The
driver is told first which node has which number; the rest is the talk of a real federation.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvlm.distributed.flower.relay import client, server

NUMBER = "number"
SECONDS = 600.0  # for Ray to begin its actors


def run(plan: Mapping[str, Any]) -> None:
    """Relay until the driver hangs up.

    Raises:
        RuntimeError: Ray cannot begin, or a node does not say its number.
    """
    from flwr.serverapp import ServerApp  # optional: fedvlm[flower]
    from flwr.simulation import run_simulation  # optional: fedvlm[flower]

    app, count = ServerApp(), len(plan["workers"])

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, context: Any) -> None:
        server.at_driver(grid, plan, lambda: json.dumps(numbers(grid, count)).encode())

    run_simulation(
        app, nodes(plan["workers"]), num_supernodes=count, backend_config={
            "init_args": {"num_cpus": count, **plan["ray"]},
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
        },
    )


def nodes(workers: Sequence[Mapping[str, str]]) -> Any:
    """Return the ClientApp of the virtual nodes."""
    from flwr.app import ConfigRecord, Message, RecordDict  # optional: fedvlm[flower]

    def number_of(context: Any) -> int:
        return int(context.node_config["partition-id"])

    app = client.make(lambda context: workers[number_of(context)])

    @app.query(NUMBER)  # type: ignore[untyped-decorator]
    def number(message: Any, context: Any) -> Any:
        told = ConfigRecord({NUMBER: number_of(context)})
        return Message(RecordDict({NUMBER: told}), reply_to=message)

    return app


def numbers(grid: Any, count: int) -> dict[str, int]:
    """Return the nodes by their numbers, each as it says itself.

    Raises:
        RuntimeError: one does not say it.
    """
    from flwr.app import Message, RecordDict  # optional: fedvlm[flower]

    until = time.monotonic() + SECONDS
    while len(ids := sorted(grid.get_node_ids())) < count and time.monotonic() < until:
        time.sleep(server.EVERY)
    replies = list(grid.send_and_receive([
        Message(RecordDict(), dst_node_id=node, message_type=f"query.{NUMBER}", ttl=SECONDS)
        for node in ids
    ], timeout=SECONDS))
    told = {str(reply.content[NUMBER][NUMBER]): int(reply.metadata.src_node_id)
            for reply in replies if not reply.has_error()}
    if len(told) < count:
        why = next((str(r.error.reason) for r in replies if r.has_error()), "no answer in time")
        raise RuntimeError(f"{count - len(told)} of {count} virtual nodes failed: {why}")
    return told


def main(file: str) -> None:
    """Relay as a plan says; the last line of what is written is why it cannot."""
    try:
        run(json.loads(Path(file).read_text(encoding="utf-8")))
    except BaseException as error:
        traceback.print_exc()
        cause: BaseException = error
        while inner := cause.__cause__ or cause.__context__:
            cause = inner
        traceback.print_exception(cause)
        sys.stderr.flush()
        os._exit(1)  # Flower's thread of the server waits for nodes that never come


if __name__ == "__main__":
    main(sys.argv[1])
