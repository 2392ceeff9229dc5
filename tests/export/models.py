"""Trained models to export: every method after a round of two clients on the tiny backbone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from fedvlm.core.rng import stream
from fedvlm.core.trees import Tree, unstack
from fedvlm.export.trained import Facts, TrainedModel
from fedvlm.federation.batches import IndexSplit, SplitBatcher
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.engine import LocalEngine
from fedvlm.federation.optim import OptimSpec, Schedule
from fedvlm.federation.plan import Plan
from fedvlm.federation.rounds import Federation
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve
from fedvlm.models.backbone import Backbone
from fedvlm.models.features.sources import PixelSource
from fedvlm.models.load.backbones import load_backbone
from fedvlm.models.vlmodel import VLModel

NAMES = ("circle", "square", "red triangle", "star")
FACTS = Facts("client 1 of 2", "noise, 6 images", {"accuracy": 61.5}, "apache-2.0")
SAMPLES = 32
AS_THEY_ARE = ("gate.on", "gate.spread", "proto.count")  # flags, scales, counts: no weights


@cache
def tiny() -> Backbone:
    return load_backbone("tiny")


class Images:
    """The server's own images."""

    source = "holdout"

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def pixels(self, positions: Tensor) -> Tensor:
        return self.images[positions]


def federation(
    trainer: str, words: Sequence[str] = (), backbone: Backbone | None = None, images: int = 4
) -> Federation:
    """Two clients that train on so many images each."""
    cfg = resolve(parse(["--demo", "--trainer", trainer, *words])).jobs[0].cfg
    method, model = load_trainer(trainer)(cfg), VLModel(backbone or tiny(), NAMES)
    side, gen = model.backbone.image_size, stream(3, "images")
    pixels = torch.randn(SAMPLES, 3, side, side, generator=gen).to(model.dtype)
    labels = torch.arange(SAMPLES) % len(NAMES)
    splits = [IndexSplit(*np.split(part, [images, images + 2]))
              for part in np.arange(SAMPLES).reshape(2, 16)]
    batcher = SplitBatcher(
        PixelSource(lambda i, view: pixels[i], labels), splits, 4, 1, 1, 2, torch.device("cpu"),
        model.dtype,
    )
    plan = Plan(1, 2, epochs=2, seed=1, schedule=Schedule(0.05), optim=OptimSpec("sgd", 0.05, 0.0))
    return Federation(
        method, model, batcher, plan, engine=LocalEngine(1), proxy=Images(pixels[:8], labels[:8])
    )


def trained(
    trainer: str, words: Sequence[str] = (), *, noise: float = 0.05,
    backbone: Backbone | None = None, images: int = 4,
) -> TrainedModel:
    """Client 1's model after a round; ``noise`` moves what starts without effect (LoRA's B)."""
    fed = federation(trainer, words, backbone, images)
    state = fed.run()
    p: Tree = {}
    for ids, rows in fed.personal(state, [1]):
        p = unstack(rows, len(ids))[0]
    gen = stream(4, "noise")
    for name, value in p.items():
        if name not in AS_THEY_ARE and value.is_floating_point():
            shift = torch.randn(value.shape, generator=gen).to(value.dtype)
            p[name] = value + noise * shift
    return TrainedModel(fed.trainer, fed.model, p, FACTS)
