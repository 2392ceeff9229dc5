"""Where a run's images come from: cached features, activations computed once, or pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from yacs.config import CfgNode

from fedvlm.core.errors import ConfigError
from fedvlm.core.progress import Progress
from fedvlm.data.federated import FederatedData
from fedvlm.data.images import ImageLoader
from fedvlm.federation.batches import FeatureSource, PixelSource, SampleSource
from fedvlm.models.backbone import Backbone
from fedvlm.models.features.bank import bank_bytes, empty_bank, fill_bank, has_room
from fedvlm.models.features.decode import Throughput
from fedvlm.models.features.encode import cached_features
from fedvlm.models.features.store import default_dir
from fedvlm.models.towers.vision import stream_name
from fedvlm.models.vlmodel import VLModel

Encode = Callable[[Sequence[int], "int | None"], Tensor]


def token_block(streams: Sequence[str]) -> int | None:
    """Return the block of the image tower whose entering tokens a method reads; None: features.

    Raises:
        ConfigError: a stream that there is no cache for.
    """
    if tuple(streams) == ("features",):
        return None
    kind, _, block = streams[0].partition(".")
    if len(streams) != 1 or kind != "tokens" or not block.isdecimal():
        raise ConfigError(
            f"a method's streams are ('features',) or ('tokens.<block>',), not {tuple(streams)}"
        )
    return int(block)


def image_sources(
    cfg: CfgNode, data: FederatedData, model: VLModel, loader: ImageLoader, labels: Tensor,
    trainer: Any, progress: Progress | None,
) -> tuple[SampleSource, SampleSource]:
    """Return (training views, test view) of what the trainer needs, what is frozen done once.

    Image features; where the method changes blocks of the image tower (``token_block``), the
    activations that enter the first of them; pixels where those have no room.
    """
    block = token_block(trainer.streams(model))
    spent = Throughput()
    if block is None:
        sources = _sources(data, loader, labels, "features", lambda indices, view: features_of(
            cfg, model.backbone, loader, indices, view, progress, spent, model.notes
        ))
        model.notes.append(spent.sentence())
        return sources
    folder = store_dir(cfg) or default_dir()
    images = images_to_encode(data, loader.views)
    if not has_room(model.vision, images, folder):
        size = bank_bytes(model.vision, images) / 2**30
        model.notes.append(
            f"{size:.0f} GiB of activations have no room in {folder}: images go through the whole "
            "tower at every step (slower); point CACHE_DIR to a larger disk"
        )
        return pixel_sources(loader, labels)

    def encode(indices: Sequence[int], view: int | None) -> Tensor:
        out = empty_bank(model.vision, len(indices), folder)
        with _reading(loader, spent):
            fill_bank(
                model.vision, block, out, lambda i: loader.load(indices[i], view),
                _named(progress, loader, view),
                workers=int(cfg.DATALOADER.NUM_WORKERS), spent=spent,
            )
        return out

    sources = _sources(data, loader, labels, stream_name(block), encode)
    model.notes.append(spent.sentence(f"activations entering block {block}"))
    return sources


def pixel_sources(loader: ImageLoader, labels: Tensor) -> tuple[PixelSource, PixelSource]:
    """Return (training views, test view) without any cache."""
    return (
        PixelSource(loader.load, labels),
        PixelSource(lambda i, _view: loader.load(i, None), labels),
    )


def features_of(
    cfg: CfgNode, backbone: Backbone, loader: ImageLoader, indices: Sequence[int],
    view: int | None, progress: Progress | None, spent: Throughput, notes: list[str],
) -> Tensor:
    """Return the features ``[n, embed_dim]`` of images and one view, out of the store or into it.

    Args:
        indices: into the loader's samples.
        view: None is the test view.
        spent: told where the time went.
        notes: told about damaged files.

    Raises:
        DataError: an image changed meanwhile or does not decode, or the cache cannot be written.
    """
    keys = [loader.content_key(i) for i in indices]
    with _reading(loader, spent):
        return cached_features(
            backbone, keys, lambda n: loader.load(indices[n], view, key=keys[n]),
            view=-1 if view is None else view, transform_digest=loader.transform_key(view),
            cache_dir=store_dir(cfg), workers=int(cfg.DATALOADER.NUM_WORKERS),
            progress=_named(progress, loader, view), notes=notes, spent=spent,
        )


def store_dir(cfg: CfgNode) -> Path | None:
    """Return the feature cache's folder; None leaves the choice to the store."""
    return Path(cfg.CACHE_DIR).expanduser() if cfg.CACHE_DIR else None


def images_to_encode(data: FederatedData, views: int) -> int:
    """Return how many images a run encodes before it begins, every training view counted."""
    return len(_every(data)) + (views * len(_train(data)) if views > 1 else 0)


def _train(data: FederatedData) -> list[int]:
    return sorted({int(i) for c in data.clients for i in c.train})


def _every(data: FederatedData) -> list[int]:
    return sorted(
        {int(i) for c in data.clients for part in (c.train, c.val, c.test) for i in part}
        | set(data.global_test.tolist()) | set(data.new_test.tolist())
        | {int(i) for other in data.others for i in other.indices}
    )


def _sources(
    data: FederatedData, loader: ImageLoader, labels: Tensor, stream: str, encode: Encode
) -> tuple[FeatureSource, FeatureSource]:
    every, train = _every(data), _train(data)
    test = encode(every, None)
    test_source = FeatureSource.of(test[None], torch.tensor(every), labels, stream)
    if loader.views == 1:
        return test_source, test_source
    views = tuple(encode(train, v) for v in range(loader.views))
    return FeatureSource.of(views, torch.tensor(train), labels, stream), test_source


def _named(progress: Progress | None, loader: ImageLoader, view: int | None) -> Progress | None:
    """Return a progress that also says which view is encoded."""
    if progress is None or view is None:
        return progress
    return lambda what, done, of: progress(f"{what}, view {view + 1} of {loader.views}", done, of)


@contextmanager
def _reading(loader: ImageLoader, spent: Throughput) -> Iterator[None]:
    """Add to ``spent`` what the loader says of its file access meanwhile."""
    before = loader.reading
    try:
        yield
    finally:
        spent.reading += loader.reading - before
