"""Samples by index, whatever lies behind: cached streams, or pixels (the plain path)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.trees import to_device
from fedvlm.models.towers.vision import PATCHES
from fedvlm.models.vlmodel import VLModel, tower_of


class Table(Protocol):
    """Rows of samples: a tensor ``[m, ...]``, or what serves them from a file."""

    def __getitem__(self, rows: Tensor, /) -> Tensor:
        """Return the rows ``[...]`` (int64): ``[..., *]``."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def nbytes(self) -> int: ...

    def to(self, device: torch.device, /) -> Table:
        """Return all rows on a device."""
        ...


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
        features: ``[m, ...]`` per view, the samples that are used: a tensor, or a table each.
        labels: ``[n]`` int64, all samples.
        rows: ``[n]`` int64, a sample's row in ``features`` (-1: not cached here).
        stream: what they are: ``features``, ``patches``, or ``tokens.<b>`` (entering block b).
    """

    features: Tensor | Sequence[Table]
    labels: Tensor
    rows: Tensor
    stream: str = "features"

    @classmethod
    def of(
        cls, features: Tensor | Sequence[Table], indices: Tensor, labels: Tensor,
        stream: str = "features",
    ) -> FeatureSource:
        """Build from ``[m, ...]`` per view of the samples ``indices`` ``[m]``."""
        rows = torch.full((len(labels),), -1, dtype=torch.int64)
        rows[indices] = torch.arange(len(indices))
        return cls(features, labels, rows, stream)

    @property
    def streams(self) -> tuple[str, ...]:
        """What ``fetch`` returns."""
        return (self.stream,)

    def fetch(self, indices: Tensor, view: int) -> dict[str, Tensor]:
        """Return ``{stream: [len(indices), ...]}``.

        Raises:
            FedvlmError: as ``locate``.
        """
        return {self.stream: self.take(torch.from_numpy(self.locate(indices.cpu().numpy())), view)}

    def locate(self, indices: np.ndarray) -> np.ndarray:
        """Return the rows of samples, on the host.

        Raises:
            FedvlmError: a sample whose features are not here (row -1 would be another sample's).
        """
        rows: np.ndarray = self.rows.numpy()[indices]
        if (rows < 0).any():
            raise FedvlmError(
                f"sample {int(indices[rows < 0][0])} has no cached features in this source: it "
                "contains only the samples of its own splits"
            )
        return rows

    def take(self, rows: Tensor, view: int) -> Tensor:
        """Return the features of ``rows [...]``, as ``locate`` gave them: ``[..., *]``."""
        table = self.features[view]
        rows = to_device(rows, table.device)
        if isinstance(table, Tensor):  # half the time of table[rows], which any table has
            return table.index_select(0, rows.reshape(-1)).view(*rows.shape, *table.shape[1:])
        return table[rows]

    @property
    def device(self) -> torch.device:
        """Where the tables lie."""
        return self.features[0].device

    def on(self, device: torch.device) -> FeatureSource:
        """Return this source with its tables on ``device``, if they take at most a quarter of it.

        A batch is then a gather there, and nothing waits for a copy.
        """
        tables: list[Table] = list(self.features)
        size = sum(table.nbytes for table in tables)
        if device.type != "cuda" or size > torch.cuda.mem_get_info(device)[0] / 4:
            return self
        return replace(self, features=[table.to(device) for table in tables])


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

    def on(self, device: torch.device) -> PixelSource:
        """Return this source: there is nothing to keep anywhere."""
        return self

    @property
    def streams(self) -> tuple[str, ...]:
        """What ``fetch`` returns."""
        return ("pixels",)


@dataclass(frozen=True)
class JoinedSource:
    """Several streams of the same samples.

    Attributes:
        parts: sources of one stream each.
    """

    parts: tuple[FeatureSource | PixelSource, ...]

    @property
    def streams(self) -> tuple[str, ...]:
        """What ``fetch`` returns."""
        return tuple(name for part in self.parts for name in part.streams)

    @property
    def labels(self) -> Tensor:
        """Labels ``[n]``, int64."""
        return self.parts[0].labels

    def fetch(self, indices: Tensor, view: int) -> dict[str, Tensor]:
        """Return every stream: ``{name: [len(indices), ...]}``."""
        return {name: v for part in self.parts for name, v in part.fetch(indices, view).items()}

    def on(self, device: torch.device) -> JoinedSource:
        """Return this source with its tables on ``device``, each where it has room."""
        return JoinedSource(tuple(part.on(device) for part in self.parts))


StreamSource = FeatureSource | PixelSource | JoinedSource


def join_sources(parts: Sequence[FeatureSource | PixelSource]) -> StreamSource:
    """Return one source of all streams; a single one is as it was."""
    return parts[0] if len(parts) == 1 else JoinedSource(tuple(parts))


def check_streams(streams: Sequence[str], model: VLModel) -> None:
    """Refuse streams that nobody can serve.

    Raises:
        ConfigError: none at all, one twice, or another than ``features``, ``patches``,
            ``tokens.<block>``, ``stage.<s>`` and ``pixels``; or the image tower has none such.
    """
    known = r"features|patches|(tokens|stage)\.\d+|pixels"
    wrong = [s for s in streams if not re.fullmatch(known, s)]
    if wrong or not streams or len(set(streams)) < len(streams):
        raise ConfigError(
            "a method's streams must be one or more of features, patches, tokens.<block>, "
            f"stage.<s> and pixels, each once, not {tuple(streams)}"
        )
    for stream in streams:
        if stream not in ("features", "pixels"):
            try:
                tower_of(model, stream).shape(stream)
            except ConfigError as error:
                if stream != PATCHES:
                    raise
                why = f" ({error.__cause__})" if error.__cause__ else ""
                raise ConfigError(
                    f"the method needs patches of a ViT, and {model.backbone.name} has none{why}: "
                    "use --backbone ViT-B/16, or a method that reads whole images"
                ) from error
