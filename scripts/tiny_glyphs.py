"""Digits and letters of the procedural world, in fonts: only pretraining shows them."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fedvlm.data.builtin.world import (
    BIG,
    DIGITS,
    LETTERS,
    NOUN,
    NOUNS,
    OVER,
    SIDE,
    ImageArray,
    Mask,
    Masks,
    Scenes,
    composite,
    object_scale,
    random_affine,
    shape_mask,
)

_GLYPH_SCALE = 0.78
_FONTS = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique",
    "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSansMono",
    "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique",
)  # fmt: skip


@lru_cache(maxsize=64)
def _font(name: str, size: int) -> ImageFont.FreeTypeFont:
    """A font of matplotlib's own folder, found without importing matplotlib."""
    spec = importlib.util.find_spec("matplotlib")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("matplotlib is needed for its fonts; pip install matplotlib")
    folder = Path(spec.submodule_search_locations[0]) / "mpl-data" / "fonts" / "ttf"
    return ImageFont.truetype(str(folder / f"{name}.ttf"), size)


def _bend(glyph: Image.Image, amount: float, rng: np.random.Generator) -> Image.Image:
    """Elastic warp: a 3x3 grid of control points, each moved by up to `amount` pixels."""
    side = glyph.size[0]
    stops = np.array([0, side // 2, side])
    grid = np.stack(np.meshgrid(stops, stops, indexing="xy"), axis=-1).astype(np.float64)
    grid += rng.uniform(-amount, amount, size=grid.shape)
    mesh = []
    for row in range(2):
        for col in range(2):
            box = (int(stops[col]), int(stops[row]), int(stops[col + 1]), int(stops[row + 1]))
            corners = grid[[row, row + 1, row + 1, row], [col, col, col + 1, col + 1]]
            mesh.append((box, tuple(float(v) for v in corners.reshape(-1))))
    return glyph.transform((side, side), Image.Transform.MESH, mesh, Image.Resampling.BILINEAR)


def glyph_mask(char: str, scale: float, rng: np.random.Generator) -> Mask:
    """Draws one digit or letter with a random font, weight, slant and a slight warp.

    Printed, whole and smaller than the picture, on purpose: stronger warps, coarse scans and
    full-height glyphs were tried and left handwritten digits (the transfer task) little to gain.
    """
    font = _font(_FONTS[int(rng.integers(len(_FONTS)))], 72)
    canvas = Image.new("L", (BIG, BIG), 0)
    stroke = int(rng.choice(5, p=(0.45, 0.2, 0.15, 0.1, 0.1)))
    left, top, right, bottom = font.getbbox(char, stroke_width=stroke)
    at = ((BIG - left - right) / 2, (BIG - top - bottom) / 2)
    ImageDraw.Draw(canvas).text(at, char, fill=255, font=font, stroke_width=stroke)
    canvas = _bend(canvas, 2.0, rng)
    zoom = (bottom - top) / (BIG * scale)
    matrix = random_affine(rng, turn=10.0, stretch=0.2, shear=0.1) * zoom
    room = max(0.0, 0.8 * (1.0 - scale)) * BIG / 2
    centre = np.array([BIG / 2, BIG / 2])
    offset = centre - matrix @ (centre + rng.uniform(-room, room, size=2))
    a, b, c, d = (float(v) for v in matrix.reshape(-1))
    data = (a, b, float(offset[0]), c, d, float(offset[1]))
    warped = canvas.transform(
        (BIG, BIG), Image.Transform.AFFINE, data, Image.Resampling.BILINEAR
    ).reduce(OVER)
    return np.asarray(warped, dtype=np.uint8)


def silhouette(noun: str, scale: float, rng: np.random.Generator) -> Mask:
    """Coverage map [32, 32] uint8 of any noun of the world."""
    if noun in DIGITS:
        return glyph_mask(str(DIGITS.index(noun)), _GLYPH_SCALE * scale, rng)
    if noun in LETTERS:
        char = noun.upper() if rng.random() < 0.7 else noun
        return glyph_mask(char, _GLYPH_SCALE * scale, rng)
    return shape_mask(noun, scale, rng)


def noun_masks(scenes: Scenes, rng: np.random.Generator) -> Masks:
    """Silhouettes [N, 32, 32] of the scenes, one by one (about 0.2 ms each)."""
    masks = np.empty((len(scenes), SIDE, SIDE), dtype=np.uint8)
    for i, row in enumerate(scenes):
        masks[i] = silhouette(NOUNS[int(row[NOUN])], object_scale(row, rng), rng)
    return masks


def render_nouns(scenes: Scenes, rng: np.random.Generator) -> ImageArray:
    """`world.render_scene` of any noun: images [N, 32, 32, 3] in the clean style."""
    return composite(noun_masks(scenes, rng), scenes, rng)
