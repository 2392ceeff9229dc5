"""A frame in a message of Flower: a small one as one object, a large one as an array in pieces.

Flower brings every object of a message by requests of its own, at both ends. A record of arrays is
three of them (record, array, piece), a record of settings is one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

SMALL = 1 << 20  # bytes of a frame that goes as one object; Flower cuts arrays into pieces


def as_record(frame: bytes) -> Any:
    """Return the record that holds a frame."""
    from flwr.app import Array, ArrayRecord, ConfigRecord  # optional: fedvlm[flower]

    if len(frame) <= SMALL:
        return ConfigRecord({"f": frame})
    return ArrayRecord({"f": Array(np.frombuffer(frame, np.uint8))})


def frame_of(record: Any) -> bytes:
    """Return the frame of a record, of either kind.

    Raises:
        KeyError: there is none.
    """
    value = record["f"]
    data: bytes = value if isinstance(value, bytes) else value.numpy().tobytes()
    return data
