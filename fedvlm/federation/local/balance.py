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

from fedvlm.core.trees import to_device

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


def label_counts(labels: np.ndarray, classes: int, sets: np.ndarray | None = None) -> np.ndarray:
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
    def train(self) -> np.ndarray: ...


def sample_costs(
    labels: np.ndarray, classes: int, kind: str, sets: np.ndarray | None = None
) -> np.ndarray:
    """Return what each of a client's images counts ``[n]``, or each of its labels ``[n, C]``."""
    weights = class_weights(label_counts(labels, classes, sets), kind)
    if sets is None:
        return weights[labels]
    return np.where(sets[labels] > 0, weights[:, 1], weights[:, 0])


@dataclass
class _Table:
    """Weights on a device: rows of clients ``[n, ...]``, and which row is whose."""

    rows: Tensor = field(default_factory=lambda: torch.empty(0))
    at: dict[int, int] = field(default_factory=dict)


@dataclass
class Balance:
    """What classes count in the losses of clients.

    Attributes:
        kind: ``balanced`` or ``effective``.
        labels: by sample.
        clients: their images; those of ``train`` count.
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
    _tables: dict[tuple[torch.device, torch.dtype], _Table] = field(
        default_factory=dict, repr=False)

    def table(self, clients: Sequence[int], device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return the weights of clients ``[K, C]``, or without and with a label ``[K, C, 2]``."""
        self.used = True
        known = self.place(clients, device, dtype)
        at = [known.at[c] for c in clients]
        if at == list(range(at[0], at[0] + len(at))):
            return known.rows[at[0] : at[0] + len(at)]
        return known.rows[to_device(torch.tensor(at, dtype=torch.int64), device)]

    def place(self, clients: Sequence[int], device: torch.device, dtype: torch.dtype) -> _Table:
        """Return the table of a device, with rows of these clients: each is copied there once."""
        known = self._tables.setdefault((device, dtype), _Table())
        new = [c for c in dict.fromkeys(clients) if c not in known.at]
        if new:
            rows = to_device(torch.stack([self._weights(c) for c in new]).to(dtype), device)
            known.rows = torch.cat([known.rows, rows]) if known.at else rows
            known.at.update({c: len(known.at) + n for n, c in enumerate(new)})
        return known

    def _weights(self, client: int) -> Tensor:
        own = self.labels[np.asarray(self.clients[client].train, dtype=np.int64)]
        counts = label_counts(own, self.classes, self.sets)
        return torch.from_numpy(class_weights(counts, self.kind))
