"""From the config to checked lists: what is missing is named, own classes are used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.datasets import DATASET_REGISTRY, load_dataset, load_for_training, templates
from fedvlm.data.datum import DatasetBase, Datum
from tests.data.miniatures.own import config, own_split, shared, write_split, write_tree
from tests.data.miniatures.published import tree_of


def folders(tmp_path: Path, **keys: object) -> DatasetBase:
    given = {"DATASET__DIR": "mine", "DATASET__FORMAT": "folders", **keys}
    return load_dataset(config(tmp_path, tmp_path / "cache", **given))


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
            "spilt.json .DATASET.SPLIT_FILE. is missing and none is made automatically; found "
            "there: images, "
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


def test_a_share_that_draws_no_test_images_is_said(tmp_path: Path) -> None:
    """Known sets, and lists that name their test images, have none drawn: not without a word."""
    cache, asked = tmp_path / "cache", {"DATASET__TEST_SHARE": 0.3}
    tree_of("EuroSAT", tmp_path)
    write_split(tmp_path / "mine", ["a", "b"], {"train": 1, "test": 1})
    for name, share, cfg in (
        ("EuroSAT", 1, config(tmp_path, cache, DATASET__NAME="EuroSAT", **asked)),
        ("EuroSAT", 0, config(tmp_path, cache, DATASET__NAME="EuroSAT")),
        ("MySet", 1, own_split(tmp_path, cache, **asked)),
        ("MySet", 0, own_split(tmp_path, cache)),
    ):
        said = [note for note in load_dataset(cfg).notes if "TEST_SHARE (--test-share)" in note]
        assert len(said) == share
        assert all(f"{name}: DATASET.TEST_SHARE (--test-share) draws no test" in n for n in said)


def test_what_leave_out_cannot_leave_out_is_said(tmp_path: Path) -> None:
    """A known set, and the images that a list names, are read whole: not without a word."""
    cache, out = tmp_path / "cache", {"DATASET__LEAVE_OUT": ("a",)}
    write_split(tmp_path / "mine", ["a", "b"], {"train": 1, "test": 1})
    write_split(tmp_path / "eurosat", ["a", "b"], {"train": 1, "test": 1})
    (tmp_path / "eurosat" / "split.json").rename(
        tmp_path / "eurosat" / "split_zhou_EuroSAT.json")
    (tmp_path / "eurosat" / "images").rename(tmp_path / "eurosat" / "2750")
    known = {"DATASET__NAME": "EuroSAT"}
    assert load_dataset(config(tmp_path, cache, **known)).num_classes == 2
    for cfg, says in (
        (config(tmp_path, cache, **known, **out), "LEAVE_OUT a: .*EuroSAT is read as the known"),
        (own_split(tmp_path, cache, **out), "LEAVE_OUT a: the list names images of that folder"),
        (own_split(tmp_path, cache, DATASET__LEAVE_OUT=("cat",)),
         "no such folder .*; of a table take the lines out"),
    ):
        with pytest.raises(ConfigError, match=says):
            load_dataset(cfg)


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


def test_most_classes_without_a_test_image_are_refused_for_training(tmp_path: Path) -> None:
    """Half of them may lack one; a set that is only looked at is read."""
    split = write_split(tmp_path / "mine", list("abcd"), {"train": 2, "test": 1})
    for bare, fine in (({0, 1}, True), ({0, 1, 2}, False)):
        left = split | {"test": [row for row in split["test"] if row[1] not in bare]}
        (tmp_path / "mine" / "split.json").write_text(json.dumps(left))
        cfg = own_split(tmp_path, tmp_path / "cache")
        assert load_dataset(cfg).num_classes == 4
        if fine:
            assert load_for_training(cfg).num_classes == 4
            continue
        with pytest.raises(DataError, match="3 of 4 trained classes have no test image .first: a"):
            load_for_training(cfg)
