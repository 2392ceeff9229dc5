"""DICOM files beside the images of a class."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlm.core.errors import DataError
from fedvlm.data.formats.folders import read_folders
from tests.data.miniatures.own import copy


@pytest.mark.parametrize("name", ["scan.dcm", "SCAN.DICOM"])
def test_dicom_files_beside_images_are_not_passed_over(tmp_path: Path, name: str) -> None:
    for i in range(8):
        place = tmp_path / ("healthy", "ill")[i % 2]
        place.mkdir(exist_ok=True)
        (place / f"{i}.png").touch()
    assert len(read_folders(tmp_path, copy(tmp_path)).all()) == 8
    (tmp_path / "ill" / name).touch()
    with pytest.raises(DataError, match=f"ill/{name} is a DICOM file, which fedvlm does not read"):
        read_folders(tmp_path, copy(tmp_path))
