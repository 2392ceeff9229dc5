"""A linear toy with labels: features z = W x, logits H z + b, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvlm.core.trees import Tree
from fedvlm.federation.batches import Batch, SplitBatcher
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.engine import LocalEngine
from fedvlm.federation.optim import OptimSpec
from fedvlm.federation.plan import Plan
from fedvlm.federation.rounds import Federation
from tests.federation.toys import ToyModel, ToySource, ToySplit, Watched

from .toys import config

Sample = tuple[Sequence[float], int]


@dataclass
class LabelModel(ToyModel):
    """Knows how many classes and channels there are."""

    classnames: tuple[str, ...] = ()
    embed_dim: int = 2


class Linear:
    """Body ``image.base [d, d]`` (identity), head ``head.weight [C, d]`` and bias (zeros)."""

    def trainables(self, model: Any, generator: torch.Generator) -> Tree:
        c, d = len(model.classnames), model.embed_dim
        return {"image.base": torch.eye(d), "head.weight": torch.zeros(c, d),
                "head.bias": torch.zeros(c)}

    def image_features(self, model: Any, p: Tree, x: Mapping[str, Tensor]) -> Tensor:
        return x["features"] @ p["image.base"].mT

    def predictor(self, model: Any, p: Tree) -> Callable[[Mapping[str, Tensor]], Tensor]:
        head, bias = p["head.weight"].mT, p["head.bias"][:, None]
        return lambda x: self.image_features(model, p, x) @ head + bias


def linear(
    name: str, clients: Sequence[Sequence[Sample]], *, classes: int = 2, rounds: int = 1,
    lr: float = 0.1, epochs: int = 1, batch: int = 100, chunk: int = 8,
    options: Mapping[str, Any] | None = None, **plan: Any,
) -> Federation:
    """Return a federation of the real trainer on the toy; ``clients[k]`` are its (x, label)."""
    cls = load_trainer(name)
    made = type(f"Linear{cls.__name__}", (Linear, cls), {})(
        config(cls, options, {"FED.CLIENTS": len(clients)})
    )
    flat = [sample for client in clients for sample in client]
    x = torch.tensor([s[0] for s in flat], dtype=torch.float64)
    source = ToySource({"features": x}, torch.tensor([s[1] for s in flat]))
    edges = np.cumsum([0, *map(len, clients)])
    splits = [ToySplit(np.arange(i, j)) for i, j in zip(edges[:-1], edges[1:], strict=True)]
    batcher = SplitBatcher(
        source, splits, batch, 1, 1, epochs, torch.device("cpu"), torch.float64
    )
    model = LabelModel(classnames=tuple(map(str, range(classes))), embed_dim=x.shape[1])
    return Watched(
        made, model, batcher,
        Plan(rounds, len(clients), epochs=epochs, optim=OptimSpec("sgd", lr, 0.0, 0.0), **plan),
        engine=LocalEngine(chunk),
    )


def batch_of(samples: Sequence[Sample]) -> Batch:
    """Return one client's batch ``[1, B]``."""
    x = torch.tensor([s[0] for s in samples], dtype=torch.float64)[None]
    y = torch.tensor([s[1] for s in samples])[None]
    return Batch({"features": x}, y, torch.ones(y.shape, dtype=torch.float64))
