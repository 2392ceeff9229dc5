"""Images as people have them, to the pixels that a backbone wants."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedvlm.core.errors import DataError
from fedvlm.core.transform import TransformSpec
from fedvlm.data.formats.folders import SUFFIXES
from fedvlm.data.images import decode, normalised, resize_for_test, to_rgb

Images = Any  # what ``as_list`` takes
One = Image.Image | Path
_CHANNELS = (1, 3)


def as_list(images: Images) -> tuple[list[One], list[str]]:
    """Return images one by one, unread where they are files, and their names.

    Args:
        images: a PIL image; a path; a folder (every image below it, sorted); an array ``[H, W]``,
            ``[H, W, 3]`` or ``[n, H, W, 3]``; a tensor ``[H, W]``, ``[3, H, W]`` or
            ``[n, 3, H, W]``; or an iterable of these. Whole numbers go from 0 to 255, others from
            0 to 1.

    Returns:
        The images, and for each the path as given (below a folder: with it) or an empty string.

    Raises:
        DataError: no image, or something that is none.
    """
    found = [(one, name) for one, name in _each(images)]
    if not found:
        raise DataError("there is no image to look at")
    return [one for one, _ in found], [name for _, name in found]


def batches(images: Sequence[One], spec: TransformSpec, size: int) -> Iterator[Tensor]:
    """Yield float32 pixels ``[n, 3, S, S]``, transformed as for a test and normalised.

    Raises:
        DataError: a file that is not there or does not decode.
    """
    for start in range(0, len(images), size):
        part = images[start : start + size]
        yield torch.stack([normalised(resize_for_test(_opened(i), spec), spec) for i in part])


def _opened(image: One) -> Image.Image:
    if isinstance(image, Image.Image):
        return to_rgb(image)
    try:
        return decode(image.read_bytes())
    except Exception as error:  # Pillow raises many kinds on broken files
        why = getattr(error, "strerror", None) or " ".join(str(error).split()) or "no image"
        raise DataError(f"cannot read the image {image}: {why}") from error


def _each(images: Images) -> Iterator[tuple[One, str]]:
    if isinstance(images, Image.Image):
        yield images, ""
    elif isinstance(images, str | os.PathLike):
        yield from _files(Path(images).expanduser())
    elif isinstance(images, Tensor):
        values = images.detach().cpu().numpy()
        if values.ndim in (3, 4):
            if values.shape[-3] not in _CHANNELS:
                raise _shape("tensor", values, "[3, H, W] or [n, 3, H, W]")
            values = np.moveaxis(values, -3, -1)
        for one in _arrays(values, "tensor"):
            yield one, ""
    elif isinstance(images, np.ndarray) and images.dtype != object:
        for one in _arrays(images, "array"):
            yield one, ""
    elif isinstance(images, Iterable) and not isinstance(images, bytes | dict):
        for one in images:
            yield from _each(one)
    else:
        raise DataError(
            f"a {type(images).__name__} is no image: give a PIL image, a path, an array, a tensor, "
            "or a list of them"
        )


def _files(path: Path) -> Iterator[tuple[One, str]]:
    if not path.exists():
        raise DataError(f"there is no image '{path}'")
    if path.is_file():
        yield path, str(path)
        return
    found = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
    if not found:
        raise DataError(f"there is no image below '{path}'")
    yield from ((p, str(p)) for p in found)


def _arrays(values: np.ndarray, kind: str) -> Iterator[Image.Image]:
    """Yield the images of ``[H, W]``, ``[H, W, c]`` or ``[n, H, W, c]``."""
    given = values
    if values.ndim == 2:
        values = values[..., None]
    if values.ndim == 3:
        values = values[None]
    if values.ndim != 4 or values.shape[-1] not in _CHANNELS or 0 in values.shape[1:]:
        raise _shape(kind, given, "[H, W], [H, W, 3] or [n, H, W, 3]")
    if values.dtype == np.bool_ or values.dtype.kind not in "iuf":
        raise DataError(f"an image {kind} of {values.dtype} holds no colours")
    whole = values.dtype.kind in "iu"
    top = 255 if whole else 1
    if len(values) and not (values.min() >= 0 and values.max() <= top):
        raise DataError(
            f"an image {kind} of {values.dtype} goes from 0 to {top}, this one from "
            f"{values.min():.3g} to {values.max():.3g}: give the image as it was before it was "
            "normalised, since the model does that itself"
        )
    bytes_ = (values if whole else np.rint(values * 255)).astype(np.uint8)
    for one in bytes_.repeat(3, axis=-1) if bytes_.shape[-1] == 1 else bytes_:
        yield Image.fromarray(np.ascontiguousarray(one))


def _shape(kind: str, values: np.ndarray, wanted: str) -> DataError:
    return DataError(f"an image {kind} is {wanted}; this one is {list(values.shape)}")
