"""Rows of lists and tables: every column of a row reaches the lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlm.core.errors import DataError
from fedvlm.data.formats.rows import ImageRow, build_lists
from tests.data.miniatures.own import copy


def row(path: str, split: str, domain: str = "photo", **more: str) -> ImageRow:
    return ImageRow(path, path.split("/")[-2], None, domain, split, f"list:{path}", **more)


ROWS = [
    row("sketch/cat/2.png", "test", "sketch"), row("sketch/cat/1.png", "train", "sketch"),
    row("photo/dog/1.png", "train", client="north"), row("photo/cat/1.png", "test"),
]


def test_path_target_client_domain_and_split_reach_the_lists() -> None:
    info = copy(Path("/set"), domains=("photo", "sketch"))
    data = build_lists(ROWS, info)
    told = {p: [(d.impath, d.key, d.classname, d.label, d.domain, d.client)
                for d in data.parts[p]] for p in data.parts}
    assert told == {
        "train": [("/set/photo/dog/1.png", "photo/dog/1.png", "dog", 1, 0, "north"),
                  ("/set/sketch/cat/1.png", "sketch/cat/1.png", "cat", 0, 1, "")],
        "val": [],
        "test": [("/set/photo/cat/1.png", "photo/cat/1.png", "cat", 0, 0, ""),
                 ("/set/sketch/cat/2.png", "sketch/cat/2.png", "cat", 0, 1, "")],
    }
    assert data.domain_names == ["photo", "sketch"]


def test_a_domain_without_test_images_is_refused() -> None:
    with pytest.raises(DataError, match="leave domain 'sketch' without a test image"):
        build_lists(ROWS[1:], copy(Path("/set"), domains=("photo", "sketch")))
