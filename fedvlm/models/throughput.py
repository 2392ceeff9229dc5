"""Where the time of a pass over images went: looking up, decoding, encoding, storing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Throughput:
    """Counts and seconds of one pass, or of several added up.

    The encoding thread's seconds are ``looking_up``, ``waiting``, ``encoding`` and ``storing``;
    they make up ``wall``. The decoding threads' are ``loading``, summed over the threads.

    Attributes:
        encoded, known: images that went through the tower, and those that did not have to.
        workers: decoding threads.
        looking_up: opening the store and finding what is there.
        waiting: for images that are not decoded yet, with handing them to the threads.
        loading: reading, decoding and transforming.
        reading: the part of ``loading`` that is file access (and its checksum), where it is known.
    """

    encoded: int = 0
    known: int = 0
    workers: int = 0
    wall: float = 0.0
    looking_up: float = 0.0
    waiting: float = 0.0
    encoding: float = 0.0
    storing: float = 0.0
    loading: float = 0.0
    reading: float = 0.0

    @contextmanager
    def clock(self, part: str) -> Iterator[None]:
        """Add the seconds of a block to the attribute ``part``."""
        began = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, part, getattr(self, part) + time.perf_counter() - began)

    @property
    def rate(self) -> float:
        """Encoded images per second of the whole pass; 0 where none was."""
        return self.encoded / self.wall if self.encoded and self.wall else 0.0

    def sentence(self, what: str = "image features") -> str:
        """Return the report: one line about ``what`` was computed."""
        if not self.encoded:
            # Without seconds: the runs of a sweep that encode nothing say the same.
            return f"{what}: all {self.known:,} from the store"
        stored = f", {self.known:,} from the store" if self.known else ""
        slow = "encoding" if self.encoding > self.waiting else "decoding"
        return (
            f"{what}: {self.encoded:,} encoded{stored} in {self.wall:.1f} s = "
            f"{self.rate:,.0f} images/s, limited by {slow} (encoding {self.encoding:.1f} s, "
            f"waiting for images {self.waiting:.1f} s, storing {self.storing:.1f} s, looking up "
            f"{self.looking_up:.1f} s; meanwhile {self.workers} thread(s) spent "
            f"{self.reading:.1f} s reading and {max(self.loading - self.reading, 0.0):.1f} s "
            "decoding)"
        )
