"""Randomness is a function of (seed, purpose, round, client, ...), never a history.

No stream's state is ever stored: a resumed run asks for the same stream again.
The global generators of random, numpy and torch are never touched.
"""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def seed_of(seed: int, purpose: str, *keys: int | str) -> int:
    """Return a 63-bit seed that is a hash of all arguments."""
    text = repr((int(seed), purpose, *keys)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1


def stream(seed: int, purpose: str, *keys: int | str) -> torch.Generator:
    """Return a fresh CPU ``torch.Generator`` for (seed, purpose, keys...)."""
    import torch  # start-up: 2 s for what only reads or draws shots

    generator = torch.Generator(device="cpu")
    generator.manual_seed(seed_of(seed, purpose, *keys))
    return generator


def numpy_stream(seed: int, purpose: str, *keys: int | str) -> np.random.Generator:
    """Return a fresh ``numpy.random.Generator`` for (seed, purpose, keys...)."""
    return np.random.default_rng(seed_of(seed, purpose, *keys))


def python_stream(seed: int) -> random.Random:
    """Return ``random.Random(seed)``: CoOp's own few-shot stream, kept private (same picks)."""
    return random.Random(seed)  # noqa: S311 (not cryptography)
