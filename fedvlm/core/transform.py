"""What a backbone wants of its pixels: the one thing that ``models`` tells ``data``."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class TransformSpec:
    """What an image needs before the tower: plain values, from ``models`` to ``data``.

    ``size`` in pixels; ``mean``/``std`` per channel on [0, 1] images; ``interpolation`` and
    ``resize_mode`` in open_clip's words (``bicubic``; ``shortest``, ``longest``, ``squash``).
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bicubic"
    resize_mode: str = "shortest"

    @property
    def digest(self) -> str:
        """sha256 of all values."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
