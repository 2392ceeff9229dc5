"""Whatever people call an image comes to the same pixels, or is refused with a message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedvlm.api.images import as_list, batches
from fedvlm.core.errors import DataError
from fedvlm.core.transform import TransformSpec

ARRAY = np.random.default_rng(3).integers(0, 256, (30, 40, 3)).astype(np.uint8)
TENSOR = torch.from_numpy(ARRAY).permute(2, 0, 1)
SPEC = TransformSpec(size=32, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))


def pixels(images: Any) -> torch.Tensor:
    return torch.cat(list(batches(as_list(images)[0], SPEC, 2)))


@pytest.mark.parametrize("image", [
    ARRAY, ARRAY.astype(np.int64), ARRAY / 255, (ARRAY / 255).astype(np.float32), TENSOR,
    TENSOR.float() / 255, TENSOR[None], ARRAY[None], [ARRAY],
], ids=str)
def test_one_image_in_every_form(image: Any) -> None:
    assert torch.equal(pixels(image), pixels(Image.fromarray(ARRAY)))


def test_files_folders_and_lists_keep_their_order_and_names(tmp_path: Path) -> None:
    grey = np.full((20, 20), 90, np.uint8)
    (tmp_path / "sub").mkdir()
    Image.fromarray(ARRAY).save(tmp_path / "sub" / "b.png")
    Image.fromarray(grey).save(tmp_path / "a.PNG")
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "._a.PNG").write_bytes(b"what macOS leaves beside a file")
    found, names = as_list([ARRAY, tmp_path, str(tmp_path / "a.PNG")])
    assert names == ["", *(str(tmp_path / n) for n in ("a.PNG", "sub/b.png", "a.PNG"))]
    rows = torch.cat(list(batches(found, SPEC, 3)))
    assert torch.equal(rows[0], rows[2]) and torch.equal(rows[1], rows[3])
    assert torch.equal(rows[1], pixels(grey)[0]) and torch.equal(rows[1], pixels(grey / 255)[0])
    assert torch.equal(rows[1], pixels(torch.from_numpy(grey)[None])[0])


@pytest.mark.parametrize(("image", "sentence"), [
    ([], "no image was given"), (7, "a int is not an image"), (None, "a NoneType is no"),
    (b"bytes", "a bytes is not an image"), ("nowhere.png", "no image 'nowhere.png'"),
    (ARRAY.transpose(2, 0, 1), r"an image array is .*; this one is \[3, 30, 40\]"),
    (TENSOR.permute(1, 2, 0), r"an image tensor is .*; this one is \[30, 40, 3\]"),
    (ARRAY / 255 - 0.5, "from -0.5 to 0.5: give the image as it was before"),
    (np.full((4, 4), np.nan), "from nan to nan"), (ARRAY.astype(np.int64) * 2, "from 0 to 510"),
    (ARRAY > 3, "of bool holds no colours"),
])  # fmt: skip
def test_what_is_no_image_is_said(image: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        as_list(image)


def test_files_that_do_not_decode_are_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"nothing")
    with pytest.raises(DataError, match=f"cannot read the image {bad}"):
        pixels(bad)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no images below"):
        as_list(tmp_path / "empty")


def test_a_dicom_file_is_one_sentence_that_names_the_page(tmp_path: Path) -> None:
    scan = tmp_path / "scan.dcm"
    scan.write_bytes(bytes(128) + b"DICM")
    with pytest.raises(DataError, match=r"scan\.dcm is a DICOM file.*docs/own_data\.md"):
        next(batches(as_list(scan)[0], SPEC, 2))
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    with pytest.raises(DataError) as caught:
        next(batches(as_list(broken)[0], SPEC, 2))
    assert "BytesIO" not in str(caught.value)
