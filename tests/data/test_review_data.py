"""What a fresh reader found: images named twice, domains read as classes, folders closed to us."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_helpers import config, write_tree
from domain_trees import write_domain_set
from trees import tree_of

from fedvlm.cli.main import main
from fedvlm.core.errors import DataError
from fedvlm.data.datasets import load_dataset
from fedvlm.data.federated import build_federation, untrained_notes


def split(tmp_path: Path, **parts: list[list[Any]]) -> Any:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "s.json").write_text(json.dumps(parts))
    keys = {"DATASET__DIR": "mine", "DATASET__SPLIT_FILE": "s.json"}
    return load_dataset(config(tmp_path, tmp_path / "cache", **keys))


A, B, C = ["a.jpg", 0, "cat"], ["b.jpg", 1, "dog"], ["c.jpg", 0, "cat"]


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


def folders(root: Path) -> Any:
    return load_dataset(config(root, root / "cache", DATASET__DIR="mine"))


@pytest.mark.parametrize("part", ["", "train", "test"])
def test_domains_do_not_pass_for_classes(part: str, tmp_path: Path) -> None:
    write_tree(tmp_path / "mine" / part, ["photo", "sketch"], ["cat", "dog"], 4)
    for other in {"train", "test"} - {part} if part else ():
        write_tree(tmp_path / "mine" / other, [""], ["photo", "sketch"], 4)
    (tmp_path / "mine" / part / "photo" / "readme.txt").write_text("about")
    with pytest.raises(DataError, match=r"\(photo, sketch\).*\(cat, dog\), so they are dom"):
        folders(tmp_path)


def test_folders_within_classes_are_still_read(tmp_path: Path) -> None:
    write_tree(tmp_path / "mine", ["cat", "dog"], ["images"], 10)  # as tiny-imagenet has them
    assert folders(tmp_path).classnames == ["cat", "dog"]
    write_tree(tmp_path / "mine", ["cat"], ["more"], 10)
    assert len(folders(tmp_path).all()) == 30


def test_no_split_of_domains_is_prepared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(tmp_path / "mine", ["photo", "sketch"], ["cat", "dog"], 4)
    words = ["data", "prepare", "Mine", "--root", str(tmp_path), "--dir", "mine", "--into-dataset"]
    assert main(words) == 3
    assert "so they are domains and no classes" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.json"))


def test_a_closed_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``Path.is_dir`` raises there, and ``os.walk`` leaves it out; root is never refused."""
    write_tree(tmp_path / "mine", [""], ["cat", "dog"], 4)
    closed = tmp_path / "mine" / "dog"
    real = Path.stat

    def stat(path: Path, **more: Any) -> Any:
        if closed in (path, *path.parents):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", stat)
        with pytest.raises(DataError, match="cannot read .*mine/dog: Permission denied; you need"):
            folders(tmp_path)

    scandir = __import__("os").scandir

    def scan(path: Any) -> Any:
        if Path(path) == closed / "below":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    write_tree(closed, [""], ["below"], 1)
    monkeypatch.setattr("os.scandir", scan)
    with pytest.raises(DataError, match="cannot read the folder .*dog/below: Permission denied"):
        folders(tmp_path)


def test_the_way_to_a_split_is_one_that_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the folder that the run names; a set without a split file has none to make."""
    tree_of("EuroSAT", tmp_path, without=("split",))
    (tmp_path / "eurosat").rename(tmp_path / "EuroSat")
    keys = {"DATASET__NAME": "EuroSAT", "DATASET__DIR": "EuroSat"}
    with pytest.raises(DataError, match="EuroSat'. .DATASET.DIR says where it lies"):
        load_dataset(config(tmp_path, tmp_path / "cache", DATASET__NAME="EuroSAT"))
    cfg = config(tmp_path, tmp_path / "cache", **keys)
    with pytest.raises(DataError) as found:
        load_dataset(cfg)
    (way,) = [part for part in str(found.value).split("; ") if "data prepare" in part]
    words = way.partition("-m fedvlm ")[2].split()
    assert main([*words, "--cache-dir", str(tmp_path / "cache")]) == 0
    assert f"runs with CACHE_DIR {tmp_path / 'cache'} find it" in capsys.readouterr().out
    assert any("not the published split" in note for note in load_dataset(cfg).notes)
    write_domain_set("OfficeHome", "Dassl domain tree", tmp_path)
    (tmp_path / "office_home" / "art").rename(tmp_path / "office_home" / "Artt")
    with pytest.raises(DataError, match="office_home/art missing") as found:
        load_dataset(config(tmp_path, tmp_path / "cache", DATASET__NAME="OfficeHome"))
    assert "prepare" not in str(found.value)


def test_clients_tested_on_what_they_never_saw_are_counted(tmp_path: Path) -> None:
    """Two shots of a class for four clients: its many test images go to all of them."""
    labels = np.array([0, 1, 0, 0, 1])
    first, second = np.array([0]), np.array([1])
    (note,) = untrained_notes([(first, np.array([2, 4])), (second, np.array([3]))], labels)
    assert note.startswith("2 of the clients' 3 test images, at 2 of 2 clients, are of classes")
    assert untrained_notes([(first, np.array([2]))], labels) == []
    write_tree(tmp_path / "mine", [""], ["a", "b", "c", "d", "e"], 40)
    keys = {
        "DATASET__DIR": "mine", "DATASET__NUM_SHOTS": 2, "FED__CLIENTS": 4, "FED__BETA": 100.0,
        "FED__PARTITION": "dirichlet",
    }  # fmt: skip
    data = build_federation(config(tmp_path, tmp_path / "cache", **keys))
    off = sum(
        int(np.isin(data.labels[c.test], data.labels[c.train], invert=True).sum())
        for c in data.clients
    )
    assert off and any(n.startswith(f"{off} of the clients' 60 test") for n in data.notes)


def test_a_class_without_training_images_is_named(tmp_path: Path) -> None:
    rows = {
        part: [[f"{c}/{n}.png", label, c] for label, c in enumerate("ab") for n in numbers]
        for part, numbers in (("train", range(4)), ("test", range(4, 6)))
    }
    rows["train"] = [row for row in rows["train"] if row[2] == "a"]
    write_tree(tmp_path / "mine", [""], ["a", "b"], 6)
    (tmp_path / "mine" / "s.json").write_text(json.dumps(rows))
    keys = {"DATASET__DIR": "mine", "DATASET__SPLIT_FILE": "s.json"}
    with pytest.raises(DataError, match=r"hold no training image; without any: class\(es\) b;"):
        build_federation(config(tmp_path, tmp_path / "cache", **keys))
    data = build_federation(config(tmp_path, tmp_path / "cache", FED__PARTITION="iid", **keys))
    assert "1 class(es) have no training image: b" in data.notes
