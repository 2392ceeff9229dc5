"""Images of the distillation: lists of training images, the check on them, pixels, and teacher.

Only training lists are read for training. What a student is measured on are the published
validation images; of a set that has none, a tenth of each class of its training list is put aside
first. No label is used in training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor
from yacs.config import CfgNode

from fedvlm.config.build import build_config
from fedvlm.config.keys import default_schema
from fedvlm.core.errors import DataError
from fedvlm.core.progress import Progress
from fedvlm.core.rng import numpy_stream
from fedvlm.core.transform import TransformSpec
from fedvlm.data.datasets import load_for_training, templates
from fedvlm.data.datum import DatasetBase, Datum, labels_of
from fedvlm.data.image_records import ImageRecords, records_of
from fedvlm.data.images import ImageLoader
from fedvlm.data.targets import set_config
from fedvlm.job.sources import features_of
from fedvlm.models.backbone import Backbone
from fedvlm.models.features.decode import Throughput

SETS = ("caltech101", "cifar10", "cifar100", "dtd", "eurosat")
ASIDE = 0.1  # of each class's training images, where a set has no validation images
_RAW = 255.0  # pixels are kept as 8-bit numbers


@dataclass(frozen=True)
class Pool:
    """One set's images for the distillation.

    Attributes:
        word: of the set, as ``--dataset`` takes it.
        cfg: its config.
        names, prompts: class names by label, the set's templates.
        train, held_out, test: images to learn from, to measure on, and never to touch.
        records: their content keys.
    """

    word: str
    cfg: CfgNode
    names: list[str]
    prompts: list[str]
    train: list[Datum]
    held_out: list[Datum]
    test: list[Datum]
    records: ImageRecords = field(repr=False)


def read_pools(
    words: Sequence[str], root: str, images: int, held_out: int, seed: int, cache: str = ""
) -> list[Pool]:
    """Return the sets with what is drawn of them.

    Args:
        words: sets by name.
        root: folder of the sets; empty for built-in ones.
        images: to learn from, over all sets: small sets are taken whole, the rest is shared evenly.
        held_out: to measure on, at most, of each set.
        seed: of the draw.
        cache: folder of features and records; empty for the default.

    Raises:
        ConfigError, DataError: a set that cannot be read.
    """
    flags = {"CACHE_DIR": cache} if cache else {}
    base, _ = build_config(None, None, flags | {"DATASET.ROOT": root}, [], default_schema())
    pools = [_read(word, base, seed) for word in words]
    most = share([len(pool.train) for pool in pools], images)
    return [
        replace(
            pool, train=_draw(pool.train, most, seed, "train", pool.word),
            held_out=_draw(pool.held_out, held_out, seed, "held-out", pool.word),
        )
        for pool in pools
    ]  # fmt: skip


def _read(word: str, base: CfgNode, seed: int) -> Pool:
    cfg = set_config(word, base, "--sets")
    data: DatasetBase = load_for_training(cfg)
    train, held_out = data.train_x, data.val
    if not held_out:
        train, held_out = put_aside(train, seed, word)
    names = [name.replace("_", " ") for name in data.classnames]
    records = records_of(data.all(), cfg)
    return Pool(word, cfg, names, templates(cfg), train, held_out, data.test, records)


def put_aside(items: Sequence[Datum], seed: int, word: str) -> tuple[list[Datum], list[Datum]]:
    """Return a training list without a tenth of each class, and that tenth."""
    labels, aside = labels_of(items), np.zeros(len(items), dtype=bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        order = numpy_stream(seed, "distill-aside", word, int(label)).permutation(rows)
        aside[order[: int(ASIDE * len(rows))]] = True
    return [d for d, out in zip(items, aside, strict=True) if not out], [
        d for d, out in zip(items, aside, strict=True) if out
    ]


def share(sizes: Sequence[int], total: int) -> int:
    """Return how many images each set may give at most, so that ``total`` is not exceeded."""
    left, most = total, 0
    for place, size in enumerate(sorted(sizes)):
        most = left // (len(sizes) - place)
        if size > most:
            return most
        left -= size
    return max(sizes, default=0)


def _draw(items: list[Datum], most: int, seed: int, what: str, word: str) -> list[Datum]:
    if len(items) <= most:
        return items
    rng = numpy_stream(seed, f"distill-{what}", word)
    return [items[i] for i in np.sort(rng.permutation(len(items))[:most])]


def drop_copies(pools: Sequence[Pool]) -> tuple[list[Pool], dict[str, int]]:
    """Take out training images whose bytes are those of an image that is measured or tested on.

    Compared are the content keys of all sets with those of all sets, so that an image of one set
    cannot be learned for the test of another.

    Returns:
        The pools, and how many images were compared, looked for and taken out.

    Raises:
        DataError: no training image is left.
    """
    guarded = {p.records.content_key(d) for p in pools for d in (*p.held_out, *p.test)}
    clean = [
        replace(p, train=[d for d in p.train if p.records.content_key(d) not in guarded])
        for p in pools
    ]
    before, after = (sum(len(p.train) for p in some) for some in (pools, clean))
    if not after:
        raise DataError("no training image is left that is not also a validation or test image")
    for pool in clean:
        pool.records.save()
    return clean, {"training": before, "guarded": len(guarded), "taken_out": before - after}


def fingerprint(pools: Sequence[Pool]) -> str:
    """Return the sha256 of all training images, in order."""
    total = hashlib.sha256()
    for pool in pools:
        for sample in pool.train:
            total.update(pool.records.content_key(sample).encode())
    return total.hexdigest()


def tower_features(
    pool: Pool, samples: Sequence[Datum], tower: Backbone, progress: Progress | None = None
) -> Tensor:
    """Return a backbone's features ``[n, d]``, out of the feature store that runs use, or into it.

    Raises:
        DataError: an image that does not decode.
    """
    loader = ImageLoader(samples, tower.transform_spec, records=pool.records)
    notes: list[str] = []
    every = range(len(samples))
    return features_of(pool.cfg, tower, loader, progress, Throughput(), notes, every, None)


def pixels_of(pool: Pool, samples: Sequence[Datum], spec: TransformSpec) -> Tensor:
    """Return images as a run of the student sees them, before they are normalised.

    Returns:
        uint8 ``[n, 3, S, S]``.

    Raises:
        DataError: an image that does not decode.
    """
    raw = replace(spec, mean=(0.0,) * 3, std=(1 / _RAW,) * 3)
    loader = ImageLoader(samples, raw, records=pool.records)
    out = torch.empty(len(samples), 3, spec.size, spec.size, dtype=torch.uint8)
    for i in range(len(samples)):
        out[i] = loader.load(i).round_()
    return out


def normalised(pixels: Tensor, spec: TransformSpec) -> Tensor:
    """Return uint8 ``[n, 3, S, S]`` as the tower wants them: ``(value / 255 - mean) / std``."""
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (spec.mean, spec.std))
    return pixels.float().div_(_RAW).sub_(mean).div_(std)
