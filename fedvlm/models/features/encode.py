"""Filling the feature store: encode what is missing, in batches of one fixed size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedvlm.core.progress import Progress
from fedvlm.models.backbone import Backbone
from fedvlm.models.features.decode import Load, Throughput, decode_ahead
from fedvlm.models.features.store import FeatureStore, default_dir, store_path

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
            store = open_store(backbone, transform_digest, cache_dir, size)
        with store:
            rows = _filled(store, backbone, keys, load, view, size, workers, progress, spent)
            if notes is not None:
                notes.extend(store.notes)
    return rows


def open_store(
    backbone: Backbone, transform_digest: str, cache_dir: Path | None, size: int
) -> FeatureStore:
    """Return a tower's store of features, in batches of ``size``; see ``cached_features``."""
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
    spent.hits += len(at)
    parts = [rows]
    for positions, pixels in decode_ahead(missing, load, size, spent, workers):
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
    """Features [n, embed_dim] of n <= ``size`` images through a batch of exactly ``size``."""
    return compute_padded(backbone.encode_image, backbone.feature_dtype, pixels, size)


def compute_padded(
    compute: Callable[[Tensor], Tensor], dtype: torch.dtype, pixels: Tensor, size: int
) -> Tensor:
    """Return ``compute`` of n <= ``size`` images [n, 3, H, W] in a batch of exactly ``size``.

    In float64 on one thread: measured with two, a row's bits depend on its place in the batch.
    """
    filler = pixels[:1].expand(size - len(pixels), *pixels.shape[1:])
    threads = torch.get_num_threads()
    if dtype is torch.float64:
        torch.set_num_threads(1)
    try:
        with torch.no_grad():
            return compute(torch.cat([pixels, filler]))[: len(pixels)].cpu()
    finally:
        torch.set_num_threads(threads)
