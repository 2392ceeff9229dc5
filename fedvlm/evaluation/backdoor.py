"""How often images with an attacker's trigger are taken for the attacker's class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedvlm.evaluation.scores import Batches
from fedvlm.federation.server import Row
from fedvlm.federation.trainer import Predictor
from fedvlm.models.features.sources import SampleSource

SUCCESS = "backdoor"  # of a client's row, and of a round: percent


@dataclass(frozen=True)
class Stamped:
    """A source of pixels with a trigger on each image.

    Attributes:
        source: of the images.
        stamp: puts the trigger on pixels ``[..., 3, H, W]``.
    """

    source: SampleSource
    stamp: Callable[[Tensor], Tensor]

    @property
    def labels(self) -> Tensor:
        """Labels ``[n]``, as they are."""
        return self.source.labels

    def fetch(self, indices: Tensor, view: int) -> dict[str, Tensor]:
        """Return the source's streams, pixels with the trigger."""
        found = dict(self.source.fetch(indices, view))
        return found | {"pixels": self.stamp(found["pixels"])}


@dataclass(frozen=True)
class Backdoor:
    """Measures the success of a trigger on clients' own test images of other classes.

    Attributes:
        batches: of images with the trigger.
        labels: of every sample, ``[n]``.
        target: the attacker's class.
    """

    batches: Batches
    labels: np.ndarray
    target: int

    def add(
        self, rows: Sequence[Row], tests: Sequence[np.ndarray], predict: Callable[[], Predictor]
    ) -> None:
        """Write ``backdoor`` (percent; None without such images) into the rows of a chunk.

        Args:
            tests: samples of each client, ``[n_k]``.
            predict: makes the predictor of the chunk's models.
        """
        others = [one[self.labels[one] != self.target] for one in tests]
        with torch.no_grad():
            found = self.batches.separate(predict(), others)
        for row, one in zip(rows, found, strict=True):
            hits = one.labels == self.target
            row[SUCCESS] = 100 * float(np.mean(hits)) if len(hits) else None
