"""Sets of labels in a table: the forms, the class by which images are dealt, and bad input."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fedvlm.core.errors import FedvlmError
from fedvlm.data.datum import NO_LABEL
from fedvlm.data.federated import number_sets
from fedvlm.data.own.add import OwnSet, understand
from fedvlm.data.targets import split_digest
from tests.data.columns.publishers import picture, written

SETS = [("a",), ("a", "b"), (), ("b", "c"), ("a", "c"), ("a",)] * 5  # c is the rarest


def read(folder: Path, **flags: str) -> OwnSet:
    given = {f"DATASET.{key}": value for key, value in flags.items()}
    return understand(folder / "t.csv", {"CACHE_DIR": str(folder / ".cache")} | given)


def table(folder: Path, header: str, cells: Sequence[Sequence[str]]) -> Path:
    for i in range(len(cells)):
        picture(folder / f"{i}.png", i)
    rows = [[f"{i}.png", *row] for i, row in enumerate(cells)]
    written(folder, "t.csv", f"file,{header}", rows)
    return folder


FORMS = {
    "bars": ("finding", [["|".join(s)] for s in SETS], "finding"),
    "semicolons": ("finding", [["; ".join(s)] for s in SETS], "finding"),
    "json": ("finding", [[json.dumps(list(s))] for s in SETS], "finding"),
    "columns": ("a,b,c", [[str(int(n in s)) for n in "abc"] for s in SETS], "a,b,c"),
    "floats": ("a,b,c", [[f"{n in s:.1f}" for n in "abc"] for s in SETS], "a,b,c"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_set(form: str, tmp_path: Path) -> None:
    header, cells, labels = FORMS[form]
    own = read(table(tmp_path, header, cells), LABELS=labels)
    data, by_key = own.data, {d.key: d for d in own.data.all()}
    assert data.label_names == ["a", "b", "c"]
    assert [by_key[f"{i}.png"].labels for i in range(6)] == [(0,), (0, 1), (), (1, 2), (0, 2), (0,)]
    # b and c are on ten images each: of equals the first
    assert [by_key[f"{i}.png"].label for i in range(6)] == [0, 1, 3, 1, 2, 0]
    assert data.classnames == ["a", "b", "c", NO_LABEL]
    assert "sets of 3 labels (a, b, c); 5 image(s) without any label" in "\n".join(own.notes)
    assert own.keys["DATASET.LABELS"] == labels and own.keys["FED.PARTITION"] == "iid"


def test_the_numbered_sets_say_each_image_s_labels(tmp_path: Path) -> None:
    header, cells, labels = FORMS["bars"]
    data = read(table(tmp_path, header, cells), LABELS=labels).data
    rows, sets = number_sets(data.train_x, 3)
    wanted = np.array([[i in (d.labels or ()) for i in range(3)] for d in data.train_x])
    assert (sets[rows] == wanted).all() and len(sets) == 5 and len(np.unique(sets, axis=0)) == 5


def test_another_label_is_another_set_of_data(tmp_path: Path) -> None:
    header, cells, labels = FORMS["columns"]
    before = split_digest(read(table(tmp_path, header, cells), LABELS=labels).data)
    changed = [["1", "0", "1"] if row == ["1", "1", "0"] else row for row in cells]
    assert split_digest(read(table(tmp_path, header, changed), LABELS=labels).data) != before


def test_names_for_the_prompts(tmp_path: Path) -> None:
    header, cells, labels = FORMS["columns"]
    own = read(table(tmp_path, header, cells), LABELS=labels, CLASSNAMES="c=pleural effusion")
    assert own.data.label_names == ["a", "b", "pleural effusion"]


@pytest.mark.parametrize("form", ["bars", "columns"])
def test_labels_are_words_and_answer_to_their_columns(form: str, tmp_path: Path) -> None:
    """A cell's spelling and a column's become the same words, as folders' names do."""
    spelt = {"a": "has_tumor", "b": "Pleural_Effusion", "c": "AirSpace"}
    header, cells, labels = FORMS[form]
    for old, new in reversed(spelt.items()):
        header, labels = (re.sub(rf"\b{old}\b", new, text) for text in (header, labels))
        cells = [[re.sub(rf"\b{old}\b", new, cell) for cell in row] for row in cells]
    folder, words = table(tmp_path, header, cells), {"air space", "has tumor", "Pleural Effusion"}
    own = read(folder, LABELS=labels)
    assert set(own.data.label_names) == words and own.keys["DATASET.CLASSNAMES"] == "words"
    assert any("in words for the prompts" in note for note in own.notes)
    own = read(folder, LABELS=labels, CLASSNAMES="has_tumor=mass,Pleural_Effusion=fluid")
    assert {"mass", "fluid"} < set(own.data.label_names)
    if form == "bars":  # without any in capitals
        cells = [[cell.replace("AirSpace", "air")] for [cell] in cells]
        own = read(table(tmp_path, header, cells), LABELS=labels)
        assert own.data.label_names == ["Pleural Effusion", "air", "has tumor"]


