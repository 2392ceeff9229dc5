"""Image trees, missing folders, and the registry."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from data_helpers import config, own_split, shared, write_image, write_split, write_tree

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.datasets import DATASET_REGISTRY, load_dataset, templates
from fedvlm.data.datum import DatasetBase, Datum

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


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    write_split(tmp_path / "mine", ["a", "b"], {"train": 1, "test": 1})
    (tmp_path / "file").write_text("x")
    (tmp_path / "eurosat_old").mkdir()
    for cfg, says in (
        (config("", cache, DATASET__NAME="EuroSAT"), "DATASET.ROOT is empty"),
        (config(tmp_path / "no", cache, DATASET__NAME="EuroSAT"), "no does not exist; found"),
        (config(tmp_path / "file", cache, DATASET__NAME="EuroSAT"), "is a file"),
        (
            config(tmp_path, cache, DATASET__NAME="EuroSAT"),
            "eurosat does not exist; found in .*did you mean 'eurosat_old'.*; get it from http",
        ),
        (own_split(tmp_path, cache, DATASET__DIR="mien"), "did you mean 'mine'"),
        (own_split(tmp_path, cache, DATASET__IMAGE_DIR="imagse"), "did you mean 'images'"),
        (
            own_split(tmp_path, cache, DATASET__SPLIT_FILE="spilt.json"),
            "spilt.json .DATASET.SPLIT_FILE. is missing and none is invented; found there: images, "
            "split.json",
        ),
        (own_split(tmp_path, cache, DATASET__DIR="../mine"), "relative path without"),
        (own_split(tmp_path, cache, DATASET__DIR="file"), "is a file, not a folder"),
    ):
        with pytest.raises(DataError, match=says):
            load_dataset(cfg)


def test_unknown_name_and_format(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown DATASET.NAME 'Eurosta'; did you mean 'EuroSAT'"):
        load_dataset(config(tmp_path, tmp_path, DATASET__NAME="Eurosta"))
    with pytest.raises(ConfigError, match="did you mean 'folders'"):
        write_tree(tmp_path / "mine", ["train", "test"], ["a"], 1)
        folders(tmp_path, DATASET__FORMAT="folder")
    with pytest.raises(ConfigError, match="coop needs DATASET.SPLIT_FILE"):
        folders(tmp_path, DATASET__FORMAT="coop")


def test_known_set_as_folders_gets_clean_names(tmp_path: Path) -> None:
    tree = tmp_path / "caltech-101" / "101_ObjectCategories"
    write_tree(tree, [""], ["airplanes", "Faces", "BACKGROUND_Google", "crab"], 4)
    cfg = config(
        tmp_path, tmp_path / "cache", DATASET__NAME="caltech101", DATASET__FORMAT="folders"
    )
    data = load_dataset(cfg)
    assert sorted(data.classnames) == ["airplane", "crab", "face"]
    assert data.classnames == [data.lab2cname[i] for i in range(3)]


def test_registered_class_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Two(DatasetBase):
        def __init__(self, cfg: object) -> None:
            rows = [Datum("/x/a.png", 0, 0, "a", "a.png"), Datum("/x/b.png", 0, 0, "a", "b.png")]
            super().__init__(rows[:1], [], rows[1:], name="Two")

    monkeypatch.setattr(DATASET_REGISTRY, "_table", dict(DATASET_REGISTRY._table))
    DATASET_REGISTRY.register("TwoForThisTest")(Two)
    data = load_dataset(config(tmp_path, tmp_path, DATASET__NAME="two-for-this-test"))
    assert data.classnames == ["a"]


def test_templates(tmp_path: Path) -> None:
    cfg = config(tmp_path, tmp_path, DATASET__NAME="dtd")
    assert templates(cfg) == ["{} texture."]
    cfg.DATASET.TEMPLATE = "a picture of {}"
    assert templates(cfg) == ["a picture of {}"]
    cfg.DATASET.TEMPLATE = "a picture"
    with pytest.raises(ConfigError, match="must hold {} once"):
        templates(cfg)


@pytest.mark.parametrize(
    ("name", "folder", "sizes"),
    [
        ("Caltech101", "caltech-101", [4128, 1649, 2465]),
        ("EuroSAT", "eurosat", [1000, 400, 1000]),
        ("DescribableTextures", "dtd", [600, 240, 360]),
        ("Cifar10", "cifar-10", [5000, 0, 1000]),
        ("Cifar100", "cifar-100", [10000, 0, 2000]),
    ],
)
def test_real_sets(tmp_path: Path, name: str, folder: str, sizes: list[int]) -> None:
    root = shared(folder).parent
    data = load_dataset(config(root, tmp_path, DATASET__NAME=name))
    assert [len(data.parts[p]) for p in ("train", "val", "test")] == sizes
    assert all(Path(d.impath).is_file() for d in data.all()[::50])
    if name == "Cifar10":
        assert data.classnames[:3] == ["airplane", "automobile", "bird"]
    if name == "Cifar100":
        assert (data.classnames[0], data.classnames[99]) == ("apple", "worm")
