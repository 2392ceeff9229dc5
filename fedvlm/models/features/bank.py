"""Activations that enter a block of the image tower, or patch features: computed once and kept.

A bank is a feature store (``store``) whose rows are a whole stream of an image, ``n * width``
numbers, keyed by backbone, transform, numerics, batch, stream and type: shared by runs, seeds,
methods and the workers of a sweep. What fits is served from memory, more from the file. Rows are
computed in batches of a fixed size, as in ``encode``, so that a row's bits do not depend on what
else was missing. Where the store may only be read, what it lacks is computed for this run alone.

Processes that fill one bank at once begin at different batches and pass over those that another
has stored meanwhile: none waits, and one that is killed keeps nobody.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedvlm.core.errors import DataError
from fedvlm.core.progress import Progress
from fedvlm.models.features.decode import Load, Throughput, decode_ahead
from fedvlm.models.features.encode import _WHAT, batch_size, compute_padded
from fedvlm.models.features.rows import RowFile, as_tensor
from fedvlm.models.features.store import FeatureStore, store_path
from fedvlm.models.towers.vision import VisionTower

if TYPE_CHECKING:
    from fedvlm.models.stages import StagedTower

    Tower = VisionTower | StagedTower

IN_MEMORY = 2 << 30  # bytes; more is served from the file
FULL, LOW = "full", "bf16"  # types of what is kept: the features', or half of fp32
_AT_A_TIME = 256 << 20  # bytes of rows that are read together
_VIEW = 0  # the transform's text names the view


def row_bytes(tower: Tower, stream: str, kind: str = FULL) -> int:
    """Return the bytes of an image's row: ``tokens.<b>``, ``stage.<s>`` or ``patches``."""
    return math.prod(tower.shape(stream)) * kept_type(tower, kind).itemsize


def kept_type(tower: Tower, kind: str) -> torch.dtype:
    """Return the type of what is kept."""
    return torch.bfloat16 if kind == LOW else tower.backbone.feature_dtype


def has_room(folder: Path, wanted: int) -> bool:
    """Tell whether so many bytes fit in half of the free space below ``folder``."""
    return wanted <= shutil.disk_usage(folder).free // 2