def test_columns_may_be_named_in_other_spelling(tmp_path: Path) -> None:
    _, cells, _ = FORMS["columns"]
    data = read(table(tmp_path, "a,b,Big_c", cells), LABELS="A,b,big c").data
    by_key = {d.key: d for d in data.all()}
    assert data.label_names == ["A", "b", "big c"]
    assert [by_key[f"{i}.png"].labels for i in range(4)] == [(0,), (0, 1), (), (1, 2)]


def test_a_class_beside_sets_is_refused(tmp_path: Path) -> None:
    _, cells, _ = FORMS["columns"]
    with pytest.raises(FedvlmError, match="--labels a,b gives .* --columns classname=c one class"):
        read(table(tmp_path, "a,b,c", cells), LABELS="a,b", COLUMNS="classname=c")


@pytest.mark.parametrize(("header", "cells", "labels", "says"), [
    ("a,b,c", FORMS["columns"][1], "", r"a, b, c hold 0 and 1: --labels a,b,c reads such columns"),
    ("finding", FORMS["bars"][1], "", r"line 3: the class 'a\|b' is a set of labels: --labels"),
    ("a,b,c", FORMS["columns"][1], "a,d", r"--labels d: .* has no column 'd'"),
    ("a,b,c", FORMS["columns"][1], "a", r"--labels a: one column of 0 and 1 is no set"),
    ("a,b", [["0", "1"], ["1", "-1"]] * 9, "a,b", r"line 3: the cell 'b' is '-1'.*holds 0 and 1"),
    ("a,b", [["0", "1"], ["1", ""]] * 9, "a,b", r"line 3: the cell 'b' is ''.*holds 0 and 1"),
    ("a,b", [["0", "1"], ["0", "0"]] * 9, "a,b", r"the label 'a' is on none of the \d+ training"),
    ("a,b", [["1", "1"], ["1", "0"]] * 9, "a,b", r"the label 'a' is on all of the \d+ training"),
    ("finding", [[""]] * 6, "finding", r"--labels finding: no image has a label"),
    ("finding", [["a"], [""]] * 6, "finding", r"there is one label only, a"),
    ("finding", [["a|b"], ["b;c"]] * 6, "finding", r"line 3: .* separates labels by \| and by ;"),
    ("finding", [["a|"], ["b"]] * 6, "finding", r"line 2: the cell 'finding' lists an empty label"),
    ("finding", [["[1"], ["b"]] * 6, "finding", r"line 2: the cell 'finding' is no JSON list"),
])  # fmt: skip
def test_bad_input_is_one_sentence(
    header: str, cells: Sequence[Sequence[str]], labels: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(FedvlmError, match=says) as caught:
        read(table(tmp_path, header, cells), **({"LABELS": labels} if labels else {}))
    assert "\n" not in str(caught.value) and caught.value.exit_code == 3


def test_folders_have_no_sets(tmp_path: Path) -> None:
    for i in range(8):
        picture(tmp_path / "set" / ("ab"[i % 2]) / f"{i}.png", i)
    with pytest.raises(FedvlmError, match="--labels a,b names columns of a table"):
        understand(tmp_path / "set", {"DATASET.LABELS": "a,b"})
