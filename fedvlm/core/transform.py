"""What a backbone wants of its pixels: the one thing that ``models`` tells ``data``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field


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


@dataclass(frozen=True)
class TextSpec(TransformSpec):
    """What a text needs before a tower that reads samples which are texts: its token numbers.

    Attributes:
        size: how many tokens of a text are read, padding included.
        vocabulary: sha256 of the tokenizer.
        tokenize: text -> ``size`` numbers.
    """

    vocabulary: str = ""
    tokenize: Callable[[str], Sequence[int]] = field(default=lambda _: (), compare=False,
                                                     repr=False)

    @property
    def digest(self) -> str:
        """sha256 of length and tokenizer."""
        return hashlib.sha256(f"text {self.size} {self.vocabulary}".encode()).hexdigest()
