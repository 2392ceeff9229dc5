"""Class names from files: every shape that people have them in, and what lacks a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlm.core.errors import DataError
from fedvlm.data.datasets import load_dataset
from fedvlm.data.formats.class_names import has_names, is_code, read_class_names
from tests.data.miniatures.own import config, write_tree

NAMES = {"n01440764": "tench", "n01443537": "goldfish"}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("words.txt", "n01440764\ttench, Tinca tinca\nn01443537\tgoldfish, Carassius\n"),
        ("classnames.txt", "n01440764 tench\nn01443537 goldfish\n"),
        ("names.txt", "n01440764: tench\n\nn01443537: goldfish"),
        ("names.txt", "n01440764,tench\nn01443537,goldfish"),
        ("a.json", '{"n01440764": "tench", "n01443537": "goldfish"}'),
        ("index.json", '{"0": ["n01440764", "tench"], "1": ["n01443537", "goldfish"]}'),
    ],
)
def test_names_by_folder(file: str, text: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(text, encoding="utf-8")
    assert read_class_names(tmp_path / file) == NAMES
    assert read_class_names(tmp_path / file, ["n01443537"]) == {"n01443537": "goldfish"}
    assert has_names(tmp_path / file, ["n01440764"]) and not has_names(tmp_path / file, ["tench"])


@pytest.mark.parametrize(
    ("file", "text"),
    [("c.txt", "great white shark\ntench\n"), ("c.json", '["great white shark", "tench"]'),
     ("c.json", '{"great white shark": 0, "tench": 1}'), ("c.txt", "0 great white shark\n1 tench")],
)
def test_names_by_number(file: str, text: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(text)
    assert read_class_names(tmp_path / file) == {"0": "great white shark", "1": "tench"}


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [("a.txt", "", "is empty"), ("a.json", "3", "class names in JSON are"), ("a.json", "{}", "are"),
     ("a.json", '{"a": [1]}', "'a' has no class name"), ("a.json", "{", "not a JSON file"),
     ("a.json", '{"a": ""}', "'a' has no class name")],
)
def test_files_that_name_nothing(file: str, text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(text)
    with pytest.raises(DataError, match=says):
        read_class_names(tmp_path / file)
    assert not has_names(tmp_path / file, ["a"])


def test_a_missing_name_and_a_name_twice(tmp_path: Path) -> None:
    (tmp_path / "w.txt").write_text("n01\tcrane\nn02\tcrane\nn03\tdog\n")
    assert list(read_class_names(tmp_path / "w.txt").values()) == ["crane", "crane (2)", "dog"]
    with pytest.raises(DataError, match="no name for 1 of 2 classes .first: 'n04'; did you mean"):
        read_class_names(tmp_path / "w.txt", ["n01", "n04"])


def test_what_looks_like_a_code() -> None:
    assert all(map(is_code, ("n01440764", "0", "17", "c12", "class_3", "id-7")))
    assert not any(map(is_code, ("cat", "boeing_747", "top10", "a", "001.Albatross")))


def test_labels_that_are_numbers_get_their_names(tmp_path: Path) -> None:
    write_tree(tmp_path / "mine", [""], ["x"], 4)
    rows = [f"x/{n}.png,{n % 2},{'test' if n > 1 else 'train'}" for n in range(4)]
    (tmp_path / "mine" / "t.csv").write_text("\n".join(["path,label,split", *rows]))
    keys = {"DATASET__DIR": "mine", "DATASET__SPLIT_FILE": "t.csv"}
    (tmp_path / "mine" / "n.json").write_text('["zebra", "ape"]')
    cfg = config(tmp_path, tmp_path, **keys)
    cfg.DATASET.NAMES_FILE = "n.json"
    data = load_dataset(cfg)
    assert data.classnames == ["zebra", "ape"]  # by number, not by name
    assert {d.key: d.classname for d in data.train_x} == {"x/0.png": "zebra", "x/1.png": "ape"}
    (tmp_path / "mine" / "n.json").write_text('["zebra"]')
    with pytest.raises(DataError, match="label 1 has no name in DATASET.NAMES_FILE"):
        load_dataset(cfg)
