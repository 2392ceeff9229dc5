"""Activations that enter a block of the image tower, or patch features, computed once per run.

Kept in memory, or in an unnamed file mapped into memory where they are many; nothing outlives the
run. Batches have a fixed size, as in ``encode``, so that a resumed run sees the same bits.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from fedvlm.core.progress import Progress
from fedvlm.models.features.decode import Load, Throughput, decoded
from fedvlm.models.features.encode import _WHAT, batch_size
from fedvlm.models.towers.vision import VisionTower

IN_MEMORY = 2 << 30  # bytes; more lies in a file


def bank_bytes(tower: VisionTower, images: int, *streams: str) -> int:
    """Return how many bytes the ``streams`` of ``images`` images take."""
    size = tower.backbone.feature_dtype.itemsize
    return images * size * sum(math.prod(tower.shape(stream)) for stream in streams)


def has_room(tower: VisionTower, images: int, folder: Path, *streams: str) -> bool:
    """Tell whether they fit in memory, or in half of the free space below ``folder``."""
    wanted = bank_bytes(tower, images, *streams)
    folder.mkdir(parents=True, exist_ok=True)
    return wanted <= IN_MEMORY or wanted <= shutil.disk_usage(folder).free // 2


def empty_bank(tower: VisionTower, images: int, folder: Path, stream: str) -> Tensor:
    """Return room for ``[images, n, width]``, in memory or in a file that has no name."""
    shape, dtype = (images, *tower.shape(stream)), tower.backbone.feature_dtype
    if bank_bytes(tower, images, stream) <= IN_MEMORY:
        return torch.empty(shape, dtype=dtype)
    with tempfile.NamedTemporaryFile(dir=folder, prefix="tokens-") as file:
        count = shape[0] * shape[1] * shape[2]
        # The mapping keeps the file alive after its name is gone.
        return torch.from_file(file.name, shared=True, size=count, dtype=dtype).view(shape)


def fill_bank(
    tower: VisionTower, stream: str, out: Tensor, load: Load, progress: Progress | None = None,
    *, workers: int = 0, spent: Throughput | None = None,
) -> None:  # fmt: skip
    """Write a stream of every image to ``out [m, n, width]``.

    Args:
        tower: the frozen image tower.
        stream: ``tokens.<b>`` or ``patches``.
        out: see ``empty_bank``.
        load: position -> pixels ``[3, H, W]``; called from threads.
        progress: told how many images are done.
        workers: decoding threads; 0 is by cores.
        spent: told where the time went.
    """
    size, spent = batch_size(tower.backbone), spent or Throughput()
    with spent.clock("wall"), torch.no_grad():
        for span, pixels in decoded(range(len(out)), load, size, spent, workers):
            with spent.clock("encoding"):
                filler = pixels[:1].expand(size - len(pixels), -1, -1, -1)
                rows = tower.compute(torch.cat([pixels, filler]), stream)
                values = rows[: len(span)].to(out.device)
            with spent.clock("storing"):
                out[span[0] : span[0] + len(span)] = values
            spent.encoded += len(span)
            if progress is not None:
                progress(_WHAT, span[0] + len(span), len(out))
