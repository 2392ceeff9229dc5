"""One image in memory, in every form that people have it."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedvlm.core.errors import DataError
from fedvlm.data.memory.pictures import rgb_of
from tests.data.memory.toys import pixels

ARRAY = pixels(0, 1)


def encoded() -> bytes:
    file = io.BytesIO()
    Image.fromarray(ARRAY).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("value", [
    Image.fromarray(ARRAY), ARRAY, ARRAY.astype(np.int64), ARRAY / 255.0, ARRAY[None],
    torch.from_numpy(ARRAY).permute(2, 0, 1), torch.from_numpy(ARRAY / 255.0).permute(2, 0, 1),
    torch.from_numpy(ARRAY).permute(2, 0, 1).float() / 255, {"bytes": encoded(), "path": None},
], ids=["pillow", "uint8", "int64", "float64", "of one", "tensor", "float", "float32", "bytes"])
def test_every_form_gives_the_same_bytes(value: Any) -> None:
    assert np.array_equal(rgb_of(value), ARRAY)


def test_grey_becomes_three_channels() -> None:
    grey = ARRAY[..., 0]
    for value in (grey, torch.from_numpy(grey), torch.from_numpy(grey)[None],
                  Image.fromarray(grey)):
        assert np.array_equal(rgb_of(value), np.repeat(grey[..., None], 3, -1))


@pytest.mark.parametrize(("value", "sentence"), [
    ("cat.jpg", "a str is not an image: give a PIL image"),
    (None, "a NoneType is not an image"),
    ((torch.rand(3, 8, 8) - 0.5) * 4, "give the image as it was before it was normalised"),
    (torch.rand(8, 8, 3), "an image tensor is [3, H, W]"),
    (np.stack([ARRAY, ARRAY]), "2 images in one: give them one by one"),
])
def test_what_is_no_image_is_said(value: Any, sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        rgb_of(value)
    assert sentence in str(caught.value)
