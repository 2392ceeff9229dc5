"""The procedural world: small coloured pictures with a known, exact description.

A scene is a row of attribute numbers (``NOUN, COLOUR, TEXTURE, GROUND, SIZE``); an image is a
silhouette filled with a textured colour on a coloured background, uint8 RGB ``[32, 32, 3]``, in one
of five styles. All randomness comes from the generator that is passed in, so equal generators give
equal pixels.

A silhouette is a uint8 coverage map ``[32, 32]`` (0 is background), of polygons; it is drawn three
times larger and averaged down, which is the whole antialiasing. Digits and letters are nouns, too,
which pretraining draws (``scripts/tiny_glyphs.py``). A style is a systematic change that keeps the
content: it breaks zero-shot prediction but leaves the classes separable, which is what makes it a
task for adaptation; pretraining sees none but ``clean``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

WORLD_VERSION = 2  # of the pixels: sets on disk with another are rendered anew
SIDE = 32
OVER = 3
BIG = SIDE * OVER  # pixels that a silhouette is drawn with

SHAPES = (
    "circle", "square", "triangle", "star", "heart", "cross", "ring",
    "moon", "arrow", "diamond", "hexagon", "oval", "drop", "flower",
)  # fmt: skip
NEW_NOUNS = ("trapezoid", "house", "cloud", "tree", "fish", "bolt", "mushroom", "key")
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
COLOURS = (
    "red", "green", "blue", "yellow", "orange", "purple", "pink", "cyan", "brown", "white",
)  # fmt: skip
GROUNDS = (*COLOURS, "black", "gray")
TEXTURES = ("plain", "striped", "dotted", "checkered")
SIZES = ("small", "large")
NOUNS = (*SHAPES, *DIGITS, *LETTERS, *NEW_NOUNS)
NOUN, COLOUR, TEXTURE, GROUND, SIZE = range(5)

_Points = NDArray[np.float64]
Mask = NDArray[np.uint8]
# A polygon [K, 2] in [-1, 1]^2 (y downwards), and whether it adds to the shape or cuts from it.
Polygon = tuple[_Points, bool]
Scenes = NDArray[np.int64]  # [N, 5]
ImageArray = NDArray[np.uint8]  # [N, 32, 32, 3]
Masks = NDArray[np.uint8]  # [N, 32, 32]
Floats = NDArray[np.float32]

_RGB = (
    (215, 35, 35), (40, 160, 50), (40, 70, 215), (240, 220, 40), (245, 135, 20),
    (130, 40, 170), (250, 140, 190), (50, 205, 215), (120, 72, 30), (245, 245, 245),
    (15, 15, 15), (128, 128, 128),
)  # fmt: skip


def _ngon(count: int, radius: float = 1.0, turn: float = -np.pi / 2) -> _Points:
    angle = turn + 2 * np.pi * np.arange(count) / count
    return radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _disc(rx: float = 1.0, ry: float = 1.0, x: float = 0.0, y: float = 0.0) -> _Points:
    return _ngon(28) * np.array([rx, ry]) + np.array([x, y])


def _box(x0: float, y0: float, x1: float, y1: float) -> _Points:
    return np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]], dtype=np.float64)


def _poly(*xy: float) -> _Points:
    return np.array(xy, dtype=np.float64).reshape(-1, 2)


def _star() -> _Points:
    return _ngon(10) * np.where(np.arange(10) % 2 == 0, 1.05, 0.43)[:, None]


def _heart() -> _Points:
    t = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return np.stack([np.sin(t) ** 3, -(y + 2.5) / 15], axis=1)


def _flower() -> _Points:
    t = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    r = 0.72 + 0.33 * np.cos(5 * t + np.pi / 2)
    return np.stack([r * np.cos(t), r * np.sin(t)], axis=1)


def _drop() -> _Points:
    t = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    return np.stack([0.9 * np.sin(t) * np.sin(t / 2) ** 1.5, -np.cos(t)], axis=1)


def _cross() -> _Points:
    a, b = 0.32, 0.95
    return _poly(-a, -b, a, -b, a, -a, b, -a, b, a, a, a, a, b, -a, b, -a, a, -b, a, -b, -a, -a, -a)


_POLYGONS: dict[str, Callable[[], list[Polygon]]] = {
    "circle": lambda: [(_disc(), True)],
    "square": lambda: [(_box(-0.85, -0.85, 0.85, 0.85), True)],
    "triangle": lambda: [(_ngon(3, 1.1) + np.array([0, 0.2]), True)],
    "star": lambda: [(_star(), True)],
    "heart": lambda: [(_heart(), True)],
    "cross": lambda: [(_cross(), True)],
    "ring": lambda: [(_disc(), True), (_disc(0.58, 0.58), False)],
    "moon": lambda: [(_disc(), True), (_disc(0.88, 0.88, 0.52, -0.12), False)],
    "arrow": lambda: [
        (_poly(-1, -0.26, 0.1, -0.26, 0.1, -0.75, 1, 0, 0.1, 0.75, 0.1, 0.26, -1, 0.26), True)
    ],
    "diamond": lambda: [(_poly(0, -1.05, 0.68, 0, 0, 1.05, -0.68, 0), True)],
    "hexagon": lambda: [(_ngon(6, 1.0, 0.0), True)],
    "oval": lambda: [(_disc(1.05, 0.55), True)],
    "drop": lambda: [(_drop(), True)],
    "flower": lambda: [(_flower(), True), (_disc(0.2, 0.2), False)],
    "trapezoid": lambda: [(_poly(-0.5, -0.6, 0.5, -0.6, 1, 0.65, -1, 0.65), True)],
    "house": lambda: [
        (_poly(-1, -0.1, 0, -1, 1, -0.1), True),
        (_box(-0.72, -0.15, 0.72, 0.95), True),
        (_box(-0.2, 0.35, 0.2, 0.95), False),
    ],
    "cloud": lambda: [
        (_disc(0.45, 0.42, -0.55, 0.2), True),
        (_disc(0.55, 0.55, 0.0, -0.1), True),
        (_disc(0.42, 0.4, 0.58, 0.22), True),
        (_box(-0.6, 0.2, 0.6, 0.6), True),
    ],
    "tree": lambda: [
        (_poly(0, -1.05, 0.55, -0.3, -0.55, -0.3), True),
        (_poly(0, -0.7, 0.8, 0.45, -0.8, 0.45), True),
        (_box(-0.16, 0.4, 0.16, 1.0), True),
    ],
    "fish": lambda: [
        (_disc(0.72, 0.45, 0.25, 0.0), True),
        (_poly(-0.3, 0, -1, -0.55, -1, 0.55), True),
        (_disc(0.1, 0.1, 0.6, -0.12), False),
    ],
    "bolt": lambda: [
        (_poly(0.25, -1, -0.6, 0.15, -0.08, 0.15, -0.3, 1, 0.6, -0.25, 0.08, -0.25), True)
    ],
    "mushroom": lambda: [
        (_disc(0.95, 0.85, 0.0, -0.05), True),
        (_box(-1.2, 0.08, 1.2, 1.2), False),
        (_box(-0.26, 0.0, 0.26, 0.95), True),
    ],
    "key": lambda: [
        (_disc(0.45, 0.45, -0.55, 0.0), True),
        (_disc(0.2, 0.2, -0.55, 0.0), False),
        (_box(-0.15, -0.12, 1, 0.12), True),
        (_box(0.45, 0.1, 0.62, 0.45), True),
        (_box(0.8, 0.1, 0.97, 0.45), True),
    ],
}


def random_affine(rng: np.random.Generator, turn: float, stretch: float, shear: float) -> _Points:
    """Random 2x2 matrix: rotation up to `turn` degrees, aspect and shear jitter."""
    angle = np.deg2rad(rng.uniform(-turn, turn))
    cos, sin = np.cos(angle), np.sin(angle)
    aspect = np.exp(rng.uniform(-stretch, stretch) / 2)
    skew = np.array([[aspect, rng.uniform(-shear, shear)], [0.0, 1 / aspect]])
    return np.array([[cos, -sin], [sin, cos]]) @ skew


def shape_mask(name: str, scale: float, rng: np.random.Generator) -> Mask:
    """Draws one shape; `scale` is the object's half side as a share of the half image."""
    matrix = random_affine(rng, turn=13.0, stretch=0.2, shear=0.1) * scale
    mirror = -1.0 if rng.random() < 0.5 and name in ("arrow", "moon", "fish", "key") else 1.0
    room = max(0.0, 1.0 - scale)
    shift = rng.uniform(-room, room, size=2)
    canvas = Image.new("L", (BIG, BIG), 0)
    draw = ImageDraw.Draw(canvas)
    for points, adds in _POLYGONS[name]():
        moved = (points * np.array([mirror, 1.0])) @ matrix.T + shift
        pixels = (moved + 1.0) * (BIG / 2)
        draw.polygon([(float(x), float(y)) for x, y in pixels], fill=255 if adds else 0)
    return np.asarray(canvas.reduce(OVER), dtype=np.uint8)


