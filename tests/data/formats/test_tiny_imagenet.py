"""Tiny-ImageNet as its archive unpacks: labels of the annotations, names of words.txt."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlm.core.errors import DataError
from fedvlm.data.formats.tiny_imagenet import read_tiny_imagenet
from fedvlm.data.layouts import TINY_IMAGENET
from tests.data.miniatures import shapes
from tests.data.miniatures.own import copy
from tests.data.miniatures.shapes import WNIDS


def test_labels_count_the_sorted_ids(tmp_path: Path) -> None:
    shapes.tiny_imagenet(tmp_path)
    assert TINY_IMAGENET.missing(tmp_path) == []
    data = read_tiny_imagenet(tmp_path, copy(tmp_path))
    data.check()
    assert data.classnames == [WNIDS[wnid] for wnid in sorted(WNIDS)]
    assert len(data.test) == 8 and not data.val
    assert not any("boxes" in d.key or d.key.startswith("test/") for d in data.all())


@pytest.mark.parametrize(
    ("line", "says"),
    [("val_0.png\tn09999999\t0", "line 1: 'n09999999' is no class of wnids.txt"),
     ("../x.png\tn01443537\t0", "line 1: .* without '..'"), ("val_0.png", "is no class")],
)
def test_bad_annotations(line: str, says: str, tmp_path: Path) -> None:
    shapes.tiny_imagenet(tmp_path)
    (tmp_path / "val" / "val_annotations.txt").write_text(line)
    with pytest.raises(DataError, match=says):
        read_tiny_imagenet(tmp_path, copy(tmp_path))


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    shapes.tiny_imagenet(tmp_path)
    (tmp_path / "words.txt").unlink()
    assert TINY_IMAGENET.missing(tmp_path) == ["words.txt"]
    with pytest.raises(DataError, match="Tiny-ImageNet is missing: .*words.txt does not exist"):
        read_tiny_imagenet(tmp_path, copy(tmp_path))
