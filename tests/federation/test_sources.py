"""Sources hand out the sample that was asked for."""

from __future__ import annotations

import torch

from fedvlm.federation.batches import FeatureSource, PixelSource


def test_feature_source_maps_samples_to_rows_and_views() -> None:
    labels = torch.arange(6)
    used = torch.tensor([4, 1, 3])
    table = torch.stack([used.float()[:, None] * 10 + v for v in range(2)])
    source = FeatureSource.of(table, used, labels)
    assert source.fetch(torch.tensor([3, 4, 3]), 1)["features"].flatten().tolist() == [31, 41, 31]


def test_pixel_source_decodes_each_image_once() -> None:
    seen: list[tuple[int, int]] = []

    def load(i: int, view: int) -> torch.Tensor:
        seen.append((i, view))
        return torch.full((3, 2, 2), float(i))

    out = PixelSource(load, torch.arange(9)).fetch(torch.tensor([5, 2, 5]), 7)["pixels"]
    assert out[:, 0, 0, 0].tolist() == [5, 2, 5]
    assert sorted(seen) == [(2, 7), (5, 7)]