def is_held_out(shape: int, colour: int) -> bool:
    """True for the fifth of (shape, colour) pairs that pretraining never shows."""
    return (3 * shape + 2 * colour) % 5 == 0


def seen_colours(shape: str) -> list[str]:
    """Colours in which pretraining shows this shape."""
    return [c for i, c in enumerate(COLOURS) if not is_held_out(SHAPES.index(shape), i)]


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
    draws_of_colour = rng.integers(len(COLOURS), size=count)
    rows[:, COLOUR] = [
        d if c is None else COLOURS.index(c) for c, d in zip(colours, draws_of_colour, strict=True)
    ]
    rows[:, TEXTURE] = rng.choice(len(TEXTURES), size=count, p=(0.46, 0.18, 0.18, 0.18))
    edges = np.cumsum(_ground_odds(), axis=1)[rows[:, COLOUR]]
    draws = rng.random(count)[:, None]
    rows[:, GROUND] = np.minimum((draws > edges).sum(axis=1), len(GROUNDS) - 1)
    rows[:, SIZE] = rng.random(count) < 0.65
    return rows


def object_scale(row: NDArray[np.int64], rng: np.random.Generator) -> float:
    """The object's half side of one scene, as a share of the half image."""
    low, high = ((0.48, 0.62), (0.7, 0.95))[int(row[SIZE])]
    return float(rng.uniform(low, high))


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


