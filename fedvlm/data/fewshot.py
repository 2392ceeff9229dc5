"""CoOp's few-shot draw and base/new halves, as functions of labels; no global randomness.

CoOp seeds Python's global generator, draws ``k`` training images per class, then ``min(k, 4)``
validation images per class from the same generator, and cuts the classes in halves only then. The
same picks come from a private ``random.Random(seed)``, since ``sample`` depends only on lengths.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from fedvlm.core.errors import ConfigError
from fedvlm.core.rng import python_stream
from fedvlm.data.datum import IntArray


def draw_shots(labels: Sequence[int] | IntArray, shots: int, rng: random.Random) -> list[int]:
    """Return positions of ``shots`` images per class, in CoOp's order.

    Classes come in order of first appearance; a class with fewer images gives all it has.

    Args:
        labels: the label of each image, in the list's order.
        shots: images per class; negative for all images, untouched.
        rng: advanced by one ``sample`` per class that has enough images.
    """
    if shots < 0:
        return list(range(len(labels)))
    by_class: dict[int, list[int]] = {}
    for position, label in enumerate(labels):
        by_class.setdefault(int(label), []).append(position)
    drawn: list[int] = []
    for positions in by_class.values():
        enough = len(positions) >= shots
        drawn += rng.sample(positions, shots) if enough else positions
    return drawn


def coop_draw(
    train: Sequence[int] | IntArray,
    val: Sequence[int] | IntArray,
    shots: int,
    val_shots: int,
    seed: int,
) -> tuple[list[int], list[int]]:
    """Return positions of the training and validation images CoOp uses at this seed.

    Args:
        train, val: labels of the full lists.
        shots: DATASET.NUM_SHOTS, negative for the full lists.
        val_shots: DATASET.VAL_SHOTS, negative for CoOp's ``min(shots, 4)``.
        seed: CoOp's SEED.
    """
    rng = python_stream(seed)
    drawn = draw_shots(train, shots, rng)
    return drawn, draw_shots(val, val_shots_of(shots, val_shots), rng)


def val_shots_of(shots: int, val_shots: int) -> int:
    """Return the validation images per class: as asked, else ``min(shots, 4)``, else all (-1)."""
    if val_shots >= 0 or shots < 0:
        return val_shots
    return min(shots, 4)


def relabel(num_classes: int, half: str) -> dict[int, int]:
    """Return old label to new label for ``all``, ``base`` or ``new`` classes.

    Labels are sorted; base is the first ceil(n/2); both halves count from 0 (CoOp).

    Raises:
        ConfigError: a half without classes.
    """
    middle = (num_classes + 1) // 2
    labels = {"all": range(num_classes), "base": range(middle), "new": range(middle, num_classes)}
    if not labels[half]:
        raise ConfigError(
            f"DATASET.SUBSAMPLE_CLASSES {half}: no class is left of {num_classes}; use all or base"
        )
    return {old: new for new, old in enumerate(labels[half])}


def short_classes(labels: IntArray, shots: int) -> list[int]:
    """Return the labels that have fewer than ``shots`` images (they give all they have)."""
    if shots < 0:
        return []
    values, counts = np.unique(labels, return_counts=True)
    return [int(v) for v, n in zip(values, counts, strict=True) if n < shots]
