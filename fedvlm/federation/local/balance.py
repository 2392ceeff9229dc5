"""What a class counts in a client's loss: ``OPTIM.CLASS_WEIGHTS``.

The weights are those of the client's own training images. They stay with the client: only what it
trains with them is sent. Their mean over these images is 1, so that the learning rate keeps its
meaning, and every class counts 1 where all have equally many images.

``balanced``: inverse to the class's number of images n_c. ``effective``: inverse to the effective
number of images, (1 - b^n_c) / (1 - b) with b = ``BETA`` (Cui et al. 2019, Class-Balanced Loss
Based on Effective Number of Samples, equation 2). Of sets of labels each label has two classes: the
images with it and those without. A class without training images counts 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

BALANCED = "balanced"
BETA = 0.999


def class_weights(counts: np.ndarray, kind: str) -> np.ndarray:
    """Return what each class counts, ``[..., C]`` float64, by numbers of images ``[..., C]``."""
    counts = np.asarray(counts, dtype=np.float64)
    there = counts > 0
    n = np.where(there, counts, 1.0)
    number = n if kind == BALANCED else (1 - BETA**n) / (1 - BETA)
    least = np.where(there, number, np.inf).min(-1, keepdims=True)
    share = np.where(there, least, number) / number  # exactly 1 where all have as many
    total = (counts * share).sum(-1, keepdims=True)
    mean = np.where(total > 0, total / np.maximum(counts.sum(-1, keepdims=True), 1.0), 1.0)
    return np.where(there, share / mean, 1.0)


def label_counts(
    labels: np.ndarray, classes: int, sets: np.ndarray | None = None
) -> np.ndarray:
    """Return the images of each class ``[C]``, or without and with each label ``[C, 2]``.

    Args:
        labels: of the images ``[n]``; with ``sets [S, C]`` the rows of their sets.
    """
    if sets is None:
        return np.bincount(labels, minlength=classes)
    held = sets[labels].sum(0).astype(np.int64)
    return np.stack([len(labels) - held, held], -1)


class Trained(Protocol):
    """What of a client is asked: its training images."""

    @property
    def train(self) -> np.ndarray:
        """Sorted indices of samples."""
        ...


def sample_costs(
    labels: np.ndarray, classes: int, kind: str, sets: np.ndarray | None = None
) -> np.ndarray:
    """Return what each of a client's images counts ``[n]``, or each of its labels ``[n, C]``."""
    weights = class_weights(label_counts(labels, classes, sets), kind)
    if sets is None:
        return weights[labels]
    return np.where(sets[labels] > 0, weights[:, 1], weights[:, 0])


@dataclass
class Balance:
    """What classes count in the losses of clients.

    Attributes:
        kind: ``balanced`` or ``effective``.
        labels: by sample.
        clients: their training images.
        classes: number of them.
        sets: the sets of labels ``[S, C]``; None: one class per image.
        used: whether a loss has asked; a method that never does has to be refused.
    """

    kind: str
    labels: np.ndarray
    clients: Sequence[Trained]
    classes: int
    sets: np.ndarray | None = None
    used: bool = False
    _rows: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def table(self, clients: Sequence[int]) -> Tensor:
        """Return the weights of clients ``[K, C]``, or without and with a label ``[K, C, 2]``."""
        self.used = True
        for c in clients:
            if c not in self._rows:
                own = self.labels[np.asarray(self.clients[c].train, dtype=np.int64)]
                counts = label_counts(own, self.classes, self.sets)
                self._rows[c] = torch.from_numpy(class_weights(counts, self.kind))
        return torch.stack([self._rows[c] for c in clients])
