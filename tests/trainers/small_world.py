"""The world of ``fedvlm check`` for single pieces of a method: a random CLIP, a batch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedvlm.check.world import CheckWorld
from fedvlm.core.rng import stream
from fedvlm.core.trees import Tree, cast
from fedvlm.federation.batches import Batch
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.trainer import Trainer
from fedvlm.models.vlmodel import VLModel

DOUBLE, CPU = torch.float64, torch.device("cpu")


@cache
def world() -> CheckWorld:
    """Return the world, made once."""
    return CheckWorld()


@cache
def model() -> VLModel:
    """Return its model, plain path."""
    return world().model()


def method(name: str, **options: Any) -> Trainer:
    """Return a real trainer; ``options`` are of its own node."""
    cls = load_trainer(name)
    return cls(world().config(cls, options))


def tree(trainer: Trainer, k: int = 2, noise: float = 0.1) -> Tree:
    """Return tensors ``[k, ...]``: the start plus noise, others for each client."""
    start = cast(trainer.trainables(model(), stream(1, "init")), DOUBLE, CPU)
    draw = torch.Generator().manual_seed(3)
    return {
        n: v + noise * torch.randn(k, *v.shape, generator=draw, dtype=DOUBLE)
        for n, v in start.items()
    }


def batch(k: int = 2, n: int = 4, names: tuple[str, ...] = ("features",)) -> Batch:
    """Return ``n`` images of each of ``k`` clients, the last one padding for client 1 on."""
    w, index = world(), torch.arange(k * n).view(k, n) % len(world().labels)
    x: Mapping[str, Tensor] = {"features": w.features, "pixels": w.pixels}
    weight = torch.ones(k, n, dtype=DOUBLE)
    weight[1:, -1] = 0
    return Batch({name: x[name][index] for name in names}, w.labels[index], weight)


def gradient(trainer: Trainer, p: Tree, b: Batch) -> Tree:
    """Return the gradient of the summed loss for every tensor that it reaches."""
    leaves = {n: v.clone().requires_grad_() for n, v in p.items()}
    out = trainer.loss(model(), leaves, b)
    value = (out[0] if isinstance(out, tuple) else out).sum()
    grads = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    return {n: g for n, g in zip(leaves, grads, strict=True) if g is not None}
