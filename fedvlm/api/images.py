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
from fedvlm.core.files import user_path
from fedvlm.core.pixels import decode, to_rgb
from fedvlm.core.transform import TransformSpec
from fedvlm.data.columns.find_images import DICOM, dicom_words
from fedvlm.data.formats.table_files import TABLES
from fedvlm.data.image_records import describe_failure
from fedvlm.data.images import normalise, resize_for_test
from fedvlm.data.locate import IMAGE_SUFFIXES
from fedvlm.data.memory.pictures import images_in_array, images_in_tensor

Images = Any  # what ``as_list`` takes
One = Image.Image | Path


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
    found = list(_each(images))
    if not found:
        raise DataError("no image was given")
    return [one for one, _ in found], [name for _, name in found]


def batches(
    images: Sequence[One], spec: TransformSpec, size: int, bad: dict[int, str] | None = None
) -> Iterator[Tensor]:
    """Yield float32 pixels ``[n, 3, S, S]``, transformed as for a test and normalised.

    Args:
        bad: takes place and reason of each file that cannot be read, which is then left out.

    Raises:
        DataError: a file that is not there or does not decode, without ``bad``.
    """
    for start in range(0, len(images), size):
        rows = []
        for place, image in enumerate(images[start : start + size], start):
            try:
                rows.append(normalise(resize_for_test(_opened(image), spec), spec))
            except DataError as error:
                if bad is None:
                    raise
                bad[place] = str(error)
        if rows:
            yield torch.stack(rows)


def _opened(image: One) -> Image.Image:
    if isinstance(image, Image.Image):
        return to_rgb(image)
    if image.suffix.lower() in TABLES:
        raise DataError(f"{image} is a table: fedvlm evaluate RUN --images {image} reads it, "
                        "predict takes the images or their folder")
    try:
        return decode(image.read_bytes())
    except Exception as error:  # Pillow raises many kinds on broken files
        if image.suffix.lower() in DICOM and image.is_file():
            raise DataError(dicom_words(str(image))) from error
        why = getattr(error, "strerror", None) or describe_failure(error)
        raise DataError(f"cannot read the image {image}: {why}") from error


def _each(images: Images) -> Iterator[tuple[One, str]]:
    if isinstance(images, Image.Image):
        yield images, ""
    elif isinstance(images, str | os.PathLike):
        yield from _files(user_path(images))
    elif isinstance(images, Tensor):
        yield from ((one, "") for one in images_in_tensor(images))
    elif isinstance(images, np.ndarray) and images.dtype != object:
        yield from ((one, "") for one in images_in_array(images))
    elif isinstance(images, Iterable) and not isinstance(images, bytes | dict):
        for one in images:
            yield from _each(one)
    else:
        raise DataError(
            f"a {type(images).__name__} is not an image: give a PIL image, a path, an array, a "
            "tensor, "
            "or a list of them"
        )


def _files(path: Path) -> Iterator[tuple[One, str]]:
    if not path.exists():
        raise DataError(f"no image '{path}'")
    if path.is_file():
        yield path, str(path)
        return
    found = sorted(p for p in path.rglob("*")
                   if p.suffix.lower() in IMAGE_SUFFIXES and not p.name.startswith("."))
    if not found:
        raise DataError(f"no images below '{path}'")
    yield from ((p, str(p)) for p in found)