@dataclass(frozen=True)
class StoredRows:
    """Rows of a bank by sample, read from its file (a ``sources.Table``).

    Attributes:
        file: of the bank; it stays open, and therefore on disk.
        places: of each sample's row, ``[m]``.
        shape: of a row.
    """

    file: RowFile
    places: Tensor
    shape: tuple[int, int]

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return the rows ``[...]``: ``[..., n, width]``.

        Raises:
            DataError: another program has cut the file.
        """
        values, inside = self.file.read(self.places[rows.reshape(-1)].numpy())
        if not inside.all():
            raise DataError(
                f"the activations in {self.file.path} no longer exist: another program truncated "
                "the file; run the same command again to recompute them"
            )
        return as_tensor(values, self.file.torch_dtype).view(*rows.shape, *self.shape)

    @property
    def device(self) -> torch.device:
        """The host."""
        return self.places.device

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return len(self.places) * self.file.row_bytes

    def to(self, device: torch.device) -> Tensor:
        """Return all rows on a device."""
        return self[torch.arange(len(self.places))].to(device)


def bank_path(
    tower: Tower, stream: str, transform: str, folder: Path, kind: str = FULL
) -> Path:
    """Return where the store of a bank lies (arguments as ``Bank``'s)."""
    backbone, dtype = tower.backbone, str(kept_type(tower, kind)).removeprefix("torch.")
    return store_path(folder, backbone.digest, transform, backbone.numerics, batch_size(backbone),
                      stream, dtype)


class Bank:
    """One stream of images under one transform.

    Args:
        tower: the frozen image tower.
        stream: ``tokens.<b>``, ``stage.<s>`` or ``patches``.
        transform: identifies everything between an image's bytes and its pixels, the view too.
        folder: of the stores.
        kind: ``full`` or ``bf16``.

    Attributes:
        keeps: whether what is computed goes into the store; what is there is served in any case.

    Raises:
        DataError: the store cannot be used.
    """

    def __init__(
        self, tower: Tower, stream: str, transform: str, folder: Path, kind: str = FULL
    ) -> None:
        self.tower, self.stream, self.dtype = tower, stream, kept_type(tower, kind)
        self.shape, self.size = tower.shape(stream), batch_size(tower.backbone)
        backbone, path = tower.backbone, bank_path(tower, stream, transform, folder, kind)
        self.store = FeatureStore(path, math.prod(self.shape), self.dtype, {
            "backbone": backbone.name, "weights": backbone.weights, "digest": backbone.digest,
            "transform": transform, "numerics": str(backbone.numerics), "batch": str(self.size),
            "stream": stream,
        })  # fmt: skip
        self.keeps = self.store.writable

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def bytes(self, images: int) -> int:
        """Return what so many images take."""
        return images * math.prod(self.shape) * self.dtype.itemsize

    def lacking(self, keys: Sequence[str]) -> int:
        """Return how many different images are not named in the store."""
        return len(set(keys)) - len(self.store.places(list(dict.fromkeys(keys)), _VIEW))

    def aside(self, keys: Sequence[str]) -> int:
        """Return what the rows of images take in a temporary file: where they cannot be kept."""
        size = self.bytes(len(set(keys)))
        return size if not self.keeps and size > IN_MEMORY and self.lacking(keys) else 0

    def table(
        self, keys: Sequence[str], load: Load, progress: Progress | None = None, *,
        workers: int = 0, spent: Throughput | None = None, notes: list[str] | None = None,
    ) -> Tensor | StoredRows:
        """Return the rows of images ``[m, n, width]``, what the store lacks computed and kept.

        Args:
            keys: content key of each image; equal keys are computed once.
            load: position in ``keys`` -> pixels ``[3, H, W]``; called from threads.
            progress: told how many images are computed, of those to compute.
            workers: decoding threads; 0 is by cores.
            spent: told where the time went.
            notes: told about damaged files, and where nothing can be kept.

        Raises:
            DataError: from ``load``, the store cannot be written, or no room for what it lacks.
        """
        spent = Throughput() if spent is None else spent
        names = list(dict.fromkeys(keys))
        out = self._room(len(names)) if self.bytes(len(names)) <= IN_MEMORY else None
        at = {name: i for i, name in enumerate(names)}
        with spent.clock("wall"), torch.no_grad():
            with spent.clock("looking_up"):
                missing = self._sound(names, out)
                if out is None and missing and not self.keeps:
                    out = self._room(len(names))
                    missing = self._sound(names, out)
            spent.hits += len(names) - len(missing)
            first: dict[str, int] = {}
            for i, key in enumerate(keys):
                first.setdefault(key, i)
            self._fill([first[n] for n in missing], keys, load, out, at, progress, workers, spent)
        if notes is not None:
            notes.extend(n for n in self.store.notes if n not in notes)
        rows = torch.tensor([at[key] for key in keys], dtype=torch.int64)
        if out is not None:
            self.close()
            return out if len(names) == len(keys) else out[rows]
        places = self.store.places(names, _VIEW)
        each = torch.tensor([places[name] for name in names], dtype=torch.int64)
        return StoredRows(self.store.detach(), each[rows], self.shape)

    def _room(self, images: int) -> Tensor:
        """Return room for ``[images, n, width]``, in memory or in a file that has no name.

        Raises:
            DataError: the disk has none.
        """
        shape = (images, *self.shape)
        if self.bytes(images) <= IN_MEMORY:
            return torch.empty(shape, dtype=self.dtype)
        place = tempfile.gettempdir()
        if not has_room(Path(place), self.bytes(images)):
            raise DataError(
                f"{self.bytes(images) / 1e9:.1f} GB of activations cannot be cached "
                f"in {self.store.path.parent} and do not fit into {place}: set TMPDIR to a "
                "larger disk, or CACHE_DIR to a writable folder"
            )
        with tempfile.NamedTemporaryFile(prefix="tokens-") as file:
            # The mapping keeps the file alive after its name is gone.
            return torch.from_file(
                file.name, shared=True, size=math.prod(shape), dtype=self.dtype
            ).view(shape)

    def _sound(self, names: Sequence[str], out: Tensor | None) -> list[str]:
        """Read rows, into ``out`` if there is one; return the names that have none.

        Every row's checksum is looked at.
        """
        step, missing = max(1, _AT_A_TIME // self.bytes(1)), []
        for start in range(0, len(names), step):
            part = names[start : start + step]
            there, values = self.store.find(part, _VIEW)
            missing += [name for name in part if name not in there]
            if out is not None and there:
                rows = [start + i for i, name in enumerate(part) if name in there]
                out[torch.tensor(rows)] = values.view(-1, *self.shape)
        return missing

    def _fill(
        self, missing: list[int], keys: Sequence[str], load: Load, out: Tensor | None,
        at: dict[str, int], progress: Progress | None, workers: int, spent: Throughput,
    ) -> None:
        """Compute the images at ``missing`` and keep them, unless others did meanwhile."""
        whole = len(missing) // self.size * self.size
        turn = os.getpid() * 0x9E3779B1 % max(1, whole // self.size) * self.size
        order = missing[turn:whole] + missing[:turn] + missing[whole:]  # others begin elsewhere
        done = 0
        for span, pixels in decode_ahead(order, load, self.size, spent, workers):
            names = [keys[i] for i in span]
            with spent.clock("looking_up"):
                there, values = self.store.find(names, _VIEW)
            if len(there) == len(names):
                values = values.view(-1, *self.shape)
                spent.hits += len(names)
            else:
                with spent.clock("encoding"):
                    values = compute_padded(
                        partial(self.tower.compute, stream=self.stream),
                        self.tower.backbone.feature_dtype, pixels, self.size,
                    )
                    values = values.to(self.dtype)
                if self.keeps or not self.store.writable:  # a read-only store says so itself
                    with spent.clock("storing"):
                        self.store.put_many(names, _VIEW, values.flatten(1))
                spent.encoded += len(names)
            if out is not None:
                out[torch.tensor([at[name] for name in names])] = values
            done += len(names)
            if progress is not None:
                progress(_WHAT, done, len(missing))
