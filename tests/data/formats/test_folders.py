"""Image trees: parts, domains, the project's own cut, and folders that are no classes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fedvlm.core.errors import DataError
from fedvlm.data.datasets import load_dataset
from fedvlm.data.datum import DatasetBase
from tests.data.miniatures.own import config, write_image, write_tree

CLASSES = ["Zebra", "ant", "čáp"]


def folders(tmp_path: Path, **keys: object) -> DatasetBase:
    given = {"DATASET__DIR": "mine", "DATASET__FORMAT": "folders", **keys}
    return load_dataset(config(tmp_path, tmp_path / "cache", **given))


def test_tree_with_parts(tmp_path: Path) -> None:
    write_tree(tmp_path / "mine", ["train", "valid", "test"], CLASSES, 3)
    data = folders(tmp_path)
    assert data.classnames == sorted(CLASSES)
    assert [len(data.parts[p]) for p in ("train", "val", "test")] == [9, 9, 9]
    assert data.test[0].key == "test/Zebra/0.png" and data.notes == []


def test_tree_without_parts_is_cut_and_says_so(tmp_path: Path) -> None:
    write_tree(tmp_path / "mine" / "images", [""], CLASSES, 10)
    data = folders(tmp_path, DATASET__IMAGE_DIR="images")
    assert [len(data.parts[p]) for p in ("train", "val", "test")] == [15, 6, 9]
    assert "not a published split" in data.notes[0]
    keys = [d.key for d in data.all()]
    assert len(set(keys)) == 30
    again = folders(tmp_path, DATASET__IMAGE_DIR="images", DATA_SEED=99)
    assert [d.key for d in again.all()] == keys  # no seed of the run moves the test set


@pytest.mark.parametrize(("n", "sizes"), [(1, [1, 0, 0]), (2, [1, 0, 1]), (3, [1, 1, 1])])
def test_tiny_classes_are_cut(tmp_path: Path, n: int, sizes: list[int]) -> None:
    write_tree(tmp_path / "mine", [""], ["one"], n)
    data = folders(tmp_path)
    assert [len(data.parts[p]) for p in ("train", "val", "test")] == sizes


@pytest.mark.parametrize("parts", [[""], ["train", "test"]])
def test_domain_tree(tmp_path: Path, parts: list[str]) -> None:
    groups = [f"{site}/{part}".strip("/") for site in ("north", "south") for part in parts]
    write_tree(tmp_path / "mine", groups, ["a", "b"], 10)
    extra = write_image(tmp_path / "mine" / groups[0] / "c" / "1.png", 1)
    write_image(extra.parent / "2.png", 2)
    data = folders(tmp_path, DATASET__FORMAT="domains")
    assert data.domain_names == ["north", "south"]
    assert data.classnames == ["a", "b", "c"]
    assert {d.domain for d in data.test if d.classname == "a"} == {0, 1}
    assert any("domain 'south' lacks 1 class(es): c" in note for note in data.notes)


def test_domains_of_both_kinds_are_refused(tmp_path: Path) -> None:
    write_tree(tmp_path / "mine", ["north/train", "north/test", "south"], ["a"], 2)
    with pytest.raises(DataError, match="'north' has train and test folders but others have none"):
        folders(tmp_path, DATASET__FORMAT="domains")


def test_a_class_that_is_a_link_to_nowhere_is_not_left_out_in_silence(tmp_path: Path) -> None:
    write_tree(tmp_path / "mine", ["train", "test"], ["a", "b"], 2)
    (tmp_path / "mine" / "train" / "read.me").symlink_to("/nowhere")  # names no class
    assert folders(tmp_path).classnames == ["a", "b"]
    (tmp_path / "mine" / "train" / "c").symlink_to("/nowhere")
    with pytest.raises(DataError, match=r"train/c is a link to /nowhere, which does not exist"):
        folders(tmp_path)


def test_link_loop_and_hidden_files(tmp_path: Path) -> None:
    write_tree(tmp_path / "mine", ["train", "test"], ["a"], 2)
    os.symlink(tmp_path / "mine", tmp_path / "mine" / "train" / "a" / "loop")
    (tmp_path / "mine" / "train" / "a" / ".x.png").write_bytes(b"")
    (tmp_path / "mine" / "train" / "a" / "notes.txt").write_text("x")
    assert len(folders(tmp_path).train_x) == 2


@pytest.mark.parametrize(
    ("make", "says"),
    [
        ("train/a/1.png", "but no 'test' folder"),
        ("test/a/1.png", "but no 'train' folder"),
        ("a/readme.txt", "holds no image"),
        ("1.png", "has no class folders .found: 1.png"),
    ],
)
def test_bad_trees(tmp_path: Path, make: str, says: str) -> None:
    write_image(tmp_path / "mine" / make, 0) if make.endswith("png") else None
    if make.endswith("txt"):
        (tmp_path / "mine" / "a").mkdir(parents=True)
        (tmp_path / "mine" / make).write_text("x")
    with pytest.raises(DataError, match=says):
        folders(tmp_path)


def plain_folders(root: Path) -> Any:
    return load_dataset(config(root, root / "cache", DATASET__DIR="mine"))


@pytest.mark.parametrize("part", ["", "train", "test"])
def test_domains_do_not_pass_for_classes(part: str, tmp_path: Path) -> None:
    write_tree(tmp_path / "mine" / part, ["photo", "sketch"], ["cat", "dog"], 4)
    for other in {"train", "test"} - {part} if part else ():
        write_tree(tmp_path / "mine" / other, [""], ["photo", "sketch"], 4)
    (tmp_path / "mine" / part / "photo" / "readme.txt").write_text("about")
    with pytest.raises(DataError, match=r"\(photo, sketch\).*\(cat, dog\), so they are dom"):
        plain_folders(tmp_path)


def test_folders_within_classes_are_still_read(tmp_path: Path) -> None:
    write_tree(tmp_path / "mine", ["cat", "dog"], ["images"], 10)  # as tiny-imagenet has them
    assert plain_folders(tmp_path).classnames == ["cat", "dog"]
    write_tree(tmp_path / "mine", ["cat"], ["more"], 10)
    assert len(plain_folders(tmp_path).all()) == 30
