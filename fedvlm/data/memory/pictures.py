"""Images in memory (Pillow, arrays, tensors), to 8-bit RGB."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fedvlm.core.errors import DataError
from fedvlm.core.pixels import decode, to_rgb

_CHANNELS = (1, 3)


def rgb_of(value: Any) -> NDArray[np.uint8]:
    """Return one image as uint8 ``[H, W, 3]``.

    Args:
        value: a PIL image of any mode; an array ``[H, W]`` or ``[H, W, 3]``; a tensor ``[H, W]``
            or ``[3, H, W]``; or what Hugging Face calls an image that is not decoded, a mapping
            with ``bytes``. Whole numbers go from 0 to 255, others from 0 to 1.

    Raises:
        DataError: it is none of these.
        Exception: of many kinds, for encoded images that do not decode.
    """
    if isinstance(value, Image.Image):
        images = [to_rgb(value)]
    elif isinstance(value, Tensor):
        images = list(images_in_tensor(value))
    elif isinstance(value, np.ndarray) and value.dtype != object:
        images = list(images_in_array(value))
    elif isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes):
        images = [decode(value["bytes"])]
    else:
        raise DataError(
            f"a {type(value).__name__} is not an image: give a PIL image, an array [H, W, 3] or a "
            "tensor [3, H, W]"
        )
    if len(images) != 1:
        raise DataError(f"{len(images)} images in one: give them one by one")
    return np.asarray(images[0])


def images_in_tensor(values: Tensor) -> Iterator[Image.Image]:
    """Yield the images of ``[H, W]``, ``[c, H, W]`` or ``[n, c, H, W]``.

    Raises:
        DataError: another shape, or values that are no colours.
    """
    array = values.detach().cpu().numpy()
    if array.ndim in (3, 4):
        if array.shape[-3] not in _CHANNELS:
            raise _shape("tensor", array, "[3, H, W] or [n, 3, H, W]")
        array = np.moveaxis(array, -3, -1)
    yield from images_in_array(array, "tensor")


def images_in_array(values: np.ndarray, kind: str = "array") -> Iterator[Image.Image]:
    """Yield the images of ``[H, W]``, ``[H, W, c]`` or ``[n, H, W, c]``.

    Raises:
        DataError: another shape, or values that are no colours.
    """
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
