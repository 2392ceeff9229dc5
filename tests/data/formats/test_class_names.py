"""Class names from files: every shape that people have them in, and what lacks a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.datasets import load_dataset
from fedvlm.data.formats.class_names import (
    folder_words,
    given_names,
    has_names,
    is_code,
    read_class_names,
    read_given,
    runs_together,
)
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


# ---- folders' names in words, and names that the user gives --------------------------------------
@pytest.mark.parametrize(("name", "words"), [
    ("AnnualCrop", "annual crop"), ("MRI_scan", "MRI scan"), ("MRIScan", "MRI scan"),
    ("HerbaceousVegetation", "herbaceous vegetation"), ("red_fox", "red fox"),
    ("SeaLake2", "sea lake2"), ("Forest", "Forest"), ("COVID-19", "COVID-19"), ("AMD", "AMD"),
    ("iPhone", "iPhone"), ("n01440764", "n01440764"), ("c_12", "c_12"), ("Größe", "Größe"),
    ("red fox", "red fox"), ("New York", "New York"), ("covidPositive", "covid positive"),
])
def test_a_folders_name_in_words(name: str, words: str) -> None:
    assert folder_words(name) == words


def test_only_names_that_run_together_call_for_words() -> None:
    assert runs_together(["red_fox", "AnnualCrop", "AMD", "n0144", "Forest"]) == ["AnnualCrop"]


PRESENT = ["AnnualCrop", "SeaLake", "AMD"]


@pytest.mark.parametrize(("text", "names"), [
    ("words", ["annual crop", "sea lake", "AMD"]),
    ("field, lake,eye", ["field", "lake", "eye"]),
    ("SeaLake=lake", ["AnnualCrop", "lake", "AMD"]),
    ("sea_lake=lake", ["AnnualCrop", "lake", "AMD"]),
    ('{"AMD": "eye, wet", "0": "field"}', ["field", "SeaLake", "eye, wet"]),
])
def test_given_names_by_order_folder_and_number(text: str, names: list[str]) -> None:
    assert given_names(text, PRESENT) == names


def test_a_number_is_a_label_and_no_other_spelling_of_a_folder() -> None:
    present = ["1_0", *(f"c{n}" for n in range(1, 11))]
    assert given_names("10=last", present) == [*present[:10], "last"]
    assert given_names("1_0=first", present) == given_names("0=first", present)
    with pytest.raises(ConfigError, match="there is no class '10'; did you mean '1_0'"):
        given_names("10=x", present[:2])


@pytest.mark.parametrize(("text", "says"), [
    ("a,b", "gives 2 names for 3 classes; give one for each, in this order: AnnualCrop, SeaLake"),
    ("SeaLak=lake", "there is no class 'SeaLak'; did you mean 'SeaLake'"),
    ("SeaLake =a,SeaLake=b", "names the class 'SeaLake' twice; keep one"),
    ("3=lake", "there is no class '3'"), ('{"a": ', "JSON class names are"),
])
def test_names_that_do_not_fit(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        given_names(text, PRESENT)


def test_words_that_make_two_classes_one_are_not_taken() -> None:
    assert given_names("words", ["RedFox", "red_fox", "SeaLake"]) == [
        "RedFox", "red_fox", "sea lake"]


def test_a_file_of_names_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "names.txt"
    file.write_text("field, annual\nlake\neye\n")
    assert given_names(read_given(str(file)), PRESENT) == ["field, annual", "lake", "eye"]
    file.write_text("field\nlake\n")
    with pytest.raises(ConfigError, match="gives 2 names for 3 classes"):
        given_names(read_given(str(file)), PRESENT)
    with pytest.raises(DataError, match=r"absent\.txt"):
        read_given(str(tmp_path / "absent.txt"))
