"""Three clients, four classes of 32x32 images and a toy ViT: for HEART-PFL and Thorki."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvlm.federation.batches import IndexSplit, SplitBatcher
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.engine import LocalEngine
from fedvlm.federation.optim import OptimSpec
from fedvlm.federation.plan import Plan
from fedvlm.federation.rounds import Federation
from fedvlm.models.backbone import Backbone
from fedvlm.models.vlmodel import VLModel
from tests.federation.toys import Watched
from tests.models.toys import toy
from tests.trainers.toys import config

CLASSES = ("ox", "bear", "cat", "mouse")
SIZES, VAL, TEST, PROXY = (12, 8, 5), 4, 4, 12


@dataclass
class Recorded:
    """A pixel source that remembers what was asked."""

    images: Tensor
    labels: Tensor
    seen: set[int] = field(default_factory=set)

    def fetch(self, indices: Tensor, view: int) -> dict[str, Tensor]:
        self.seen |= set(indices.tolist())
        return {"pixels": self.images[indices]}


@dataclass
class OwnImages:
    """Images of the server's own; remembers which it read."""

    images: Tensor
    labels: Tensor
    source: str = "holdout"
    seen: set[int] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.images)

    def pixels(self, positions: Tensor) -> Tensor:
        self.seen |= set(positions.tolist())
        return self.images[positions]


@cache
def backbone() -> Backbone:
    """Return the toy ViT, without the random part of its input normalisation."""
    return toy("vit", dtype=torch.float64)


def shares(sizes: Sequence[int] = SIZES, val: int = VAL) -> list[IndexSplit]:
    """Cut 0, 1, 2, ... into the clients' train, val and test samples."""
    found, at = [], 0
    for size in sizes:
        edges = np.cumsum([at, size, val, TEST])
        parts = [np.arange(i, j) for i, j in zip(edges[:-1], edges[1:], strict=True)]
        found.append(IndexSplit(*parts))
        at = int(edges[-1])
    return found


def images(labels: Tensor, seed: int = 11) -> Tensor:
    """Return normalised pixels with a pattern per class; ``seed`` is that of the noise."""
    draw = torch.Generator().manual_seed(11)
    looks = torch.rand(len(CLASSES), 3, 4, 4, generator=draw).double()
    if seed != 11:
        draw = torch.Generator().manual_seed(seed)
    noise = torch.rand(len(labels), 3, 32, 32, generator=draw).double()
    pixels = 0.6 * looks.repeat_interleave(8, -1).repeat_interleave(8, -2)[labels] + 0.4 * noise
    spec = backbone().transform_spec
    mean, std = (torch.tensor(v).double().view(3, 1, 1) for v in (spec.mean, spec.std))
    return (pixels - mean) / std


def federation(
    trainer: str, options: Mapping[str, Any] | None = None, keys: Mapping[str, Any] | None = None,
    *, splits: Sequence[IndexSplit] | None = None, rounds: int = 2, chunk: int = 8,
    proxy: int = PROXY, labels: Tensor | None = None, lr: float = 0.02, batch: int = 4,
    epochs: int = 1, seed: int = 1, **plan: Any,
) -> Federation:
    """Return a federation on the toy world; its source records what is fetched for clients.

    The server has ``proxy`` images of its own, none of which is a client's.
    """
    parts = shares() if splits is None else list(splits)
    count = 1 + max(int(i) for s in parts for part in (s.train, s.val, s.test) for i in part)
    y = torch.arange(count) % len(CLASSES) if labels is None else labels
    x = images(y)
    spec = OptimSpec("sgd", lr, 0.9, 0.0)
    batcher = SplitBatcher(
        Recorded(x, y), parts, batch, seed, 1, epochs, torch.device("cpu"), torch.float64
    )
    looks = torch.arange(proxy) % len(CLASSES)
    cls = load_trainer(trainer)
    every = {"FED.ROUNDS": rounds, "FED.CLIENTS": len(parts)} | dict(keys or {})
    return Watched(
        cls(config(cls, options, every)), VLModel(backbone(), CLASSES), batcher,
        Plan(rounds, len(parts), epochs=epochs, optim=spec, seed=seed, **plan),
        engine=LocalEngine(chunk), proxy=OwnImages(images(looks, 13), looks) if proxy else None,
    )
