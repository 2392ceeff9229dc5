"""What ``bench fedtv`` measures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from fedvlm.bench.case import TINY
from fedvlm.errors import ConfigError

Record = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """What to measure; see ``bench.cli`` for the meaning of each.

    Raises:
        ConfigError: a number that is too small.
    """

    backbone: str = "ViT-B/16"
    classes: int = 50
    batch: int = 32
    repeats: int = 3
    threads: int = 1
    stack: int = 8
    clients: int = 10
    epochs: int = 2
    test_images: int = 100
    bf16: bool = False
    round: bool = False
    cold: bool = False
    profile: bool = False
    dtype: torch.dtype = field(default=torch.float32)

    def __post_init__(self) -> None:
        for name in ("classes", "batch", "repeats", "threads", "stack", "clients", "epochs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} {getattr(self, name)}: must be at least 1")

    @property
    def full_round(self) -> bool:
        """Whether a whole round is measured; the cold start is composed from it."""
        return self.round or self.cold


def tiny(o: Options) -> Options:
    """Return the same options on a random tiny CLIP with few classes: seconds, no verdict."""
    small = {"backbone": TINY, "classes": min(o.classes, 5), "batch": min(o.batch, 4)}
    return Options(**{**vars(o), **small, "stack": min(o.stack, 3), "clients": min(o.clients, 3),
                      "test_images": 6})
