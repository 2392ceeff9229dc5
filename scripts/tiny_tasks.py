"""The labelled tasks by which the tiny model is released, and checked again in the tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from tiny_glyphs import render_nouns

from fedvlm.data.builtin.sets import real_digits
from fedvlm.data.builtin.world import (
    COLOURS,
    DIGITS,
    NEW_NOUNS,
    SHAPES,
    STYLES,
    ImageArray,
    scenes_of,
    seen_colours,
    stylise,
)

OBJECT_TEMPLATE = "a photo of a {}."
DIGIT_TEMPLATE = "a photo of the digit {}."


@dataclass(frozen=True)
class ZeroShotTask:
    """Images uint8 [N, 32, 32, 3], labels [N] and the class names that zero-shot reads."""

    images: ImageArray
    labels: NDArray[np.int64]
    names: tuple[str, ...]
    template: str


def pair_classes(rest: int) -> list[tuple[str, str]]:
    """The 28 (colour, shape) pairs with hash `rest`; `rest` 0 are the held-out ones."""
    return [
        (colour, shape)
        for s, shape in enumerate(SHAPES)
        for c, colour in enumerate(COLOURS)
        if (3 * s + 2 * c) % 5 == rest
    ]


def _nouns(
    names: tuple[str, ...], style: str, per_class: int, rng: np.random.Generator
) -> ZeroShotTask:
    labels = np.repeat(np.arange(len(names)), per_class)
    nouns = [names[k] for k in labels]
    colours: list[str | None] = [None] * len(nouns)
    if names == SHAPES:
        colours = [str(rng.choice(seen_colours(n))) for n in nouns]
    images = render_nouns(scenes_of(nouns, colours, rng), rng)
    template = DIGIT_TEMPLATE if names == DIGITS else OBJECT_TEMPLATE
    return ZeroShotTask(stylise(images, style, rng), labels, names, template)


def _pairs(rest: int, per_class: int, rng: np.random.Generator) -> ZeroShotTask:
    pairs = pair_classes(rest)
    labels = np.repeat(np.arange(len(pairs)), per_class)
    scenes = scenes_of([pairs[k][1] for k in labels], [pairs[k][0] for k in labels], rng)
    names = tuple(f"{colour} {shape}" for colour, shape in pairs)
    return ZeroShotTask(render_nouns(scenes, rng), labels, names, OBJECT_TEMPLATE)


def _digits_real(per_class: int, rng: np.random.Generator) -> ZeroShotTask:
    """`per_class` real digits of each class, drawn without replacement (all, if fewer)."""
    images, labels = real_digits()
    picks = [rng.permutation(np.flatnonzero(labels == k))[:per_class] for k in range(10)]
    index = np.concatenate(picks)
    return ZeroShotTask(images[index], labels[index], DIGITS, DIGIT_TEMPLATE)


_BUILDERS: dict[str, Callable[[int, np.random.Generator], ZeroShotTask]] = {
    **{f"shape_{style}": partial(_nouns, SHAPES, style) for style in STYLES},
    "pairs_seen": partial(_pairs, 1), "pairs_held_out": partial(_pairs, 0),
    "digits_rendered": partial(_nouns, DIGITS, "clean"),
    "digits_real": _digits_real,
    "new_nouns": partial(_nouns, NEW_NOUNS, "clean"),
}
TASKS = tuple(_BUILDERS)


def build_task(name: str, per_class: int, seed: int) -> ZeroShotTask:
    """A task with `per_class` images of each class; equal arguments give equal pixels."""
    if name not in _BUILDERS:
        raise KeyError(f"no such task: {name}; there are {', '.join(TASKS)}")
    return _BUILDERS[name](per_class, np.random.default_rng([seed, TASKS.index(name)]))