def composite(masks: Masks, scenes: Scenes, rng: np.random.Generator) -> ImageArray:
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


def render_scene(scenes: Scenes, rng: np.random.Generator) -> ImageArray:
    """Images [N, 32, 32, 3] of scenes of shapes in the clean style (about 0.2 ms each)."""
    masks = np.empty((len(scenes), SIDE, SIDE), dtype=np.uint8)
    for i, row in enumerate(scenes):
        masks[i] = shape_mask(NOUNS[int(row[NOUN])], object_scale(row, rng), rng)
    return composite(masks, scenes, rng)


def _blur(x: Floats) -> Floats:
    """Separable 1-2-1 blur over height and width of [N, H, W, C], edges repeated."""
    for axis in (1, 2):
        pad = [(0, 0)] * 4
        pad[axis] = (1, 1)
        y = np.pad(x, pad, mode="edge")
        n = x.shape[axis]
        left, mid, right = (np.take(y, range(k, k + n), axis=axis) for k in range(3))
        x = 0.25 * left + 0.5 * mid + 0.25 * right
    return x


def _photo(x: Floats, rng: np.random.Generator) -> Floats:
    """A poor photo at dusk: colours pulled towards blue, dark, blurred, noisy, dim corners."""
    cast = np.array([[0.305, 0.075, 0.03], [0.045, 0.35, 0.06], [0.03, 0.09, 0.38]])
    lift = np.array([8.0, 15.0, 40.0], dtype=np.float32)
    axis = np.linspace(-1, 1, x.shape[1], dtype=np.float32)
    corner = 1.0 - 0.3 * (axis[:, None] ** 2 + axis[None, :] ** 2) / 2
    y = _blur(_blur(_blur(x))) @ cast.T.astype(np.float32) * corner[None, :, :, None] + lift
    return y + 8.0 * rng.standard_normal(x.shape, dtype=np.float32)


def _sketch(x: Floats, rng: np.random.Generator) -> Floats:
    """Dark contour lines on paper: the size of the colour gradient, inverted."""
    y = _blur(x)
    dx = np.abs(np.diff(y, axis=2, append=y[:, :, -1:])).sum(axis=3)
    dy = np.abs(np.diff(y, axis=1, append=y[:, -1:])).sum(axis=3)
    line = np.clip((dx + dy) * 1.1 - 25.0, 0, 210)
    paper = np.array([238, 230, 212], dtype=np.float32)
    return paper - line[..., None] + 5.0 * rng.standard_normal(x.shape, dtype=np.float32)


def _pixel(x: Floats, rng: np.random.Generator) -> Floats:
    """Blocks of four pixels, channels rotated, few grey levels; `rng` is not needed."""
    n, h, w, c = x.shape
    blocks = x.reshape(n, h // 4, 4, w // 4, 4, c).mean(axis=(2, 4))
    coarse = np.round(blocks / 64.0) * 64.0
    return coarse.repeat(4, axis=1).repeat(4, axis=2)[..., [1, 2, 0]]


_STYLES: dict[str, Callable[[Floats, np.random.Generator], Floats]] = {
    "clean": lambda x, rng: x,
    "photo": _photo,
    "sketch": _sketch,
    "pixel": _pixel,
    "negative": lambda x, rng: 255.0 - x,
}
STYLES = tuple(_STYLES)


def stylise(images: ImageArray, style: str, rng: np.random.Generator) -> ImageArray:
    """Applies a style to uint8 images [N, 32, 32, 3]."""
    if style not in _STYLES:
        raise KeyError(f"no such style: {style}; there are {', '.join(STYLES)}")
    pixels = _STYLES[style](images.astype(np.float32), rng)
    return np.clip(pixels, 0, 255).astype(np.uint8)
