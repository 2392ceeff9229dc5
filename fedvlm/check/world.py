"""A world small enough to try a method in seconds: a random CLIP of width 16 and four clients.

Everything is float64, a function of the world's seed, and in memory: no download, no files.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from yacs.config import CfgNode

from fedvlm.check.compare import copy_fed, global_generators
from fedvlm.config.build import build_config
from fedvlm.config.keys import default_schema, method_schema
from fedvlm.config.read import lookup
from fedvlm.core import rng
from fedvlm.federation.batches import IndexSplit, SplitBatcher
from fedvlm.federation.engine import Engine, LocalEngine
from fedvlm.federation.optim import OptimSpec, Schedule
from fedvlm.federation.plan import Plan
from fedvlm.federation.rounds import Event, Federation, RoundFinished, WholeState
from fedvlm.federation.trainer import Trainer
from fedvlm.models.backbone import Backbone
from fedvlm.models.features.sources import (
    FeatureSource,
    PixelSource,
    StreamSource,
    check_streams,
    join_sources,
)
from fedvlm.models.load.openclip import build_model, finish
from fedvlm.models.vlmodel import VLModel, tower_of

BASE, NEW = ("ox", "bear", "cat", "mouse"), ("hen", "wolf")
SIZES, BATCH = (7, 5, 3, 1), 4  # two clients below the batch size, one with a single sample
VAL, TEST = 2, 3  # samples per client
PROXY = 2 * len(BASE)  # images of the server's own
ROUNDS, EPOCHS = 3, 2
TEXT = {"context_length": 28, "vocab_size": 64, "width": 16, "heads": 2, "layers": 2}
VIT = {"image_size": 8, "layers": 2, "width": 16, "head_width": 8, "patch_size": 4}
RESNET = {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "head_width": 64}
EMBED = 12  # not the text width: a method that takes one for the other fails


class Letters:
    """Tokenizer of one id per letter; a text cut at the context length still ends with its mark."""

    start_id, eot_token_id = 62, 63

    def __call__(self, texts: Sequence[str], context_length: int = 28) -> Tensor:
        """Return ids ``[n, context_length]``, padded with 0."""
        ids = torch.zeros(len(texts), context_length, dtype=torch.int64)
        for row, text in enumerate(texts):
            letters = [1 + ord(ch) % 61 for ch in text if ch != " "][: context_length - 2]
            tokens = torch.tensor([self.start_id, *letters, self.eot_token_id])
            ids[row, : len(tokens)] = tokens
        return ids


def small_backbone(vision: dict[str, Any] | None = None, seed: int = 7) -> Backbone:
    """Return a random float64 CLIP: text width 16, two layers, joint embedding of 12.

    Args:
        vision: open_clip's ``vision_cfg``; default a ViT of width 16; ``RESNET`` has BatchNorm.
        seed: of the weights.
    """
    arch = {
        "embed_dim": EMBED, "quick_gelu": True, "vision_cfg": vision or VIT, "text_cfg": TEXT,
    }
    return copy.deepcopy(_built(json.dumps(arch), seed))  # nobody meets what another has changed


@cache
def _built(arch_json: str, seed: int) -> Backbone:
    arch = json.loads(arch_json)
    model, preprocess = build_model(arch, seed)
    return finish(model, arch, preprocess, Letters(), "check", "random", dtype=torch.float64)


@dataclass(frozen=True)
class Setup:
    """How a federation differs from the world's plain one (sequential, plain text, features).

    Attributes:
        splits: clients; None: the world's four.
        batch, lr, momentum, decay, seed, rounds: as in the config.
        cosine: the learning rate falls over the run; False: constant.
        chunk: clients stacked at once.
        packed: the packed text tower.
        pixels: images through the tower instead of features.
        poisoned: clients whose training features are not a number.
        nonfinite: policy for those.
        opts: more ``KEY, value`` of the method's own node.
        engine: instead of the local one.
    """

    splits: Sequence[IndexSplit] | None = None
    batch: int = BATCH
    lr: float = 0.05
    momentum: float = 0.9
    decay: float = 1e-3
    cosine: bool = True
    seed: int = 1
    rounds: int = ROUNDS
    chunk: int = 1
    packed: bool = False
    pixels: bool = False
    poisoned: tuple[int, ...] = ()
    nonfinite: str = "abort"
    opts: dict[str, Any] = field(default_factory=dict)
    engine: Engine | None = None


@dataclass(frozen=True)
class TensorProxy:
    """The server's images in memory (see ``federation.server.Proxy``)."""

    source: str
    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        """Return their number."""
        return len(self.images)

    def pixels(self, positions: Tensor) -> Tensor:
        """Return normalised pixels ``[n, 3, H, W]``."""
        return self.images[positions]


