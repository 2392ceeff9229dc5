"""FLOPs by formula, two per multiply-add; towers only.

A transformer layer costs 24 d^2 per token for its linear layers and 4 d per attended key. Adapters,
losses and optimisers are left out on both sides: below one per cent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

IMAGE_CHANNELS = 3


@dataclass(frozen=True)
class Towers:
    """Widths, depths and lengths of both towers; ``grid`` patches of ``patch`` pixels a side."""

    text_width: int
    text_layers: int
    context: int
    embed: int
    vision_width: int
    vision_layers: int
    grid: int
    patch: int


def layer(width: int, tokens: float, keys: float) -> float:
    """Return one layer's FLOPs for ``tokens`` rows that attend to ``keys`` keys each."""
    return tokens * (24 * width**2 + 4 * width * keys)


def image(t: Towers) -> float:
    """Return the forward FLOPs of one image."""
    tokens = t.grid**2 + 1
    patches = 2 * IMAGE_CHANNELS * t.patch**2 * t.vision_width * t.grid**2
    head = 2 * t.vision_width * t.embed
    return t.vision_layers * layer(t.vision_width, tokens, tokens) + patches + head


def full_text(t: Towers, classes: int) -> float:
    """Return the forward FLOPs of one full-length text pass over all classes."""
    return classes * t.text_layers * layer(t.text_width, t.context, t.context)


def packed_text(t: Towers, n_prefix: int, lengths: Sequence[int]) -> float:
    """Return the forward FLOPs of one packed prompt set.

    The prefix and each class's own tokens once; in the last layer keys and values of all rows,
    the rest for the rows that are read out only.
    """
    width, tokens = t.text_width, n_prefix + sum(lengths)
    keys = n_prefix**2 / 2 + sum(n * (n_prefix + n / 2) for n in lengths)
    inner = (t.text_layers - 1) * layer(width, tokens, keys / tokens)
    last = 4 * width**2 * tokens + 20 * width**2 * len(lengths)
    return inner + last + 2 * width * t.embed * len(lengths)


def reference_step(t: Towers, classes: int, batch: int) -> float:
    """Return one reference step: images, three text passes, two activation-only backwards."""
    return batch * image(t) + 5 * full_text(t, classes)


def fast_step(t: Towers, n_prefix: int, lengths: Sequence[int]) -> float:
    """Return one step of ours: two packed prompt sets, forward and activation-only backward."""
    return 4 * packed_text(t, n_prefix, lengths)
