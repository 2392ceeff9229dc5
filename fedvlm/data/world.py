"""The procedural world: small coloured pictures with a known, exact description.

A scene is a row of attribute numbers (`NOUN, COLOUR, TEXTURE, GROUND, SIZE`); an image is a
silhouette filled with a textured colour on a coloured background, uint8 RGB [32, 32, 3].
All randomness comes from the generator that is passed in, so equal generators give equal pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedvlm.data.world_masks import DIGITS, LETTERS, NEW_NOUNS, SHAPES, SIDE, silhouette

WORLD_VERSION = 2

COLOURS = (
    "red", "green", "blue", "yellow", "orange", "purple", "pink", "cyan", "brown", "white",
)  # fmt: skip
GROUNDS = (*COLOURS, "black", "gray")
TEXTURES = ("plain", "striped", "dotted", "checkered")
SIZES = ("small", "large")
NOUNS = (*SHAPES, *DIGITS, *LETTERS, *NEW_NOUNS)
NOUN, COLOUR, TEXTURE, GROUND, SIZE = range(5)

Scenes = NDArray[np.int64]  # [N, 5]
Images = NDArray[np.uint8]  # [N, 32, 32, 3]
Masks = NDArray[np.uint8]  # [N, 32, 32]
Floats = NDArray[np.float32]

_RGB = (
    (215, 35, 35), (40, 160, 50), (40, 70, 215), (240, 220, 40), (245, 135, 20),
    (130, 40, 170), (250, 140, 190), (50, 205, 215), (120, 72, 30), (245, 245, 245),
    (15, 15, 15), (128, 128, 128),
)  # fmt: skip


def held_out(shape: int, colour: int) -> bool:
    """True for the fifth of (shape, colour) pairs that pretraining never shows."""
    return (3 * shape + 2 * colour) % 5 == 0


def _ground_odds() -> NDArray[np.float64]:
    """[colours, grounds] odds of a background: never close to the object's own colour."""
    rgb = np.array(_RGB, dtype=np.float64)
    far = np.linalg.norm(rgb[: len(COLOURS), None] - rgb[None], axis=2) > 110.0
    weight = np.where(np.arange(len(GROUNDS)) >= len(COLOURS) - 1, 3.0, 1.0)
    odds = far * weight
    return odds / odds.sum(axis=1, keepdims=True)


def scenes_of(
    nouns: Sequence[str], colours: Sequence[str | None], rng: np.random.Generator
) -> Scenes:
    """Scenes with the given nouns and colours (None = any); the rest is drawn."""
    count = len(nouns)
    rows = np.zeros((count, 5), dtype=np.int64)
    rows[:, NOUN] = [NOUNS.index(n) for n in nouns]
    drawn = rng.integers(len(COLOURS), size=count)
    rows[:, COLOUR] = [
        d if c is None else COLOURS.index(c) for c, d in zip(colours, drawn, strict=True)
    ]
    rows[:, TEXTURE] = rng.choice(len(TEXTURES), size=count, p=(0.46, 0.18, 0.18, 0.18))
    edges = np.cumsum(_ground_odds(), axis=1)[rows[:, COLOUR]]
    draws = rng.random(count)[:, None]
    rows[:, GROUND] = np.minimum((draws > edges).sum(axis=1), len(GROUNDS) - 1)
    rows[:, SIZE] = rng.random(count) < 0.65
    return rows


def draw_masks(scenes: Scenes, rng: np.random.Generator) -> Masks:
    """Silhouettes [N, 32, 32] of the scenes, one by one (about 0.2 ms each)."""
    masks = np.empty((len(scenes), SIDE, SIDE), dtype=np.uint8)
    for i, row in enumerate(scenes):
        low, high = ((0.48, 0.62), (0.7, 0.95))[int(row[SIZE])]
        masks[i] = silhouette(NOUNS[int(row[NOUN])], rng.uniform(low, high), rng)
    return masks


def _patterns(kinds: NDArray[np.int64], rng: np.random.Generator) -> Floats:
    """Texture maps [N, 32, 32] in {0, 1}: 1 keeps the colour, 0 takes the second tone."""
    count = len(kinds)
    axis = np.arange(SIDE, dtype=np.float32)
    angle = rng.uniform(0, np.pi, size=(count, 1, 1)).astype(np.float32)
    freq = (2 * np.pi / rng.uniform(5.0, 8.0, size=(count, 1, 1))).astype(np.float32)
    phase = rng.uniform(0, 2 * np.pi, size=(2, count, 1, 1)).astype(np.float32)
    along = np.cos(angle) * axis[None, None, :] + np.sin(angle) * axis[None, :, None]
    across = np.cos(angle) * axis[None, :, None] - np.sin(angle) * axis[None, None, :]
    u, v = np.sin(freq * along + phase[0]), np.sin(freq * across + phase[1])
    kind = kinds[:, None, None]
    keep = np.where(kind == 1, u > -0.1, np.where(kind == 2, u * v < 0.3, u * v > 0))
    return np.where(kind == 0, True, keep).astype(np.float32)


def _jittered(index: NDArray[np.int64], spread: float, rng: np.random.Generator) -> Floats:
    """RGB [N, 1, 1, 3] in 0..255 around the named colours."""
    base = np.array(_RGB, dtype=np.float32)[index]
    noise = rng.uniform(-spread, spread, size=base.shape).astype(np.float32)
    return np.clip(base + noise, 0, 255)[:, None, None, :]


def composite(masks: Masks, scenes: Scenes, rng: np.random.Generator) -> Images:
    """Paints silhouettes [N, 32, 32] into images [N, 32, 32, 3]; vectorised over N."""
    count = len(scenes)
    colour = _jittered(scenes[:, COLOUR], 16.0, rng)
    ground = _jittered(scenes[:, GROUND], 16.0, rng)
    # The second tone is a darker shade of the same colour, so that the colour word stays true.
    tone = colour * rng.uniform(0.35, 0.6, size=(count, 1, 1, 1)).astype(np.float32)
    pattern = _patterns(scenes[:, TEXTURE], rng)[..., None]
    paint = tone + (colour - tone) * pattern
    ramp = np.linspace(-1, 1, SIDE, dtype=np.float32)
    slope = rng.normal(0, 14, size=(2, count, 1, 1, 1)).astype(np.float32)
    ground = ground + slope[0] * ramp[None, :, None, None] + slope[1] * ramp[None, None, :, None]
    cover = masks.astype(np.float32)[..., None] / 255.0
    image = ground + (paint - ground) * cover
    grain = rng.uniform(0, 8, size=(count, 1, 1, 1)).astype(np.float32)
    image += grain * rng.standard_normal(image.shape, dtype=np.float32)
    light = rng.uniform(0.88, 1.08, size=(count, 1, 1, 1)).astype(np.float32)
    return np.clip(image * light, 0, 255).astype(np.uint8)


def render(scenes: Scenes, rng: np.random.Generator) -> Images:
    """Images [N, 32, 32, 3] of the scenes in the clean style."""
    return composite(draw_masks(scenes, rng), scenes, rng)
