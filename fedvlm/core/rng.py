"""Randomness is a function of (seed, purpose, round, client, ...), never a history.

No stream's state is ever stored: a resumed run asks for the same stream again.
The global generators of random, numpy and torch are never touched, except by ``fork_generators``:
for code that is not ours, and put back behind it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def fork_generators(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global generators for code that asks no stream; they are put back at the end.

    A torch module draws its initial weights and its dropout from them, on the device it lies on.
    """
    import torch  # start-up: 1 s; what only draws shots need not load it

    chip = None if device.type == "cpu" else torch.get_device_module(device)
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    chip_kept = None if chip is None else chip.get_rng_state()
    try:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed other devices too
        if chip is not None:
            chip.manual_seed(seed)
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.set_rng_state(kept[2])
        if chip is not None:
            chip.set_rng_state(chip_kept)
