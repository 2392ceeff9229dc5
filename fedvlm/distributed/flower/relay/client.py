"""The relay's end at a site: takes a frame to the site's resident worker, brings its answer back.

What the server sends runs here and no further: the worker, which holds data and model, was begun
by the site itself and reads frames only. Its socket and the file with its token are settings of
the site's SuperNode (``worker``, ``token``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedvlm.distributed.flower.relay.frames import as_record, frame_of
from fedvlm.distributed.sockets.stream import StreamError, connect, reason, receive, send


def make() -> Any:
    """Return the ClientApp."""
    from flwr.app import ConfigRecord, Message, RecordDict  # optional: fedvlm[flower]
    from flwr.clientapp import ClientApp  # optional: fedvlm[flower]

    app = ClientApp()

    @app.query()  # type: ignore[untyped-decorator]
    def query(message: Any, context: Any) -> Any:
        frame = frame_of(message.content["frame"])
        said = call(context.node_config, frame, float(message.metadata.ttl))
        if isinstance(said, bytes):
            content = {"frame": as_record(said)}
        else:
            content = {"why": ConfigRecord({"text": said})}
        return Message(RecordDict(content), reply_to=message)

    return app


def call(settings: Any, frame: bytes, seconds: float) -> bytes | str:
    """Return the worker's answer, or why there is none: a clause that names no path.

    Args:
        settings: ``worker``, the path of its socket; ``token``, of the file with its token.
    """
    try:
        token = Path(str(settings["token"])).read_bytes().strip()
        with connect(Path(str(settings["worker"])), token, seconds) as sock:
            sock.settimeout(seconds)
            send(sock, frame)
            reply = receive(sock)
    except KeyError as error:
        return f"its SuperNode has no setting {error}"
    except OSError as error:
        return f"its SuperNode cannot read the worker's token: {reason(error)}"
    except StreamError as error:
        return f"its worker does not answer: {error}"
    return reply if reply is not None else "its worker ended"
