"""Captions for pretraining: partial descriptions with exactly known truth.

A constraint is a row [6] over (noun, colour, texture, ground, size, kind), -1 = not said.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedvlm.data.builtin.world import (
    COLOUR,
    COLOURS,
    DIGITS,
    GROUND,
    GROUNDS,
    LETTERS,
    NOUN,
    NOUNS,
    SHAPES,
    SIZE,
    SIZES,
    TEXTURE,
)
from fedvlm.data.builtin.world import TEXTURES as TEXTURE_NAMES

KIND = 5
KINDS = ("shape", "digit", "letter")
TEMPLATES = (
    "a photo of {}.", "a photo of {}.", "a picture of {}.", "an image of {}.",
    "this is {}.", "a drawing of {}.", "{}.", "{}",
)  # fmt: skip
# How often a random caption says colour, texture, ground and size.
_SAID = np.array([0.75, 0.2, 0.15, 0.15])
Rows = NDArray[np.int64]


def kinds_of(nouns: Rows) -> Rows:
    """Kind of each noun number [N]: 0 shape, 1 digit, 2 letter."""
    first = len(SHAPES) + len(DIGITS)
    return np.where(nouns < len(SHAPES), 0, np.where(nouns < first, 1, 2))


def with_kind(scenes: Rows) -> Rows:
    """Scenes [N, 5] -> full attribute rows [N, 6]."""
    return np.concatenate([scenes, kinds_of(scenes[:, NOUN])[:, None]], axis=1)


def truth(attributes: Rows, constraints: Rows) -> NDArray[np.bool_]:
    """The exact matrix [images, captions]: True where everything the caption says holds."""
    said = constraints[None] >= 0
    return np.all(~said | (attributes[:, None] == constraints[None]), axis=2)


def noun_constraints(letters: Rows) -> Rows:
    """Bare-noun captions: every shape, every digit and the given letters."""
    nouns = np.concatenate([np.arange(len(SHAPES) + len(DIGITS)), letters])
    rows = np.full((len(nouns), 6), -1, dtype=np.int64)
    rows[:, NOUN] = nouns
    return rows


def colour_constraints() -> Rows:
    """One caption for each colour that says nothing else."""
    rows = np.full((len(COLOURS), 6), -1, dtype=np.int64)
    rows[:, COLOUR] = np.arange(len(COLOURS))
    return rows


def partial_constraints(attributes: Rows, rng: np.random.Generator) -> Rows:
    """Says a random part of what holds for each of the given images [N, 6]."""
    count = len(attributes)
    keep = np.zeros((count, 6), dtype=bool)
    keep[:, NOUN] = rng.random(count) < 0.85
    keep[:, [COLOUR, TEXTURE, GROUND, SIZE]] = rng.random((count, 4)) < _SAID
    keep[:, KIND] = ~keep[:, NOUN] & (rng.random(count) < 0.5)
    keep[:, COLOUR] |= ~keep.any(axis=1)
    return np.where(keep, attributes, -1)


def _noun_phrase(row: list[int], rng: np.random.Generator) -> tuple[str, str]:
    """(article, noun words) of a constraint row."""
    noun, kind = row[NOUN], row[KIND]
    if noun < 0:
        return "a", KINDS[kind] if kind >= 0 else ("object", "thing")[int(rng.integers(2))]
    name = NOUNS[noun]
    if name in SHAPES:
        return "a", name
    if name in LETTERS:
        return "the", f"letter {name}"
    numeral = str(DIGITS.index(name))
    word = name if rng.random() < 0.75 else numeral
    forms = (("the", f"digit {word}"), ("the", f"number {word}"), ("a", word))
    return forms[int(rng.choice(3, p=(0.6, 0.2, 0.2)))]


def sentence(row: list[int], rng: np.random.Generator) -> str:
    """One English sentence for a constraint row."""
    article, noun = _noun_phrase(row, rng)
    words = [
        names[row[column]]
        for column, names in ((SIZE, SIZES), (TEXTURE, TEXTURE_NAMES), (COLOUR, COLOURS))
        if row[column] >= 0
    ]
    phrase = " ".join([*words, noun])
    if rng.random() < 0.85:
        first = "an" if article == "a" and phrase[0] in "aeiou" else article
        phrase = f"{first} {phrase}"
    if row[GROUND] >= 0:
        phrase += f" on a {GROUNDS[row[GROUND]]} background"
    return TEMPLATES[int(rng.integers(len(TEMPLATES)))].format(phrase)
