"""Five styles of the same world; all but `clean` are never seen in pretraining.

A style is a systematic change that keeps the content: it breaks zero-shot prediction but leaves
the classes separable, which is what makes it a task for adaptation.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.uint8]  # [N, 32, 32, 3]
Floats = NDArray[np.float32]


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


def _negative(x: Floats, rng: np.random.Generator) -> Floats:
    """The photographic negative; `rng` is not needed."""
    return 255.0 - x


_STYLES: dict[str, Callable[[Floats, np.random.Generator], Floats]] = {
    "clean": lambda x, rng: x,
    "photo": _photo,
    "sketch": _sketch,
    "pixel": _pixel,
    "negative": _negative,
}
STYLES = tuple(_STYLES)


def stylise(images: Images, style: str, rng: np.random.Generator) -> Images:
    """Applies a style to uint8 images [N, 32, 32, 3]."""
    if style not in _STYLES:
        raise KeyError(f"no such style: {style}; there are {', '.join(STYLES)}")
    changed = _STYLES[style](images.astype(np.float32), rng)
    return np.clip(changed, 0, 255).astype(np.uint8)
