"""Split files: order, domains, and every way to be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedvlm.core.errors import DataError
from fedvlm.data.datum import DatasetBase
from fedvlm.data.formats.coop import read_coop
from tests.data.miniatures.own import copy

ROW = ["cat/1.jpg", 0, "cat"]
OTHER = ["dog/1.jpg", 1, "dog"]


def read(tmp_path: Path, content: Any) -> DatasetBase:
    path = tmp_path / "split.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    split = read_coop(tmp_path, copy(tmp_path, path))
    return DatasetBase(split.train_x, split.val, split.test, name="MySet")


def split_of(train: list[Any], test: list[Any], **more: Any) -> dict[str, Any]:
    return {"train": train, "val": [], "test": test, **more}


TEST = [["cat/9.jpg", 0, "cat"], ["dog/9.jpg", 1, "dog"]]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "is not a JSON file"),
        ([1], "an object with lists under train, val and test"),
        ({"train": [ROW]}, "'test' must be a list"),
        ({"train": [ROW], "tset": TEST, "test": TEST}, "did you mean 'test'"),
        (split_of([], TEST), "'train' must be a list"),
        ({"train": [ROW], "val": "x", "test": TEST}, "'val' must be a list"),
        (split_of(["cat/1.jpg"], TEST), r"train\[0\]: a row is \[path, label, class name\]"),
        (split_of([ROW, ["a", 1]], TEST), r"train\[1\]: a row is"),
        (split_of([[1, 0, "cat"]], TEST), "the path must be a string"),
        (split_of([["a.jpg", "0", "cat"]], TEST), "the label must be a whole number from 0"),
        (split_of([["a.jpg", True, "cat"]], TEST), "the label must be a whole number from 0"),
        (split_of([["a.jpg", -1, "cat"]], TEST), "the label must be a whole number from 0"),
        (split_of([["a.jpg", 0, ""]], TEST), "the class name must be a string"),
        (split_of([["/etc/passwd", 0, "cat"]], TEST), "relative path without '..'"),
        (split_of([["../../x.jpg", 0, "cat"]], TEST), "relative path without '..'"),
        (split_of([["cat/../../x.jpg", 0, "cat"]], TEST), "relative path without '..'"),
        (split_of([["C:\\x.jpg", 0, "cat"]], TEST), "relative path without '..'"),
        (split_of([["..\\x.jpg", 0, "cat"]], TEST), "relative path without '..'"),
        (split_of([["a\0.jpg", 0, "cat"]], TEST), "null character"),
        (split_of([ROW], [["x.jpg", 2, "dog"]]), r"0..1 without gaps.*first missing: 1"),
        (split_of([["a", 1, "x"]], [["b", 2, "y"]]), "without gaps.*first missing: 0"),
        (split_of([ROW, ["b.jpg", 0, "dog"]], TEST), "label 0 is called both 'cat' and 'dog'"),
        (split_of([ROW, ["b.jpg", 1, "cat"]], [TEST[0]]), "labels 0 and 1 are both called 'cat'"),
        (split_of([ROW, OTHER], [*TEST, ROW]), "1 image.s. are in train and in test"),
        (split_of([ROW, OTHER], [*TEST, ["./cat//1.jpg", 0, "cat"]]), "in train and in test"),
        (split_of([ROW, OTHER], TEST, val=[ROW]), "are in train and in val"),
        (split_of([[*ROW, "site"], OTHER], TEST), "name it in all or none"),
        (split_of([[*ROW, ""]], TEST), "the domain must be a name"),
    ],
)
def test_bad_split_is_refused_in_one_sentence(tmp_path: Path, content: Any, says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        read(tmp_path, content)
    assert "\n" not in str(caught.value)


def test_order_and_domains_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    train = [["b.jpg", 1, "dog", "north"], ["a.jpg", 0, "cat", "south"]]
    path.write_text(json.dumps(split_of(train, [["c.jpg", 0, "cat", "north"]])), "utf-8-sig")
    split = read_coop(tmp_path, copy(tmp_path, path))
    rows = [(d.key, d.label, d.domain) for d in split.train_x]
    assert rows == [("b.jpg", 1, 0), ("a.jpg", 0, 1)]
    assert split.domain_names == ["north", "south"]
    assert split.test[0].domain == 0


ROWS = {"train": [["a.png", 0, "a"]], "val": [], "test": [["b.png", 0, "a"]]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"train": [["a", ' + "9" * 5000 + ', "x"]]}', "is not a JSON file"),
        ("[" * 100_000, "is not a JSON file"),
        ('{"train": NaN}', "'train' must be a list"),
        (json.dumps(ROWS | {"train": [["a.png", 10**7, "a"]]}), "a whole number from 0"),
        (json.dumps(ROWS | {"train": [["a.png", 1.0, "a"]]}), "a whole number from 0"),
        (json.dumps(ROWS | {"train": [["\\\\host\\x.png", 0, "a"]]}), "relative path"),
        (json.dumps(ROWS | {"train": [["d:x.png", 0, "a"]]}), "relative path"),
        (json.dumps(ROWS | {"train": [["x/..", 0, "a"]]}), "relative path"),
        (json.dumps(ROWS | {"test": [["b.png", 0, "a", "site"]]}), "name it in all or none"),
    ],
)
def test_odd_split_files_get_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "split.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=says) as caught:
        read_coop(tmp_path, copy(tmp_path, path))
    assert "split.json" in str(caught.value) and "\n" not in str(caught.value)


def test_faults_are_gathered_where_asked(tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    bad = [["../x.png", 0, "a"], ["c.png", "0", "a"]]
    path.write_text(json.dumps(ROWS | {"train": [*ROWS["train"], *bad]}), encoding="utf-8")
    faults: list[str] = []
    split = read_coop(tmp_path, copy(tmp_path, path, faults=faults))
    assert [d.key for d in split.train_x] == ["a.png"] and len(faults) == 2
    assert "train[1]" in faults[0] and "train[2]" in faults[1]
