"""Decoding ahead: threads prepare the next batches of images while one is encoded, timed."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

AHEAD = 2  # batches being decoded while one is encoded
MOST = 16  # threads: more wait for Python's lock
Load = Callable[[int], Tensor]
_Loaded = tuple[Tensor, float]


@dataclass
class Throughput:
    """Counts and seconds of one pass, or of several added up.

    The encoding thread's seconds are ``looking_up``, ``waiting``, ``encoding`` and ``storing``;
    they make up ``wall``. The decoding threads' are ``loading``, summed over the threads.

    Attributes:
        encoded, hits: images that went through the tower, and those from the store.
        packed: images whose features are in a pack.
        workers: decoding threads.
        looking_up: opening the store and finding what is there.
        waiting: for images that are not decoded yet, with handing them to the threads.
        loading: reading, decoding and transforming.
        reading: the part of ``loading`` that is file access (and its checksum), where it is known.
    """

    encoded: int = 0
    hits: int = 0
    packed: int = 0
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
        if self.packed and not self.encoded + self.hits:
            return f"{what}: all {self.packed:,} from a pack"
        if not self.encoded:
            # Without seconds: the runs of a sweep that encode nothing say the same.
            return f"{what}: all {self.hits:,} from the cache"
        stored = f", {self.hits:,} from the cache" if self.hits else ""
        slow = "encoding" if self.encoding > self.waiting else "decoding"
        return (
            f"{what}: {self.encoded:,} encoded{stored} in {self.wall:.1f} s = "
            f"{self.rate:,.0f} images/s, limited by {slow} (encoding {self.encoding:.1f} s, "
            f"waiting for images {self.waiting:.1f} s, storing {self.storing:.1f} s, looking up "
            f"{self.looking_up:.1f} s; meanwhile {self.workers} thread(s) spent "
            f"{self.reading:.1f} s reading and {max(self.loading - self.reading, 0.0):.1f} s "
            "decoding)"
        )


def decoding_threads(workers: int = 0) -> int:
    """Return how many threads decode: ``workers``, or one per usable core where that is 0."""
    if workers > 0:
        return workers
    bound = hasattr(os, "sched_getaffinity")  # cores of this process, not of the machine
    cores = len(os.sched_getaffinity(0)) if bound else os.cpu_count() or 1
    return max(1, min(MOST, cores))


def decode_ahead(
    wanted: Sequence[int], load: Load, size: int, spent: Throughput, workers: int = 0
) -> Iterator[tuple[Sequence[int], Tensor]]:
    """Yield (positions, pixels ``[b, 3, H, W]``) of b <= ``size`` images, in order.

    While the caller works on one batch, the next ``AHEAD`` are decoded.

    Args:
        wanted: positions, the argument of ``load``.
        load: position -> pixels ``[3, H, W]``; called from threads.
        size: images per batch.
        spent: gets ``loading``, ``waiting`` and ``workers``.
        workers: threads; 0 is by cores.

    Raises:
        Exception: of ``load``, at the batch that holds the image.
    """
    spans = [wanted[at : at + size] for at in range(0, len(wanted), size)]
    pending: deque[tuple[Sequence[int], list[Future[_Loaded]]]] = deque()
    spent.workers = max(spent.workers, threads := decoding_threads(workers))

    def timed(position: int) -> _Loaded:
        began = time.perf_counter()
        return load(position), time.perf_counter() - began

    with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
        try:
            for number in range(len(spans) + AHEAD):
                if number < len(spans):
                    span = spans[number]
                    with spent.clock("waiting"):
                        pending.append((span, [pool.submit(timed, i) for i in span]))
                if number >= AHEAD and pending:
                    with spent.clock("waiting"):
                        positions, futures = pending.popleft()
                        loaded = [future.result() for future in futures]
                        pixels = torch.stack([image for image, _ in loaded])
                    spent.loading += sum(seconds for _, seconds in loaded)
                    yield positions, pixels
        finally:
            for _, futures in pending:
                for future in futures:
                    future.cancel()
