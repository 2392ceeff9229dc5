"""Sample sources: cached features (the default) and pixels (the plain path)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FeatureSource:
    """Cached image features.

    Attributes:
        features: ``[views, m, d]``, the samples that are used.
        labels: ``[n]`` int64, all samples.
        rows: ``[n]`` int64, a sample's row in ``features`` (-1: not cached here).
    """

    features: Tensor
    labels: Tensor
    rows: Tensor

    @classmethod
    def of(cls, features: Tensor, indices: Tensor, labels: Tensor) -> FeatureSource:
        """Build from features ``[views, m, d]`` of the samples ``indices`` ``[m]``."""
        rows = torch.full((len(labels),), -1, dtype=torch.int64)
        rows[indices] = torch.arange(len(indices))
        return cls(features, labels, rows)

    def fetch(self, indices: Tensor, view: int) -> dict[str, Tensor]:
        """Return ``{"features": [len(indices), d]}``."""
        return {"features": self.features[view][self.rows[indices].to(self.features.device)]}


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