@dataclass
class Trajectory:
    """A recorded run.

    Attributes:
        fed: the federation, its trainer used once.
        states: copies of the state after each round, everybody's tensors among it, from 0.
        events: one per round, from round 1.
        digests: of the backbone before and after.
        generators: states of the global generators before and after.
    """

    fed: Federation
    states: list[WholeState] = field(default_factory=list)
    events: list[RoundFinished] = field(default_factory=list)
    digests: tuple[str, ...] = ()
    generators: tuple[list[Any], ...] = ()


class CheckWorld:
    """The small world.

    Args:
        opts: ``["TRAINER.X.Y", "value", ...]`` for the methods' own options.
        vision: see ``small_backbone``.
        seed: of weights and images.
        yaml: the method's config file; by default the one of its name in ``configs/trainers``.
    """

    def __init__(
        self, opts: Sequence[str] = (), vision: dict[str, Any] | None = None, seed: int = 7,
        yaml: Path | None = None,
    ) -> None:
        self.opts, self.yaml = list(opts), yaml
        self.backbone = small_backbone(vision, seed)
        self.splits = _shares()
        n = sum(len(part) for s in self.splits for part in (s.train, s.val, s.test))
        draw = rng.stream(seed, "world")
        self.labels = torch.arange(n) % len(BASE)
        side = self.backbone.image_size
        looks = torch.randn(len(BASE), 3, side, side, generator=draw)
        noise = torch.randn(n, 3, side, side, generator=draw)
        self.pixels = (looks[self.labels] + noise).double()
        looks = torch.randn(PROXY, 3, side, side, generator=rng.stream(seed, "world-proxy"))
        self.proxy = TensorProxy("holdout", looks.double(), torch.arange(PROXY) % len(BASE))
        self._runs: dict[type[Trainer], Trajectory] = {}
        self._configs: dict[tuple[type[Trainer], str, int], CfgNode] = {}

    @cached_property
    def features(self) -> Tensor:
        """Image features of all samples, ``[n, d]``."""
        with torch.no_grad():
            return self.backbone.encode_image(self.pixels)

    def config(
        self, trainer: type[Trainer], more: dict[str, Any] | None = None, clients: int = len(SIZES)
    ) -> CfgNode:
        """Return a whole config with the trainer's defaults, the world's opts and ``more``.

        Raises:
            ConfigError: an option that does not exist or is out of range.
        """
        schema = method_schema(trainer) if trainer.name else default_schema()
        yaml = self.yaml
        if yaml is None and trainer.name:
            yaml = lookup(trainer.name, "trainers")
        cfg, _ = build_config(None, yaml, {}, self.opts, schema)
        cfg.defrost()
        for key, value in (more or {}).items():
            cfg.TRAINER[trainer.name.upper()][key] = value
        cfg.FED.ROUNDS, cfg.FED.CLIENTS, cfg.FED.LOCAL_EPOCHS = ROUNDS, clients, EPOCHS
        cfg.DATASET.SERVER_HOLDOUT = PROXY // len(BASE)  # the server has images: AKT is tried
        cfg.freeze()
        return cfg

    def model(self, packed: bool = False) -> VLModel:
        """Return a new model of the base classes."""
        return VLModel(self.backbone, BASE, packed=packed)

    def federation(self, trainer: type[Trainer], setup: Setup | None = None) -> Federation:
        """Return a new federation with a trainer of its own."""
        s = setup or Setup()
        splits = self.splits if s.splits is None else s.splits
        key = trainer, repr(sorted(s.opts.items())), len(splits)
        if key not in self._configs:  # an invariant makes up to ten federations
            self._configs[key] = self.config(trainer, s.opts, len(splits))
        cfg = self._configs[key]
        momentum = s.momentum if cfg.OPTIM.MOMENTUM else 0.0  # a YAML may ask for plain SGD
        method, model = trainer(cfg), self.model(s.packed)
        check_streams(method.streams(model), model)
        streams = ("pixels",) if s.pixels else method.streams(model)
        batcher = SplitBatcher(
            self.source(s, model, *streams), splits, s.batch, s.seed, 1, EPOCHS,
            torch.device("cpu"), torch.float64,
        )
        schedule = Schedule(s.lr, "cosine", s.rounds * EPOCHS) if s.cosine else Schedule(s.lr)
        plan = Plan(
            s.rounds, len(splits), epochs=EPOCHS, seed=s.seed, schedule=schedule,
            nonfinite=s.nonfinite,
            optim=OptimSpec(
                "sgd", s.lr, momentum, s.decay, keep=bool(cfg.OPTIM.KEEP_STATE and momentum),
            ),
        )
        return Federation(
            method, model, batcher, plan, engine=s.engine or LocalEngine(s.chunk),
            proxy=self.proxy,
        )

    def source(self, setup: Setup, model: VLModel, *streams: str) -> StreamSource:
        """Return the world's images: ``features``, ``tokens.<block>``, ``patches``, ``pixels``."""
        return join_sources([self._stream(setup, model, stream) for stream in streams])

    def _stream(self, setup: Setup, model: VLModel, stream: str) -> FeatureSource | PixelSource:
        values = self.pixels.clone()
        if stream == "features":
            values = self.features.clone()
        elif stream != "pixels":
            with torch.no_grad():
                values = tower_of(model, stream).compute(values, stream)
        for client in setup.poisoned:
            values[torch.as_tensor(self.splits[client].train)] = torch.nan
        if stream == "pixels":
            return PixelSource(lambda i, view: values[i], self.labels)
        return FeatureSource.of(values[None], torch.arange(len(self.labels)), self.labels, stream)

    def streams(self, fed: Federation, index: Tensor) -> dict[str, Tensor]:
        """Return the streams of samples ``index [K, B]`` as this federation's batches do."""
        source = fed.batcher.source  # type: ignore[attr-defined]
        flat = source.fetch(index.reshape(-1), 0)
        return {name: v.reshape(*index.shape, *v.shape[1:]) for name, v in flat.items()}

    def record(
        self, trainer: type[Trainer], setup: Setup | None = None, start: WholeState | None = None,
        until: int | None = None,
    ) -> Trajectory:
        """Run ``setup`` from ``start`` (default: untrained) and keep what happened.

        Args:
            until: last round that is run; default: the last one of ``setup``.
        """
        run = Trajectory(self.federation(trainer, setup))

        def keep(event: Event) -> None:
            if isinstance(event, RoundFinished) and event.round:
                run.events.append(event)

        run.fed.subscribers.append(keep)
        run.fed.savers.append(lambda state: run.states.append(copy_fed(run.fed.read(state))))
        before, digest = global_generators(), run.fed.model.verify_frozen()
        run.fed.run(None if start is None else run.fed.adopt(copy_fed(start)), until)
        run.digests = (digest, run.fed.model.verify_frozen())
        run.generators = (before, global_generators())
        return run

    def trajectory(self, trainer: type[Trainer]) -> Trajectory:
        """Return the plain run of three rounds, made once per trainer."""
        if trainer not in self._runs:
            self._runs[trainer] = self.record(trainer)
        return self._runs[trainer]


def _shares() -> list[IndexSplit]:
    """Cut 0, 1, 2, ... into the clients' train, val and test samples."""
    shares, at = [], 0
    for size in SIZES:
        edges = np.cumsum([at, size, VAL, TEST])
        parts = [np.arange(i, j) for i, j in zip(edges[:-1], edges[1:], strict=True)]
        shares.append(IndexSplit(*parts))
        at = int(edges[-1])
    return shares
