"""Clients of made-up features: classes are Gaussian clouds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fedvlm.advise.gather import Gathered

WIDTH = 12


def made_up(
    classes: Sequence[Sequence[int]], images: int, *, spread: float = 1.5, seed: int = 0,
    noise: bool = False, times: int = 1, grouped: bool = False,
) -> Gathered:
    """Return clients that have ``images`` of their classes in turn.

    Args:
        noise: labels say nothing of the features.
        times: how often every image is there.
        grouped: copies of an image are one group; else each is its own.
    """
    draw = torch.Generator().manual_seed(seed)
    count = 1 + max(max(own) for own in classes)
    centres = torch.randn(count, WIDTH, generator=draw) * 1.5
    features, labels, groups, first = [], [], [], 0
    for own in classes:
        y = torch.tensor([own[i % len(own)] for i in range(images)])
        x = centres[y] * (0 if noise else 1) + spread * torch.randn(images, WIDTH, generator=draw)
        ids = torch.arange(first, first + images)
        first += images
        features.append(x.double().repeat_interleave(times, 0))
        labels.append(y.repeat_interleave(times))
        groups.append(ids.repeat_interleave(times).numpy())
    if times > 1 and not grouped:
        sizes = np.cumsum([0, *map(len, groups)])
        groups = [np.arange(a, b) for a, b in zip(sizes[:-1], sizes[1:], strict=True)]
    trains = [torch.ones(len(y), dtype=torch.bool) for y in labels]
    names = [f"class {c}" for c in range(count)]
    ids = [str(k) for k in range(len(classes))]
    return Gathered("made up", ids, names, features, labels, trains, groups, None, grouped, [])
