"""Filling the feature store: encode what is missing, decode the next images meanwhile.

Where the time of a pass over images went: looking up, decoding, encoding, storing.

Decoding ahead: threads prepare the next batches of images while one is encoded.

Activations that enter a block of the image tower, computed once per run.

Kept in memory, or in an unnamed file mapped into memory where they are many; nothing outlives the
run. Batches have a fixed size, as in ``store``, so that a resumed run sees the same bits.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedvlm.core.progress import Progress
from fedvlm.models.backbone import Backbone
from fedvlm.models.features.store import FeatureStore, default_dir, store_path
from fedvlm.models.towers.vision import VisionTower


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


CPU_BATCH, GPU_BATCH = 16, 128
_WHAT = "encoding images"  # what a progress is told


def cached_features(
    backbone: Backbone,
    keys: Sequence[str],
    load: Load,
    *,
    view: int,
    transform_digest: str,
    cache_dir: Path | None = None,
    batch: int | None = None,
    workers: int = 0,
    progress: Progress | None = None,
    notes: list[str] | None = None,
    spent: Throughput | None = None,
) -> Tensor:
    """Image features [n, embed_dim], not normalised, on the CPU, from the store where they are.

    What is missing is encoded in batches of one fixed size, the last one filled up. Measured (ViT
    and ResNet, plain, fast and bf16 layers): a row's bits depend on the size of its batch (1e-6),
    not on its place in it or its companions; so they do not depend on what else was missing.

    Args:
        backbone: the towers.
        keys: content key of each image (hash of its bytes); equal keys are encoded once.
        load: position in ``keys`` -> pixels [3, H, W]; called from threads.
        view: number of the augmented view; -1: none.
        transform_digest: identifies everything between the image's bytes and its pixels.
        cache_dir: folder of the store; default ``default_dir()``.
        batch: images per pass; part of the identity; default 16 on a CPU, 128 on a GPU.
        workers: decoding threads; 0 is by cores.
        progress: told how many images are encoded, of those to encode.
        notes: told about damaged files.
        spent: told where the time went.

    Raises:
        DataError: from ``load``, or the cache cannot be written.
    """
    spent = Throughput() if spent is None else spent
    size = batch or batch_size(backbone)
    with spent.clock("wall"):
        with spent.clock("looking_up"):
            store = _open(backbone, transform_digest, cache_dir, size)
        with store:
            rows = _filled(store, backbone, keys, load, view, size, workers, progress, spent)
            if notes is not None:
                notes.extend(store.notes)
    return rows


def _open(
    backbone: Backbone, transform_digest: str, cache_dir: Path | None, size: int
) -> FeatureStore:
    path = store_path(
        cache_dir or default_dir(), backbone.digest, transform_digest, backbone.numerics, size
    )
    about = {
        "backbone": backbone.name, "weights": backbone.weights, "digest": backbone.digest,
        "transform": transform_digest, "numerics": str(backbone.numerics), "batch": str(size),
    }  # fmt: skip
    return FeatureStore(path, backbone.embed_dim, backbone.feature_dtype, about)


def _filled(
    store: FeatureStore, backbone: Backbone, keys: Sequence[str], load: Load, view: int,
    size: int, workers: int, progress: Progress | None, spent: Throughput,
) -> Tensor:  # fmt: skip
    """Return the rows of ``keys``, those that were missing encoded and stored."""
    with spent.clock("looking_up"):
        at, rows = store.find(keys, view)
    first: dict[str, int] = {}
    for i, key in enumerate(keys):
        first.setdefault(key, i)
    missing = [i for key, i in first.items() if key not in at]
    spent.known += len(at)
    parts = [rows]
    for positions, pixels in decoded(missing, load, size, spent, workers):
        with spent.clock("encoding"):
            values = encode_padded(backbone, pixels, size)
        names = [keys[i] for i in positions]
        with spent.clock("storing"):
            store.put_many(names, view, values)
        at |= {name: len(at) + n for n, name in enumerate(names)}
        parts.append(values)
        spent.encoded += len(positions)
        if progress is not None:
            progress(_WHAT, len(at) - len(rows), len(missing))
    return _in_order(parts, [at[key] for key in keys])


def _in_order(parts: Sequence[Tensor], order: list[int]) -> Tensor:
    """Return the rows of all parts in ``order``; without another copy where they have it."""
    rows = torch.cat(list(parts)) if len(parts) > 1 else parts[0]
    return rows if order == list(range(len(rows))) else rows[torch.tensor(order, dtype=torch.int64)]


def batch_size(backbone: Backbone) -> int:
    """Return the images per pass through a tower on its device."""
    return CPU_BATCH if backbone.device.type == "cpu" else GPU_BATCH


def encode_padded(backbone: Backbone, pixels: Tensor, size: int) -> Tensor:
    """Features [n, embed_dim] of n <= ``size`` images through a batch of exactly ``size``.

    In float64 on one thread: measured with two, a row's bits depend on its place in the batch.
    """
    filler = pixels[:1].expand(size - len(pixels), -1, -1, -1)
    threads = torch.get_num_threads()
    if backbone.feature_dtype is torch.float64:
        torch.set_num_threads(1)
    try:
        with torch.no_grad():
            return backbone.encode_image(torch.cat([pixels, filler]))[: len(pixels)].cpu()
    finally:
        torch.set_num_threads(threads)





IN_MEMORY = 2 << 30  # bytes; more lies in a file


def bank_bytes(tower: VisionTower, images: int) -> int:
    """Return how many bytes the activations of ``images`` images take."""
    return images * tower.tokens * tower.width * tower.backbone.feature_dtype.itemsize


def has_room(tower: VisionTower, images: int, folder: Path) -> bool:
    """Tell whether they fit in memory, or in half of the free space below ``folder``."""
    wanted = bank_bytes(tower, images)
    folder.mkdir(parents=True, exist_ok=True)
    return wanted <= IN_MEMORY or wanted <= shutil.disk_usage(folder).free // 2


def empty_bank(tower: VisionTower, images: int, folder: Path) -> Tensor:
    """Return room for ``[images, n, width]``, in memory or in a file that has no name."""
    shape, dtype = (images, tower.tokens, tower.width), tower.backbone.feature_dtype
    if bank_bytes(tower, images) <= IN_MEMORY:
        return torch.empty(shape, dtype=dtype)
    with tempfile.NamedTemporaryFile(dir=folder, prefix="tokens-") as file:
        count = shape[0] * shape[1] * shape[2]
        # The mapping keeps the file alive after its name is gone.
        return torch.from_file(file.name, shared=True, size=count, dtype=dtype).view(shape)


def fill_bank(
    tower: VisionTower, block: int, out: Tensor, load: Load, progress: Progress | None = None,
    *, workers: int = 0, spent: Throughput | None = None,
) -> None:  # fmt: skip
    """Write the activations entering ``block`` of every image to ``out [m, n, width]``.

    Args:
        tower: the frozen image tower.
        block: the block they enter.
        out: see ``empty_bank``.
        load: position -> pixels ``[3, H, W]``; called from threads.
        progress: told how many images are done.
        workers: decoding threads; 0 is by cores.
        spent: told where the time went.
    """
    size, spent = batch_size(tower.backbone), spent or Throughput()
    with spent.clock("wall"), torch.no_grad():
        for span, pixels in decoded(range(len(out)), load, size, spent, workers):
            with spent.clock("encoding"):
                filler = pixels[:1].expand(size - len(pixels), -1, -1, -1)
                rows = tower.enter(torch.cat([pixels, filler]), block)
                values = rows[: len(span)].to(out.device)
            with spent.clock("storing"):
                out[span[0] : span[0] + len(span)] = values
            spent.encoded += len(span)
            if progress is not None:
                progress(_WHAT, span[0] + len(span), len(out))
