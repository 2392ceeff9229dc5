"""Quadratic toys with known answers, in float64.

F_k(w) = a_k / 2 (w - b_k)^2 with a = (1, 3), b = (0, 4): one sample (a, b) per client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvlm.check.compare import copy_fed
from fedvlm.core.trees import State
from fedvlm.federation.batches import Batch, SplitBatcher
from fedvlm.federation.engine import LocalEngine
from fedvlm.federation.optim import OptimSpec
from fedvlm.federation.plan import Plan
from fedvlm.federation.rounds import Federation, FedState, WholeState
from fedvlm.federation.trainer import Trainer

A, B, ETA = (1.0, 3.0), (0.0, 4.0), 0.1


@dataclass
class ToyModel:
    """Nothing but a dtype and a device."""

    dtype: torch.dtype = torch.float64
    device: torch.device = torch.device("cpu")
    counters: Counter = field(default_factory=Counter)
    has_text: bool = True

    def verify_frozen(self) -> str:
        return ""


@dataclass
class ToySource:
    streams: dict[str, Tensor]
    labels: Tensor

    def fetch(self, indices: Tensor, view: int) -> dict[str, Tensor]:
        return {name: v[indices] for name, v in self.streams.items()}


@dataclass
class ToySplit:
    train: np.ndarray
    val: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    test: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass
class Seen(FedState):
    """A state with a copy of everybody's tensors, taken when it came about."""

    whole: WholeState = None  # type: ignore[assignment]

    @property
    def clients(self) -> dict[int, State]:
        return self.whole.clients


class Watched(Federation):
    """A federation whose states are ``Seen``."""

    def seen(self, state: FedState) -> Seen:
        return Seen(
            state.round, state.server, state.versions, state.held, copy_fed(self.read(state))
        )

    def start(self) -> Seen:
        return self.seen(super().start())

    def round(self, state: FedState, round_: int) -> Seen:
        return self.seen(super().round(state, round_))

    def adopt(self, whole: WholeState) -> Seen:
        return self.seen(super().adopt(whole))

    def load(self, round_: int, server: State, logs: Any) -> Seen:
        return self.seen(super().load(round_, server, logs))

    def _publish(self, state: FedState, **work: Any) -> None:
        super()._publish(self.seen(state), **work)


class Quadratic(Trainer):
    """FedAvg on F_k; clients keep all of their model, so that it can be looked at."""

    reads_old = True

    def __init__(self, cfg: Any = None) -> None:
        super().__init__(cfg or SimpleNamespace(TRAINER={}))

    def trainables(self, model: Any, generator: torch.Generator) -> dict[str, Tensor]:
        return {"w": torch.zeros((), dtype=torch.float64)}

    def value(self, p: dict[str, Tensor]) -> Tensor:
        return p["w"]

    def loss(self, model: Any, p: dict[str, Tensor], b: Batch) -> Tensor:
        gap = self.value(p)[:, None] - b.x["b"]
        return (b.w * b.x["a"] / 2 * gap**2).sum(1) / b.w.sum(1)


def quadratic(
    trainer: Trainer, rounds: int, *, epochs: int = 1, lr: float = ETA,
    sizes: Sequence[int] = (1, 1), chunk: int = 8, momentum: float = 0.0, batch: int = 100,
    val: int = 0, wells: Sequence[tuple[float, float]] = (), **plan: Any,
) -> Watched:
    """Return a federation on the toy; client k holds ``sizes[k]`` copies of its sample.

    ``val`` of them are validation samples as well; ``wells`` are pairs (a, b).
    """
    owners = [k for k, n in enumerate(sizes) for _ in range(n)]
    pairs = list(wells or zip(A, B, strict=True))
    a, b = torch.tensor([pairs[k] for k in owners], dtype=torch.float64).unbind(1)
    edges = np.cumsum([0, *sizes])
    splits = [ToySplit(np.arange(i, j), np.arange(i, min(i + val, j)))
              for i, j in zip(edges[:-1], edges[1:], strict=True)]
    source = ToySource({"a": a, "b": b}, torch.zeros(len(a), dtype=torch.int64))
    batcher = SplitBatcher(
        source, splits, batch, 1, 1, epochs, torch.device("cpu"), torch.float64
    )
    spec = OptimSpec("sgd", lr, momentum, 0.0)
    return Watched(
        trainer, ToyModel(), batcher,
        Plan(rounds, len(sizes), epochs=epochs, optim=spec, **plan), engine=LocalEngine(chunk),
    )
