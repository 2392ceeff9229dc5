"""``bench scale``: what a round costs beside its training, from ten clients to ten thousand.

A cohort of fixed size works each round, however many clients there are. The driver, the recorder
and the run folder are the main job's own; the data are random features, so that nothing but the
engine and the bookkeeping is measured. Two methods: a linear head of ten classes on 512 features,
one step of 50 samples (the least training there is), and FedTV on the embedded tiny CLIP.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from yacs.config import CfgNode

from fedvlm.bench import machine
from fedvlm.bench.machine import Measurements
from fedvlm.console.rows import table_lines
from fedvlm.core import rng
from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import Tree
from fedvlm.federation.batches import IndexSplit, SplitBatcher
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.engine import LocalEngine
from fedvlm.federation.optim import OptimSpec
from fedvlm.federation.plan import Plan
from fedvlm.federation.rounds import Event, Federation, RoundFinished
from fedvlm.federation.trainer import Predictor, Trainer
from fedvlm.models.features.sources import FeatureSource
from fedvlm.models.vlmodel import VLModel

HEAD, FEDTV = "linear head", "FedTV"
CLASSES, TRAIN, TEST, POOL = 10, 50, 20, 5000
SEED = 7


class LinearHead(Trainer):
    """A linear classifier on image features, averaged: the least that can be trained."""

    groups = ((r"head\..*", "shared"),)

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return zeros."""
        width = model.backbone.embed_dim
        return {"head.weight": torch.zeros(CLASSES, width), "head.bias": torch.zeros(CLASSES)}

    def predictor(self, model: VLModel, params: Tree) -> Predictor:
        """Return x W^T + b."""
        weight, bias = params["head.weight"].mT, params["head.bias"].unsqueeze(1)
        return lambda x: torch.baddbmm(bias, x["features"], weight)


@dataclass
class Data:
    """Clients whose samples are drawn from one pool, as evaluation and recorder read it.

    Attributes:
        labels: of the pool; its last tenth is the global test set.
    """

    clients: Sequence[IndexSplit]
    labels: np.ndarray
    global_test: np.ndarray
    classnames: Sequence[str]
    name: str = "random features"
    new_test: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    new_classnames: Sequence[str] = ()
    others: Sequence[Any] = ()


def draw(clients: int, width: int) -> tuple[Data, Tensor]:
    """Return clients of ``TRAIN`` and ``TEST`` samples each, and the pool ``[POOL, width]``."""
    generator = np.random.default_rng(SEED)
    labels = generator.integers(0, CLASSES, POOL)
    features = torch.randn(POOL, width, generator=rng.stream(SEED, "bench-scale"))
    edge = POOL - POOL // 10
    picks = generator.integers(0, edge, (clients, TRAIN + TEST))
    splits = [IndexSplit(np.sort(p[:TRAIN]), p[:0], np.sort(p[TRAIN:])) for p in picks]
    names = [f"class {i}" for i in range(CLASSES)]
    return Data(splits, labels, np.arange(edge, POOL), names), features


class Stopwatch:
    """CPU seconds by phase, in the order in which they were spent."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {}

    def clock(self, phase: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``work`` that enters under ``phase`` what it spends."""

        def timed(*args: Any, **named: Any) -> Any:
            began = time.process_time()
            out = work(*args, **named)
            self.spent.setdefault(phase, []).append(time.process_time() - began)
            return out

        return timed


def build(method: str, clients: int, cohort: int) -> Built:
    """Return a run of ``method`` on random features, as the main job's recorder reads it."""
    words = ["--demo", "--trainer", "FedTV", "--device", "cpu"]
    cfg = resolve(parse(words)).jobs[0].cfg
    head = method == HEAD
    backbone = load_backbone("tiny")
    data, features = draw(clients, WIDTH if head else backbone.embed_dim)
    model = VLModel(backbone, list(data.classnames))
    labels = torch.from_numpy(data.labels)
    source = FeatureSource.of(features[None], torch.arange(POOL), labels)
    batcher = SplitBatcher(
        source, data.clients, TRAIN, SEED, 1, 1, model.device, model.dtype, plain=source
    )
    plan = Plan(
        ROUNDS, clients, cohort / clients, first_round_all=False, seed=SEED,
        optim=OptimSpec("sgd", 0.05, 0.0, 0.0),
    )
    trainer = LinearHead(cfg) if head else load_trainer("FedTV")(cfg)
    meter = ClientMeter(model, trainer, source, data)
    federation = Federation(
        trainer, model, batcher, plan, engine=LocalEngine(CHUNK), meter=meter
    )
    return Built(cfg, data, backbone, model, federation, meter, source, None, {}, [])
