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
        features: ``[views, n, d]``; training uses view v, evaluation ``test`` (un-augmented).
        test: ``[n, d]``.
        labels: ``[n]`` int64.
    """

    features: Tensor
    test: Tensor
    labels: Tensor

    def fetch(self, indices: Tensor, view: int) -> dict[str, Tensor]:
        """Return ``{"features": [n, d]}``; view -1 is the un-augmented one."""
        table = self.test if view < 0 else self.features[view]
        return {"features": table[indices.to(table.device)]}


@dataclass(frozen=True)
class PixelSource:
    """Images decoded and transformed at every fetch.

    Attributes:
        load: ``(index, view) -> [3, H, W]``; view -1 is the un-augmented one.
        labels: ``[n]`` int64.
    """

    load: Callable[[int, int], Tensor]
    labels: Tensor

    def fetch(self, indices: Tensor, view: int) -> dict[str, Tensor]:
        """Return ``{"pixels": [n, 3, H, W]}``."""
        unique, where = torch.unique(indices.cpu(), return_inverse=True)
        images = torch.stack([self.load(int(i), view) for i in unique])
        return {"pixels": images[where]}
