"""ImageNet and its four test sets: names, labels, and every way to be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.datasets import load_dataset
from fedvlm.data.datum import DatasetBase
from fedvlm.data.federated import build_federation
from fedvlm.data.formats.imagenet import read_classnames
from tests.data.miniatures.own import config
from tests.data.miniatures.published import WNIDS, tree_of, write_image

TEST_ONLY = ("ImageNetV2", "ImageNetSketch", "ImageNetA", "ImageNetR")


def load(root: Path, name: str, **keys: object) -> DatasetBase:
    return load_dataset(config(root, root / "cache", DATASET__NAME=name, **keys))


def test_the_validation_images_are_the_test_set(tmp_path: Path) -> None:
    tree_of("ImageNet", tmp_path)
    data = load(tmp_path, "ImageNet")
    assert data.val == [] and all(d.key.startswith("val/") for d in data.test)
    assert all(d.key.startswith("train/") for d in data.train_x)
    assert any("no validation split" in note for note in data.notes)


@pytest.mark.parametrize("name", TEST_ONLY)
def test_a_set_to_be_tested_on_is_read_and_not_trained_on(name: str, tmp_path: Path) -> None:
    tree_of(name, tmp_path)
    data = load(tmp_path, name)
    assert (data.train_x, data.val) == ([], []) and len(data.test) == 2 * len(data.classnames)
    cfg = config(tmp_path, tmp_path / "cache", DATASET__NAME=name)
    with pytest.raises(ConfigError, match=f"train on another set, .* and name {name} in TEST.TARG"):
        build_federation(cfg)


def test_classnames_may_lie_in_the_folder_of_imagenet(tmp_path: Path) -> None:
    tree_of("ImageNetA", tmp_path, without=("classnames",))
    with pytest.raises(DataError, match="put CoOp's list at .*imagenet-adversarial/classnames.txt"):
        load(tmp_path, "ImageNetA")
    tree_of("ImageNet", tmp_path)
    assert load(tmp_path, "ImageNetA").classnames == ["goldfish", "crane bird"]


def test_imagenetv2_counts_the_sorted_ids(tmp_path: Path) -> None:
    """Folder 10 comes after 2, and a list in another order names no class otherwise."""
    home = tree_of("ImageNetV2", tmp_path).folder
    lines = [f"n{i:08} name{i}\n" for i in range(12)]
    (home / "classnames.txt").write_text("".join(reversed(lines)), encoding="utf-8")
    for number in range(4, 12):
        write_image(home / "imagenetv2-matched-frequency-format-val" / str(number) / "0.jpeg")
    assert load(tmp_path, "ImageNetV2").classnames == [f"name{i}" for i in range(12)]
    (home / "classnames.txt").write_text("".join(lines[:11]), encoding="utf-8")
    with pytest.raises(DataError, match="11: classnames.txt has 11 classes, 0 to 10"):
        load(tmp_path, "ImageNetV2")


def test_a_name_that_is_there_twice_is_told_apart(tmp_path: Path) -> None:
    """The same one of the two gets the number in ImageNet and in a subset of its classes."""
    text = "".join(f"{wnid} {'crane' if 'crane' in name else name}\n" for wnid, name in WNIDS)
    for name, want in (
        ("ImageNet", ["tench", "goldfish", "crane", "crane (2)"]),
        ("ImageNetSketch", ["tench", "goldfish", "crane", "crane (2)"]),
        ("ImageNetA", ["goldfish", "crane"]),
    ):
        home = tree_of(name, tmp_path).folder
        (home / "classnames.txt").write_text(text, encoding="utf-8")
        data = load(tmp_path, name)
        assert data.classnames == want
        noted = f"{name}: names that classnames.txt has twice: crane (2)" in data.notes
        assert noted == (name != "ImageNetA")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tench n01440764\n", r"line 1: 'tench n01440764' is not '<WordNet id> <class name>'"),
        ("n01440764 tench\n\nn01443537\n", "line 3: 'n01443537' is not"),
        ("n01440764 tench\nn01440764 carp\n", "line 2: n01440764 is also called 'tench'"),
    ],
)
def test_bad_classnames(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "classnames.txt").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=says):
        read_classnames(tmp_path / "classnames.txt")
    (tmp_path / "classnames.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="not a text file in UTF-8"):
        read_classnames(tmp_path / "classnames.txt")


@pytest.mark.parametrize(
    ("image", "says"),
    [
        ("images/train/n09999999/1.JPEG", "n09999999 is no class of classnames.txt"),
        ("images/val/n01443538/1.JPEG", "is no class of classnames.txt; did you mean 'n01443537'"),
    ],
)
def test_unknown_classes_are_named(image: str, says: str, tmp_path: Path) -> None:
    write_image(tree_of("ImageNet", tmp_path).folder / image)
    with pytest.raises(DataError, match=says):
        load(tmp_path, "ImageNet")


def test_a_class_without_training_images_is_named(tmp_path: Path) -> None:
    home = tree_of("ImageNet", tmp_path).folder
    with (home / "classnames.txt").open("a", encoding="utf-8") as file:
        file.write("n09999999 new thing\n")
    write_image(home / "images" / "val" / "n09999999" / "1.JPEG")
    with pytest.raises(DataError, match="n09999999: this class has no training images"):
        load(tmp_path, "ImageNet")


def test_imagenet_is_trained_on_and_a_variant_tested_on(tmp_path: Path) -> None:
    """The main job on the miniatures: base run on ImageNet, transfer to ImageNet-A."""
    tree_of("ImageNet", tmp_path)
    tree_of("ImageNetA", tmp_path)
    out = tmp_path / "out"
    line = (
        f"run --root {tmp_path} --output-dir {out} --dataset imagenet --backbone tiny --shots 1 "
        "--rounds 1 --num-users 2 --trainer PromptFL TEST.TARGETS imagenet_a"
    )
    assert main(line.split()) == 0
    (results,) = out.rglob("results.json")
    text = results.read_text(encoding="utf-8")
    assert "target.ImageNetA" in text and "this copy has 4 classes, 16/0/8" in text
    assert main(line.replace("--dataset imagenet ", "--dataset imagenet_a ").split()[:-2]) == 2
