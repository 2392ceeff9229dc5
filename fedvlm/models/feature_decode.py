"""Decoding ahead: threads prepare the next batches of images while one is encoded."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from fedvlm.models.throughput import Throughput

AHEAD = 2  # batches being decoded while one is encoded
MOST = 16  # threads: more wait for Python's lock
Load = Callable[[int], Tensor]
_Loaded = tuple[Tensor, float]


def decoding_threads(asked: int = 0) -> int:
    """Return how many threads decode: as ``asked``, or one per usable core where that is 0."""
    if asked > 0:
        return asked
    known = hasattr(os, "sched_getaffinity")  # cores of this process, not of the machine
    cores = len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1
    return max(1, min(MOST, cores))


def decoded(
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
