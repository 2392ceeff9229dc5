"""A run on captions: what it refuses, and its captions' features beside its images' streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor
from yacs.config import CfgNode

from fedvlm.core.errors import ConfigError
from fedvlm.core.progress import Progress
from fedvlm.data.datum import refuse_targets
from fedvlm.data.federated import FederatedData
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.federation.toolbox.contrast import SOFTMAX
from fedvlm.federation.toolbox.retrieval import STREAM
from fedvlm.federation.trainer import Trainer
from fedvlm.job.sources import store_dir
from fedvlm.models.backbone import Backbone
from fedvlm.models.features.sources import FeatureSource, JoinedSource, StreamSource
from fedvlm.models.features.texts import cached_texts

TAKES = "FedAvg, FedProx, Ditto, LocalOnly or VPT"


def check_captions(cfg: CfgNode, trainer: Trainer) -> None:
    """Refuse captions for what needs classes, before any data are read (``ConfigError``)."""
    who = trainer.name or type(trainer).__name__
    trainer.require(
        bool(vars(type(trainer)).get("captions")),
        f"{who} needs one class for each image (its loss, its prototypes or its texts are those "
        f"of classes), and DATASET.CAPTIONS gives images captions: take {TAKES}")
    trainer.require(
        trainer.loss_kind == SOFTMAX,
        f"OPTIM.LOSS {trainer.loss_kind} pairs images with classes; with DATASET.CAPTIONS leave it "
        "out: the loss compares the images and captions of a batch")
    if isinstance(trainer, PeftTrainer):
        spec = trainer.spec
        trainer.require(
            spec.text == "none" and spec.head == "text",
            "captions are encoded by the frozen text tower, once, and there are no classes for a "
            f"prompt or a head: PEFT.TEXT {spec.text}, PEFT.HEAD {spec.head} would train nothing "
            "here: use --peft lora, feature or adapter (they change the image side)")
    trainer.require(
        cfg.FED.ENGINE == "local",
        f"FED.ENGINE {cfg.FED.ENGINE}: captions (DATASET.CAPTIONS) are read in one process so far: "
        "use --engine local")
    flips = cfg.FED.HOSTILE and cfg.FED.ATTACK in ("label_flip", "backdoor")
    refuse_targets(f"FED.ATTACK {cfg.FED.ATTACK}", captions=flips)
    refuse_targets("TEST.KEEP_LOGITS", captions=cfg.TEST.KEEP_LOGITS)


def check_text_tower(backbone: Backbone) -> None:
    """Refuse a backbone that cannot read captions (``ConfigError``)."""
    if not backbone.has_text:
        raise ConfigError(
            f"backbone '{backbone.name}' has no text tower, and captions (DATASET.CAPTIONS) need "
            "one: choose a CLIP backbone")


def check_simulated(cfg: CfgNode, keys: Iterable[str], backbone: Backbone) -> None:
    """Refuse what a simulated text tower cannot be asked: its own images, and other names.

    Args:
        keys: content keys of all images of the run.

    Raises:
        ConfigError: an image of the run made the tower, or new classes or sets are tested.
    """
    if cfg.DATASET.SUBSAMPLE_CLASSES != "all" or cfg.TEST.TARGETS:
        raise ConfigError(
            f"backbone '{backbone.name}' has a simulated text tower, which was fitted to the names "
            "of all classes, so new classes and other data sets say nothing: use "
            "--subsample-classes all and no --targets")
    refuse_made(keys, backbone)


def refuse_made(keys: Iterable[str], backbone: Backbone) -> None:
    """Refuse images, by content key, that made a simulated text tower (``ConfigError``)."""
    made = backbone.text_images and sum(key in backbone.text_images for key in keys)
    if made:
        raise ConfigError(
            f"{made} of these images were used to fit the simulated text tower of backbone "
            f"'{backbone.name}', and may not be used again: leave the set's validation images out "
            "(in a run: DATASET.VAL_SHOTS 0)")


@dataclass(frozen=True)
class TextSource(FeatureSource):
    """Features of samples' texts, the same in every view."""

    def take(self, rows: Tensor, view: int) -> Tensor:
        """See ``FeatureSource.take``."""
        return super().take(rows, 0)


def with_captions(
    cfg: CfgNode, data: FederatedData, backbone: Backbone, sources: list[StreamSource],
    notes: list[str], progress: Progress | None,
) -> list[StreamSource]:
    """Return the sources with the stream ``captions`` beside their own.

    It is ``[n, M, d]``: normalised features of a sample's captions, zero behind the last. ``notes``
    tells of images without a caption of their own alone.

    Raises:
        DataError: the feature store cannot be written.
    """
    counts = [len(sample.captions) for sample in data.samples]
    texts = list(chain.from_iterable(sample.captions for sample in data.samples))
    held = Counter(chain.from_iterable({*sample.captions} for sample in data.samples))
    alike = sum(all(held[text] > 1 for text in sample.captions) for sample in data.samples)
    if alike:
        notes.append(f"{alike:,} of {len(counts):,} images have only captions that other images "
                     "have, too: i2t counts an equal caption of another image against a model")
    rows = F.normalize(cached_texts(backbone, texts, store_dir(cfg), progress, notes), dim=-1)
    table = rows.new_zeros(len(counts), max(counts), rows.shape[1])
    at = torch.tensor(counts)
    table[torch.arange(max(counts)) < at[:, None]] = rows
    own = TextSource.of(
        [table], torch.arange(len(counts)), torch.from_numpy(data.labels.copy()), STREAM)
    return [
        JoinedSource((*(one.parts if isinstance(one, JoinedSource) else (one,)), own))
        for one in sources
    ]
