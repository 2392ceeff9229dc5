"""A SuperNode that runs no app from the wire; begun by a site, run by Flower's own Python.

Flower's SuperNode takes messages from a SuperLink, and with them the app that has to answer them.
Usually it unpacks and runs that app. This one is begun with ``--isolation process``, so that it
runs nothing and waits for somebody who takes its tasks; that is the thread here. It answers every
message by the relay that is installed at this site (``relay.client``) and never opens what came as
an app. Tasks are given only to who knows a secret that the site made.

``python -m fedvlm.distributed.flower.relay.node SECRET HOST:PORT WORDS...``: the file of the
secret, where the SuperNode gives its tasks, the words of ``flower-supernode``. It ends as whoever
began it closes its standard input.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from fedvlm.distributed.flower.relay.client import make

LOG = logging.getLogger("relay")
EVERY = 0.5  # seconds between two looks for a task, which cost 10 ms of CPU each
AWAY = 1.0  # seconds before the next, where the SuperNode does not answer
FAILED = 70  # exit code where the relay itself fails
LEAVE = 10.0  # seconds for the SuperNode to say good-bye


def main(secret: Path, address: str, words: list[str]) -> None:
    """Run the SuperNode and answer its tasks until it ends."""
    from flwr.supernode.cli.flower_supernode import flower_supernode  # optional: fedvlm[flower]

    threading.Thread(target=_end_with_parent, daemon=True).start()
    threading.Thread(target=_work, args=(secret.read_bytes(), address), daemon=True).start()
    sys.argv = ["flower-supernode", *words, "--isolation", "process",
                "--superexec-auth-secret-file", str(secret)]
    flower_supernode()


def _end_with_parent() -> None:
    """End this process when nobody holds the other end of its standard input any more."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LEAVE)
    os._exit(1)


def _work(secret: bytes, address: str) -> None:
    """Answer tasks for ever; whatever fails that is not the network's doing ends the process."""
    try:
        _serve(secret, address)
    except BaseException:
        traceback.print_exc()  # the last word of the log: who began this shows it
        os._exit(FAILED)


def _serve(secret: bytes, address: str) -> None:
    import httpx  # optional: fedvlm[flower]
    from flwr.proto.runtime_pb2 import AcquireTaskRequest  # optional: fedvlm[flower]
    from flwr.supercore.constant import TaskType  # optional: fedvlm[flower]
    from flwr.supercore.interceptors import (  # optional: fedvlm[flower]
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.runtime import RuntimeHttpClient  # optional: fedvlm[flower]

    def client(name: str, *more: Any) -> Any:
        version = RuntimeVersionHttpInterceptor(component_name=name)
        return RuntimeHttpClient.from_server_address(
            address, insecure=True, root_certificates=None, interceptors=[version, *more])

    app, asked = make(), AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    takes = client("SuperExec", SuperExecAuthHttpInterceptor(
        master_secret=secret, protected_methods=frozenset({"/flwr.proto.Runtime/AcquireTask"})))
    while True:
        try:
            told = takes.AcquireTask(asked)
            if told.HasField("task") and told.token:
                answer(app, client("flwr-clientapp", RuntimeTokenHttpInterceptor(told.token)))
        except httpx.TransportError:  # it is not up yet, or going
            time.sleep(AWAY)
        except httpx.HTTPStatusError as error:  # a task that is over, for instance
            LOG.warning("%s", error)
            time.sleep(AWAY)
        time.sleep(EVERY)


def answer(app: Any, task: Any) -> None:
    """Answer one message by the installed relay; the app that came with it stays closed.

    Args:
        app: the relay's end at a site.
        task: a client of the SuperNode that has the task's token.
    """
    from flwr.app import Message  # optional: fedvlm[flower]
    from flwr.app.error import Error  # optional: fedvlm[flower]
    from flwr.common.constant import ErrorCode, SubStatus  # optional: fedvlm[flower]
    from flwr.supercore.heartbeat import (  # optional: fedvlm[flower]
        HeartbeatSender,
        make_task_heartbeat_fn_http,
    )
    from flwr.supernode.runtime.run_clientapp import (  # optional: fedvlm[flower]
        pull_task_input,
        push_message,
        push_task_output,
    )

    beat = HeartbeatSender(make_task_heartbeat_fn_http(task))
    beat.start()
    try:
        message, context, _run, _app = pull_task_input(task)
        try:
            reply = app(message=message, context=context)
        except Exception:  # another app's message: its text stays here
            traceback.print_exc()
            reply = Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION,
                                  reason="the relay failed"), reply_to=message)
        push_message(task, reply, context)
        push_task_output(client=task, context=None, sub_status=SubStatus.COMPLETED, details="")
    finally:
        beat.stop()
        task.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
