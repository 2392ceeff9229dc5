"""Where a run's images come from: cached features, activations computed once, or pixels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from yacs.config import CfgNode

from fedvlm.data.federated import FederatedData
from fedvlm.data.images import ImageLoader
from fedvlm.federation.batches import SampleSource
from fedvlm.federation.sources import FeatureSource, PixelSource
from fedvlm.models.model import VLModel
from fedvlm.models.store import cached_features, default_dir
from fedvlm.models.token_bank import bank_bytes, empty_bank, fill_bank, has_room
from fedvlm.models.vision_tower import stream_name

Progress = Callable[[str, int, int], None]
Encode = Callable[[Sequence[int], "int | None"], Tensor]


def image_sources(
    cfg: CfgNode, data: FederatedData, model: VLModel, loader: ImageLoader, labels: Tensor,
    trainer: Any, progress: Progress | None,
) -> tuple[SampleSource, SampleSource]:
    """Return (training views, test view) of what the trainer needs, what is frozen done once.

    Image features; where the method changes blocks of the image tower (``token_block``), the
    activations that enter the first of them; pixels where those have no room.
    """
    block = trainer.token_block(model) if hasattr(trainer, "token_block") else None
    if block is None:
        return _sources(data, loader, labels, "features", lambda indices, view: _features(
            cfg, model, loader, indices, view, progress
        ))
    folder = cache_dir(cfg) or default_dir()
    images = len(_every(data)) + (len(_train(data)) * loader.views if loader.views > 1 else 0)
    if not has_room(model.vision, images, folder):
        size = bank_bytes(model.vision, images) / 2**30
        model.notes.append(
            f"{size:.0f} GiB of activations have no room in {folder}: images go through the whole "
            "tower at every step (slower); point CACHE_DIR to a larger disk"
        )
        return pixel_sources(loader, labels)

    def encode(indices: Sequence[int], view: int | None) -> Tensor:
        out = empty_bank(model.vision, len(indices), folder)
        fill_bank(
            model.vision, block, out, lambda i: loader.load(indices[i], view),
            None if progress is None else (lambda n, of: progress(_what(loader, view), n, of)),
        )
        return out

    return _sources(data, loader, labels, stream_name(block), encode)


def pixel_sources(loader: ImageLoader, labels: Tensor) -> tuple[PixelSource, PixelSource]:
    """Return (training views, test view) without any cache."""
    return (
        PixelSource(loader.load, labels),
        PixelSource(lambda i, _view: loader.load(i, None), labels),
    )


def cache_dir(cfg: CfgNode) -> Path | None:
    """Return the feature cache's folder; None leaves the choice to the store."""
    return Path(cfg.CACHE_DIR).expanduser() if cfg.CACHE_DIR else None


def _train(data: FederatedData) -> list[int]:
    return sorted({int(i) for c in data.clients for i in c.train})


def _every(data: FederatedData) -> list[int]:
    return sorted(
        {int(i) for c in data.clients for part in (c.train, c.val, c.test) for i in part}
        | set(data.global_test.tolist()) | set(data.new_test.tolist())
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


def _what(loader: ImageLoader, view: int | None) -> str:
    more = "" if view is None else f", view {view + 1} of {loader.views}"
    return f"encoding images{more}"


def _features(
    cfg: CfgNode, model: VLModel, loader: ImageLoader, indices: Sequence[int], view: int | None,
    progress: Progress | None,
) -> Tensor:
    return cached_features(
        model.backbone, [loader.content_key(i) for i in indices],
        lambda position: loader.load(indices[position], view),
        view=-1 if view is None else view, transform_digest=loader.transform_key(view),
        cache_dir=cache_dir(cfg),
        progress=None if progress is None else (
            lambda done, n: progress(_what(loader, view), done, n)
        ),
    )
