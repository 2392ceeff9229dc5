"""From a config to everything a run needs: data, backbone, model, trainer, sources, federation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from yacs.config import CfgNode

from fedvlm.config import flat
from fedvlm.data.federated import FederatedData, build_federation
from fedvlm.data.images import ImageLoader
from fedvlm.errors import ConfigError
from fedvlm.federation.batches import SampleSource, SplitBatcher
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.engine import LocalEngine
from fedvlm.federation.optim import OptimSpec
from fedvlm.federation.rounds import Federation, Plan
from fedvlm.federation.schedule import Schedule
from fedvlm.federation.sources import FeatureSource, PixelSource
from fedvlm.models.backbone import Backbone, load_backbone
from fedvlm.models.model import VLModel
from fedvlm.models.store import cached_features

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
CHUNK_BYTES = 2 << 30  # activations of one chunk of clients; a constant, so that bits do not move
MAX_CHUNK = 16
# Keys that move no number: where things lie, how much is said. All others make the identity.
WHERE = (
    "OUTPUT_DIR", "RESUME", "CACHE_DIR", "TAG", "DATASET.ROOT", "VERBOSE", "USE_CUDA", "VERSION",
    "DATALOADER.NUM_WORKERS", "TRAIN.PRINT_FREQ", "TRAIN.CHECKPOINT_FREQ", "TEST.KEEP_LOGITS",
    "TEST.EVAL_EVERY", "DEVICE",
)
Progress = Callable[[str, int, int], None]


@dataclass
class Built:
    """A run, ready to go.

    Attributes:
        train, test: sample sources of training views and of the un-augmented view.
        identity: everything that changes the run's numbers.
        notes: remarks for the log and the results.
    """

    cfg: CfgNode
    data: FederatedData
    backbone: Backbone
    model: VLModel
    federation: Federation
    train: SampleSource
    test: SampleSource
    loader: ImageLoader
    identity: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def pick_device(name: str) -> torch.device:
    """Return the device that ``DEVICE`` means.

    Raises:
        ConfigError: it is not there.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    device = torch.device(name)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError(
            f"--device {name}: this machine has {count} CUDA device(s); use --device cpu or auto"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("--device mps: not available on this machine; use --device cpu or auto")
    return device


def views_of(cfg: CfgNode) -> int:
    """Return the number of training views: ``INPUT.VIEWS``, 0 meaning one per local epoch."""
    return int(cfg.INPUT.VIEWS) or int(cfg.FED.ROUNDS * cfg.FED.LOCAL_EPOCHS)


def load_model(cfg: CfgNode, data: FederatedData) -> tuple[Backbone, VLModel]:
    """Load the frozen backbone and wrap it with the run's class names."""
    backbone = load_backbone(
        cfg.MODEL.BACKBONE.NAME, cfg.MODEL.INIT_WEIGHTS, loader=cfg.MODEL.LOADER,
        dtype=DTYPES[cfg.MODEL.PREC], device=pick_device(cfg.DEVICE),
        allow_random=not cfg.MODEL.BACKBONE.PRETRAINED, seed=cfg.SEED, plain=cfg.FED.PLAIN,
    )
    model = VLModel(
        backbone, data.classnames, templates=data.templates, packed=not cfg.FED.PLAIN,
        bf16_text=cfg.MODEL.PREC == "bf16",
    )
    return backbone, model


def make_plan(cfg: CfgNode) -> Plan:
    """Return rounds, participation, optimiser and schedule of a config."""
    o, epochs = cfg.OPTIM, int(cfg.FED.LOCAL_EPOCHS)
    spec = OptimSpec(
        o.NAME, o.LR, o.MOMENTUM, o.WEIGHT_DECAY, o.SGD_DAMPNING, o.SGD_NESTEROV,
        (o.ADAM_BETA1, o.ADAM_BETA2),
    )
    per_round = o.CLOCK == "round"
    schedule = Schedule(
        o.LR, o.LR_SCHEDULER, epochs if per_round else epochs * int(cfg.FED.ROUNDS),
        tuple(int(s) for s in o.STEPSIZE), o.GAMMA, int(o.WARMUP_EPOCH), o.WARMUP_TYPE,
        o.WARMUP_CONS_LR, o.WARMUP_MIN_LR,
    )
    return Plan(
        int(cfg.FED.ROUNDS), int(cfg.FED.CLIENTS), cfg.FED.FRAC, epochs, cfg.FED.FIRST_ROUND_ALL,
        cfg.FED.NONFINITE, int(cfg.SEED), spec, schedule, per_round,
    )


def chunk_of(cfg: CfgNode, model: VLModel) -> int:
    """Return how many clients are stacked: ``FED.CHUNK``, or by a fixed budget of memory."""
    if cfg.FED.PLAIN:
        return 1
    if cfg.FED.CHUNK:
        return int(cfg.FED.CHUNK)
    tokens = 24 + 6 * len(model.classnames)  # a packed sequence of two prompt sets, roughly
    per_client = 16 * model.text_width * 4 * 2 * tokens * 12
    return max(1, min(MAX_CHUNK, CHUNK_BYTES // per_client))


def identity_of(
    cfg: CfgNode, data: FederatedData, backbone: Backbone, chunk: int
) -> dict[str, Any]:
    """Return everything that changes the run's numbers (DESIGN 4.10)."""
    keys = {
        k: v for k, v in flat(cfg).items()
        if k not in WHERE and (not k.startswith("TRAINER.") or k == "TRAINER.NAME"
                               or k.startswith(f"TRAINER.{_node(cfg)}."))
    }
    return {
        "config": keys, "data": data.digest, "backbone": backbone.digest, "chunk": chunk,
        "device": pick_device(cfg.DEVICE).type,
    }


def _node(cfg: CfgNode) -> str:
    return load_trainer(cfg.TRAINER.NAME).name.upper()


def make_loader(cfg: CfgNode, data: FederatedData, backbone: Backbone) -> ImageLoader:
    """Return the image loader of a run."""
    return ImageLoader(
        data.samples, backbone.transform_spec, views_of(cfg), int(cfg.DATA_SEED),
        crop_scale=tuple(cfg.INPUT.RRCROP_SCALE), records=data.records,
    )


def pixel_sources(loader: ImageLoader, labels: Tensor) -> tuple[PixelSource, PixelSource]:
    """Return (training views, test view) without any cache."""
    return (
        PixelSource(loader.load, labels),
        PixelSource(lambda i, _view: loader.load(i, None), labels),
    )


def feature_sources(
    cfg: CfgNode, data: FederatedData, backbone: Backbone, loader: ImageLoader, labels: Tensor,
    progress: Progress | None,
) -> tuple[FeatureSource, FeatureSource]:
    """Return (training views, test view) from the feature cache, encoding what is missing."""
    train = sorted({int(i) for c in data.clients for i in c.train})
    every = sorted(
        {int(i) for c in data.clients for part in (c.train, c.val, c.test) for i in part}
        | set(data.global_test.tolist()) | set(data.new_test.tolist())
    )
    test = _encode(cfg, backbone, loader, every, None, progress)
    test_source = FeatureSource.of(test[None], torch.tensor(every), labels)
    if loader.views == 1:
        return test_source, test_source
    views = [_encode(cfg, backbone, loader, train, v, progress) for v in range(loader.views)]
    return FeatureSource.of(torch.stack(views), torch.tensor(train), labels), test_source


def _encode(
    cfg: CfgNode, backbone: Backbone, loader: ImageLoader, indices: Sequence[int],
    view: int | None, progress: Progress | None,
) -> Tensor:
    what = "images" if view is None else f"images, view {view + 1} of {loader.views}"
    return cached_features(
        backbone, [loader.content_key(i) for i in indices],
        lambda position: loader.load(indices[position], view),
        view=-1 if view is None else view, transform_digest=loader.transform_key(view),
        cache_dir=cache_dir(cfg),
        progress=None if progress is None else (lambda done, n: progress(what, done, n)),
    )


def cache_dir(cfg: CfgNode) -> Path | None:
    """Return the feature cache's folder; None leaves the choice to the store."""
    return Path(cfg.CACHE_DIR).expanduser() if cfg.CACHE_DIR else None


def build(cfg: CfgNode, progress: Progress | None = None, *, pixels: bool = False) -> Built:
    """Build a run: config mistakes come first, then data, then weights, then image features.

    Args:
        progress: called with (what, done, of) while images are encoded.
        pixels: encode images batch by batch, without the cache (dry run, plain path).
    """
    trainer = load_trainer(cfg.TRAINER.NAME)(cfg)
    data = build_federation(cfg)
    backbone, model = load_model(cfg, data)
    loader = make_loader(cfg, data, backbone)
    labels = torch.from_numpy(data.labels.copy())
    train: SampleSource
    test: SampleSource
    if pixels or cfg.FED.PLAIN:
        train, test = pixel_sources(loader, labels)
    else:
        train, test = feature_sources(cfg, data, backbone, loader, labels, progress)
    plan, chunk = make_plan(cfg), chunk_of(cfg, model)
    batcher = SplitBatcher(
        train, data.clients, int(cfg.DATALOADER.TRAIN_X.BATCH_SIZE), int(cfg.SEED), loader.views,
        plan.epochs, model.device, model.dtype,
    )
    federation = Federation(trainer, model, batcher, plan, engine=LocalEngine(chunk))
    identity = identity_of(cfg, data, backbone, chunk)
    notes = [*data.notes, *model.notes, *_marks(cfg, loader)]
    return Built(cfg, data, backbone, model, federation, train, test, loader, identity, notes)


def _marks(cfg: CfgNode, loader: ImageLoader) -> list[str]:
    marks = [f"K = {loader.views} training view(s) per image"]
    if cfg.MODEL.BACKBONE.NAME == "tiny":
        marks.append("embedded tiny backbone: not comparable with papers")
    if not cfg.MODEL.BACKBONE.PRETRAINED:
        marks.append("random backbone weights: accuracies mean nothing")
    return marks
