"""Filling the feature store: encode what is missing, decode the next images meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from fedvlm.models.backbone import Backbone
from fedvlm.models.feature_db import FeatureStore, default_dir, store_path

CPU_BATCH, GPU_BATCH = 16, 128
WORKERS = 2
_AHEAD = 2  # batches being decoded while one is encoded

Load = Callable[[int], Tensor]
Progress = Callable[[int, int], None]


def cached_features(
    backbone: Backbone,
    keys: Sequence[str],
    load: Load,
    *,
    view: int,
    transform_digest: str,
    cache_dir: Path | None = None,
    batch: int | None = None,
    progress: Progress | None = None,
    notes: list[str] | None = None,
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
        progress: called with (images encoded so far, images to encode).
        notes: told about damaged files.

    Raises:
        DataError: from ``load``, or the cache cannot be written.
    """
    size = batch or (CPU_BATCH if backbone.device.type == "cpu" else GPU_BATCH)
    path = store_path(
        cache_dir or default_dir(), backbone.digest, transform_digest, backbone.numerics, size
    )
    with FeatureStore(path, backbone.embed_dim, backbone.feature_dtype) as store:
        rows = store.get_many(keys, view)
        _fill(store, rows, keys, view, backbone, load, size, progress)
        if notes is not None:
            notes.extend(store.notes)
    out = torch.empty(len(keys), backbone.embed_dim, dtype=backbone.feature_dtype)
    for i, key in enumerate(keys):
        out[i] = rows[key]
    return out


def _fill(
    store: FeatureStore,
    rows: dict[str, Tensor],
    keys: Sequence[str],
    view: int,
    backbone: Backbone,
    load: Load,
    size: int,
    progress: Progress | None,
) -> None:
    """Encode what ``rows`` lacks, each key once, into ``rows`` and the store."""
    first: dict[str, int] = {}
    for i, key in enumerate(keys):
        first.setdefault(key, i)
    missing = [(key, i) for key, i in first.items() if key not in rows]
    done = 0
    for part, pixels in _decoded(missing, load, size):
        values = encode_padded(backbone, pixels, size)
        names = [key for key, _ in part]
        store.put_many(names, view, values)
        rows.update(zip(names, values, strict=True))
        done += len(part)
        if progress is not None:
            progress(done, len(missing))


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


def _decoded(
    missing: Sequence[tuple[str, int]], load: Load, size: int
) -> Iterator[tuple[Sequence[tuple[str, int]], Tensor]]:
    """Yield (items, pixels [b, 3, H, W]) in order, decoding a few batches ahead."""
    batches = [missing[at : at + size] for at in range(0, len(missing), size)]
    pending: deque[tuple[Sequence[tuple[str, int]], list[Future[Tensor]]]] = deque()
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="decode") as pool:
        try:
            for part in batches:
                pending.append((part, [pool.submit(load, i) for _, i in part]))
                if len(pending) > _AHEAD:
                    items, futures = pending.popleft()
                    yield items, torch.stack([f.result() for f in futures])
            while pending:
                items, futures = pending.popleft()
                yield items, torch.stack([f.result() for f in futures])
        finally:
            for _, futures in pending:
                for future in futures:
                    future.cancel()


__all__ = ["FeatureStore", "cached_features", "default_dir", "encode_padded", "store_path"]
