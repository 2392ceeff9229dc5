"""A data set is checked: one place, one label, one name for each image and class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedvlm.core.errors import DataError
from fedvlm.data.datasets import load_dataset
from tests.data.miniatures.own import config

A, B, C = ["a.jpg", 0, "cat"], ["b.jpg", 1, "dog"], ["c.jpg", 0, "cat"]


def split(tmp_path: Path, **parts: list[list[Any]]) -> Any:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "s.json").write_text(json.dumps(parts))
    keys = {"DATASET__DIR": "mine", "DATASET__SPLIT_FILE": "s.json"}
    return load_dataset(config(tmp_path, tmp_path / "cache", **keys))


@pytest.mark.parametrize(("parts", "says"), [
    ({"train": [A, B, A], "test": [C]}, r"named twice or more in train \(first: a.jpg\)"),
    ({"train": [A, B, ["a.jpg", 1, "dog"]], "test": [C]}, "named twice or more in train"),
    ({"train": [A, B], "test": [C, ["./c.jpg", 1, "dog"]]}, "named twice or more in test"),
    ({"train": [A, B], "val": [C], "test": [C]}, r"in val and in test \(first: c.jpg\)"),
    ({"train": [A, B], "val": [B], "test": [C]}, "in train and in val"),
])  # fmt: skip
def test_an_image_has_one_place_and_one_label(
    parts: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=says):
        split(tmp_path, **parts)
