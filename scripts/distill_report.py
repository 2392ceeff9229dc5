"""How near a distilled student came to its teacher, and the README that says so."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from distill_data import Pool
from torch import Tensor

from fedvlm.data.datum import labels_of
from fedvlm.evaluation.references.logistic import Frozen, regressions
from fedvlm.federation.batches import IndexSplit
from fedvlm.models.backbone import Backbone
from fedvlm.models.features.encode import CPU_BATCH
from fedvlm.models.features.sources import FeatureSource
from fedvlm.models.vlmodel import VLModel

PROBE = 2000  # training images of a linear probe, at most
COLUMNS = {
    "cosine": "cosine", "cosine_train": "cosine, training images", "zero_teacher": "zero-shot T",
    "zero_student": "zero-shot S", "probe_teacher": "probe T", "probe_student": "probe S",
    "probe_untrained": "probe U",
}  # fmt: skip


def class_texts(backbone: Backbone, pool: Pool) -> Tensor:
    """Return the text features ``[C, d]`` of a set's classes, unit length, by its templates."""
    return VLModel(backbone, pool.names, templates=pool.prompts).anchor("template", 0).detach()


def measure(
    pool: Pool, texts: Tensor, features: Mapping[str, tuple[Tensor, Tensor]]
) -> dict[str, float]:
    """Return what is measured of one set, cosines and per cent.

    Args:
        pool: the set.
        texts: of its classes ``[C, d]``.
        features: by tower (``teacher``, ``student``, ``untrained``) those of its training and its
            held-out images, ``[n, d]`` each.
    """
    train, held_out = labels_of(pool.train), labels_of(pool.held_out)
    figures: dict[str, float] = {"train": len(train), "held_out": len(held_out)}
    for name, place in (("cosine_train", 0), ("cosine", 1)):
        pair = (features["teacher"][place], features["student"][place])
        figures[name] = round(float(F.cosine_similarity(*pair).mean()), 4)
    for tower, (own, other) in features.items():
        if tower != "untrained":
            right = (F.normalize(other, dim=-1) @ texts.T).argmax(1).numpy() == held_out
            figures[f"zero_{tower}"] = round(100 * float(right.mean()), 1)
        figures[f"probe_{tower}"] = round(probe(own, train, other, held_out), 1)
    return figures


def probe(own: Tensor, train: np.ndarray, other: Tensor, held_out: np.ndarray) -> float:
    """Per cent of held-out images that a logistic regression on training features gets right.

    Its regularisation is chosen on a part of the training images (``evaluation/references``). At
    most ``PROBE`` evenly spaced training images, sorted by class, serve.
    """
    order = np.argsort(train, kind="stable")
    order = order[np.linspace(0, len(order) - 1, min(PROBE, len(order))).astype(np.int64)]
    labels = np.concatenate([train, held_out])
    every = torch.arange(len(labels))
    source = FeatureSource.of((torch.cat([own, other]),), every, torch.from_numpy(labels))
    test = np.arange(len(train), len(labels))
    share = IndexSplit(order, np.zeros(0, dtype=np.int64), test)
    (done,) = regressions(Frozen(source, labels), [share])
    return 100 * float((done.labels == held_out).mean())


def speed(backbone: Backbone, images: int = 256) -> float:
    """Return milliseconds of processor time for an image, in batches as runs encode them."""
    size = backbone.image_size
    pixels = torch.zeros(CPU_BATCH, 3, size, size)
    times = []
    with torch.no_grad():
        for _ in range(max(2, images // CPU_BATCH)):
            start = time.process_time()
            backbone.encode_image(pixels)
            times.append(time.process_time() - start)
    return 1000 * float(np.median(times)) / CPU_BATCH


def readme(facts: Mapping[str, Any], figures: Mapping[str, Mapping[str, float]]) -> str:
    """Return the README of a folder of weights.

    Args:
        facts: of the run, as the card has them.
        figures: by set, of ``measure``.
    """
    vision, check = facts["vision"], facts["check"]
    start = f"those of `{facts['start']}`" if facts["start"] else "random ones"
    lines = [
        "# A small ViT distilled from a teacher's image features", "",
        f"Load it: `--backbone local-dir:{facts['folder']}`. Made by `scripts/distill_vit.py`; it "
        "is no part of the project and is not shipped.", "",
        f"- Image tower: open_clip's ViT, {vision['layers']} blocks of width {vision['width']}, "
        f"patches of {vision['patch_size']} in images of {vision['image_size']} pixels, "
        f"{facts['parameters']:,} parameters. One image takes {facts['ms']:.2f} ms of one core "
        f"(the teacher: {facts['teacher_ms']:.1f} ms).",
        f"- Text tower: that of the teacher, `{facts['teacher']}`, unchanged (digest "
        f"`{facts['teacher_digest'][:12]}`).",
        f"- Trained on {check['training'] - check['taken_out']:,} training images of "
        f"{len(figures)} sets, without labels, for {facts['steps']:,} steps of {facts['batch']} "
        f"({facts['epochs']:.1f} epochs, {facts['training_minutes']:.1f} CPU minutes), from "
        f"{start} as first weights.",
        f"- Check: the bytes of {check['training']:,} training images were compared with those of "
        f"all {check['guarded']:,} different images that are tested on or measured on below; "
        f"{check['taken_out']} training image(s) were in both and were left out.",
        f"- Command: `{facts['command']}`", "",
        "Measured on held-out images: the published validation images, or a tenth of each class's "
        "training images put aside where a set has none. Never on test images. Cosine: of the "
        "student's feature with the teacher's. T teacher, S student, U the same ViT with its first "
        "weights; per cent. Probe: logistic regression on at most "
        f"{PROBE:,} of the training images, which the student has seen.", "",
        "| set | trained on | held out | " + " | ".join(COLUMNS.values()) + " |",
        "|" + "---|" * (3 + len(COLUMNS)),
        *(_row(name, row) for name, row in figures.items()), "",
    ]  # fmt: skip
    return "\n".join(lines)


def _row(name: str, row: Mapping[str, float]) -> str:
    cells: Sequence[str] = [
        f"{row[k]:.3f}" if k.startswith("cosine") else f"{row[k]:.1f}" for k in COLUMNS
    ]
    return f"| {name} | {row['train']:,} | {row['held_out']:,} | " + " | ".join(cells) + " |"
