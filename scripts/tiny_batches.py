"""Training batches: silhouettes drawn once, painted anew every time they are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tiny_captions as captions
import torch
from numpy.typing import NDArray
from tiny_gate import to_input
from tiny_glyphs import noun_masks
from torch import Tensor

from fedvlm.data.builtin.world import (
    COLOURS,
    DIGITS,
    LETTERS,
    NOUN,
    NOUNS,
    SHAPES,
    SIZE,
    TEXTURE,
    composite,
    is_held_out,
    scenes_of,
)

Rows = NDArray[np.int64]
# Share of shapes, digits and letters among the images, and bank entries for each (noun, size).
SHARES = (0.62, 0.27, 0.11)
BANK_SIZES = (1400, 4500, 700)
GROUPS = (SHAPES, DIGITS, LETTERS)
PREFIX_ODDS = 0.1
PREFIX_MAX = 24


@dataclass(frozen=True)
class Batch:
    """x [B, 3, 32, 32]; tokens [M, L]; true [B, M]; weight [M] of each caption."""

    x: Tensor
    tokens: Tensor
    true: Tensor
    weight: Tensor


class Sampler:
    """Draws batches; equal seeds give equal batches."""

    def __init__(self, seed: int, tokenizer: Any, share_of_bank: float = 1.0) -> None:
        self.rng = np.random.default_rng([seed, 1])
        self.tokenizer = tokenizer
        self.ids: dict[str, list[int]] = {}
        self._draw_bank(share_of_bank)

    def _draw_bank(self, share: float) -> None:
        """masks[kind]: uint8 [nouns, 2 sizes, K, 32, 32]."""
        self.bank: list[NDArray[np.uint8]] = []
        for names, entries in zip(GROUPS, BANK_SIZES, strict=True):
            count = max(8, int(entries * share))
            nouns = np.repeat([NOUNS.index(n) for n in names], 2 * count)
            rows = np.zeros((len(nouns), 5), dtype=np.int64)
            rows[:, NOUN] = nouns
            rows[:, SIZE] = np.tile(np.repeat([0, 1], count), len(names))
            masks = noun_masks(rows, self.rng)
            self.bank.append(masks.reshape(len(names), 2, count, 32, 32))

    def _scenes(self, count: int) -> Rows:
        """Scenes [N, 5] without held-out pairs; glyphs are mostly untextured."""
        rng = self.rng
        kind = rng.choice(3, size=count, p=SHARES)
        lengths = np.array([len(g) for g in GROUPS])
        starts = np.cumsum(lengths) - lengths
        nouns = starts[kind] + rng.integers(lengths[kind])
        colours = rng.integers(len(COLOURS), size=count)
        while True:
            bad = (kind == 0) & (held_out_array(nouns, colours))
            if not bad.any():
                break
            colours[bad] = rng.integers(len(COLOURS), size=int(bad.sum()))
        white = (kind > 0) & (rng.random(count) < 0.25)
        colours = np.where(white, COLOURS.index("white"), colours)
        rows = scenes_of([NOUNS[n] for n in nouns], [COLOURS[c] for c in colours], rng)
        rows[(kind > 0) & (rng.random(count) < 0.75), TEXTURE] = 0
        return rows

    def _masks(self, rows: Rows) -> NDArray[np.uint8]:
        """Silhouettes [N, 32, 32] from the bank."""
        kinds = captions.kinds_of(rows[:, NOUN])
        first = (0, len(SHAPES), len(SHAPES) + len(DIGITS))
        masks = np.empty((len(rows), 32, 32), dtype=np.uint8)
        for kind, bank in enumerate(self.bank):
            at = np.flatnonzero(kinds == kind)
            pick = self.rng.integers(bank.shape[2], size=len(at))
            masks[at] = bank[rows[at, NOUN] - first[kind], rows[at, SIZE], pick]
        return masks

    def _tokens(self, texts: list[str]) -> Tensor:
        """Ids [M, L], padded to the longest text; sometimes with a prefix of random tokens.

        The random prefix trains late positions and makes the tower tolerate learned contexts.
        """
        for text in texts:
            if text not in self.ids:
                row = self.tokenizer(text)[0].tolist()
                self.ids[text] = row[: row.index(self.tokenizer.eot_token_id) + 1]
        extra = 0
        if self.rng.random() < PREFIX_ODDS:
            extra = int(self.rng.integers(1, PREFIX_MAX))
        length = max(len(self.ids[t]) for t in texts) + extra
        tokens = torch.zeros(len(texts), length, dtype=torch.long)
        prefix = self.rng.integers(300, 4000, size=(len(texts), extra)).tolist()
        for i, text in enumerate(texts):
            ids = self.ids[text]
            row = [ids[0], *prefix[i], *ids[1:]]
            tokens[i, : len(row)] = torch.tensor(row)
        return tokens

    def batch(self, images: int, partial: int) -> Batch:
        """A batch with `partial` random captions beside the bare nouns and colours."""
        rows = self._scenes(images)
        pixels = composite(self._masks(rows), rows, self.rng)
        attributes = captions.with_kind(rows)
        letters = len(SHAPES) + len(DIGITS) + self.rng.permutation(len(LETTERS))[:10]
        nouns = captions.noun_constraints(letters)
        picks = attributes[self.rng.permutation(images)[:partial]]
        said = np.concatenate(
            [nouns, captions.colour_constraints(), captions.partial_constraints(picks, self.rng)]
        )
        texts = [captions.sentence(row, self.rng) for row in said.tolist()]
        weight = torch.ones(len(said))
        # The noun is the hard word: without this the model rests at naming colours only.
        weight[: len(nouns)] = 3.0
        true = torch.from_numpy(captions.truth(attributes, said))
        return Batch(to_input(pixels), self._tokens(texts), true, weight)


def held_out_array(nouns: Rows, colours: Rows) -> NDArray[np.bool_]:
    """`held_out` for arrays of shape numbers and colour numbers."""
    shapes, tones = range(len(SHAPES)), range(len(COLOURS))
    table = np.array([[is_held_out(s, c) for c in tones] for s in shapes])
    inside = np.minimum(nouns, len(SHAPES) - 1)
    return table[inside, colours] & (nouns < len(SHAPES))
