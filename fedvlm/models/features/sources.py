"""Samples by index, whatever lies behind: cached streams, or pixels (the plain path)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedvlm.core.errors import FedvlmError


class SampleSource(Protocol):
    """Samples by index, whatever lies behind (cached features, pixels)."""

    @property
    def labels(self) -> Tensor:
        """Labels ``[n]``, int64."""
        ...

    def fetch(self, indices: Tensor, view: int) -> dict[str, Tensor]:
        """Return streams ``{name: [len(indices), ...]}`` of one augmented view (0: the first)."""
        ...


@dataclass(frozen=True)
class FeatureSource:
    """Cached image features, or activations inside the tower.

    Attributes:
        features: ``[m, ...]`` per view, the samples that are used.
        labels: ``[n]`` int64, all samples.
        rows: ``[n]`` int64, a sample's row in ``features`` (-1: not cached here).
        stream: what they are: ``features``, or ``tokens.<b>`` (entering block b).
    """

    features: Tensor | Sequence[Tensor]
    labels: Tensor
    rows: Tensor
    stream: str = "features"

    @classmethod
    def of(
        cls, features: Tensor | Sequence[Tensor], indices: Tensor, labels: Tensor,
        stream: str = "features",
    ) -> FeatureSource:
        """Build from ``[m, ...]`` per view of the samples ``indices`` ``[m]``."""
        rows = torch.full((len(labels),), -1, dtype=torch.int64)
        rows[indices] = torch.arange(len(indices))
        return cls(features, labels, rows, stream)

    def fetch(self, indices: Tensor, view: int) -> dict[str, Tensor]:
        """Return ``{stream: [len(indices), ...]}``.

        Raises:
            FedvlmError: a sample whose features are not here (row -1 would be another sample's).
        """
        rows = self.rows[indices]
        if bool((rows < 0).any()):
            raise FedvlmError(
                f"sample {int(indices[rows < 0][0])} has no cached features in this source: it "
                "holds the samples of its own splits only"
            )
        table = self.features[view]
        return {self.stream: table[rows.to(table.device)]}


@dataclass(frozen=True)
class PixelSource:
    """Images decoded and transformed at every fetch.

    Attributes:
        load: ``(index, view) -> [3, H, W]``.
        labels: ``[n]`` int64, all samples.
    """

    load: Callable[[int, int], Tensor]
    labels: Tensor

    def fetch(self, indices: Tensor, view: int) -> dict[str, Tensor]:
        """Return ``{"pixels": [len(indices), 3, H, W]}``; an image asked twice is decoded once."""
        unique, where = torch.unique(indices.cpu(), return_inverse=True)
        images = torch.stack([self.load(int(i), view) for i in unique])
        return {"pixels": images[where]}
