"""What a new table leaves open is asked for in one sentence; a saved config is read as it was."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedvlm.core.errors import DataError
from fedvlm.data.columns.header import Wish
from fedvlm.data.formats.table import glance
from fedvlm.data.own.add import OwnSet, understand
from fedvlm.data.own.place import AskedColumns
from fedvlm.data.own.shape import look
from tests.data.columns.publishers import picture, written

FLAGS = [["0", "1", "0"], ["1", "0", "0"], ["0", "0", "1"], ["1", "1", "0"]] * 3


def named(folder: Path, header: str, rows: Sequence[Sequence[str]]) -> Path:
    lines = [[f"{i}.png", *row] for i, row in enumerate(rows)]
    written(folder, "t.csv", f"file,{header}", lines)
    return folder / "t.csv"


def read(folder: Path, header: str, rows: Sequence[Sequence[str]], **flags: str) -> OwnSet:
    for i in range(len(rows)):
        picture(folder / f"{i}.png", i)
    given = {f"DATASET.{key}": value for key, value in flags.items()}
    return understand(named(folder, header, rows), {"CACHE_DIR": str(folder / ".cache")} | given)


def column(*cells: str) -> list[list[str]]:
    return [[cell] for cell in cells]


CLASS = Wish()
SETS = Wish(labels=("finding",))
CLIENTS = Wish(clients_by=("ward",), columns={"classname": "kind"})


@pytest.mark.parametrize(("header", "rows", "wish", "says"), [
    ("edema,fracture,tumor", FLAGS, CLASS,
     "edema, fracture, tumor hold 0 and 1: --labels edema,fracture,tumor reads such .* "
     "--columns classname=tumor reads one"),
    ("edema,tumor", [["ja", "nein"], ["nein", "ja"]], CLASS,
     r"edema, tumor hold the same values \(ja, nein\).* write 1 and 0 in them"),
    ("class", column("a", "b", "a, b"), CLASS,
     r"line 4: the class 'a, b' is a set of labels, or one.*write \| in the place of ,.*"
     "--columns classname=class"),
    ("class", column("a;b", "c;d"), CLASS, "line 2: the class 'a;b' is a set of labels, or one"),
    ("class", column("{'a', 'b'}", "{'a'}"), CLASS, "line 2: .* a set as a program writes it"),
    ("finding", column("a", "b", "('a',)"), SETS, "line 4: .* a set as a program writes it"),
    *(("finding", column("a", "b", "", cell), SETS,
       r"line 5: .* if \S separates labels, write \| in its place; .* JSON list, \[")
      for cell in ("a,b", "b, a", "a/c", "c + a", "a&b")),
    ("finding", column("a, b", "c, b", "a, d"), SETS, "line 2: .* if , separates labels"),
    ("kind,ward", [["a", "Lyon"], ["b", "nan"]], CLIENTS, "line 3: the cell 'ward' is 'nan', as"),
    ("kind,ward", [["a", "N/A"], ["b", "Lyon"]], CLIENTS, "line 2: the cell 'ward' is 'N/A', as"),
    ("kind,ward", [["a", "1"], ["b", "1.0"]], CLIENTS,
     "line 3: the cell 'ward' is '1.0' here and '1' on line 2: two names for one number"),
    ("kind,ward", [["a", "NA"], ["b", "Lyon"], ["a", "NA"]], CLIENTS,
     r"is 'NA', as .* \(the same on 1 more line: 4\)$"),
    ("class", column("a", "NA", "b", "NA", "NA"), CLASS,
     r"line 3: the cell 'class' is 'NA', .* would be a class: .* leave the cell empty .* "
     r"\(the same on 2 more lines: 5, 6\)$"),
    ("kind,ward", [["a", "Lyon"], ["nan", "Lyon"]], CLIENTS, "line 3: the cell 'kind' is 'nan'"),
])  # fmt: skip
def test_what_is_open_is_asked_for(
    header: str, rows: Sequence[Sequence[str]], wish: Wish, says: str, tmp_path: Path
) -> None:
    path = named(tmp_path, header, rows)
    with pytest.raises(DataError, match=says) as caught:
        glance(path, wish)
    assert "\n" not in str(caught.value)
    glance(path)  # nobody is asked where nothing new is read


@pytest.mark.parametrize(("header", "rows", "wish"), [
    ("edema,tumor", FLAGS, Wish(columns={"classname": "tumor"})),
    ("class", column("a", "b", "a, b"), Wish(columns={"classname": "class"})),
    ("class", column("cat, small", "cat, large"), CLASS),  # no part is another cell
    ("finding", column("a", "a/b", "a|a/b"), SETS),  # | separates, so / is of a name
    ("finding", column("a", '["a, b"]', "b"), SETS),
    ("tumor,sex,center", [["0", "m", "0"], ["1", "f", "1"]], CLASS),
    ("kind,ward", [["a", "1"], ["b", "2.0"]], CLIENTS),
    ("tumor,version", [["0", "1"], ["1", "1"]], CLASS),  # the same in all lines: no class
    ("tumor,is_test,flip", FLAGS, CLASS),
    ("class", column("A", "A+"), CLASS),
])  # fmt: skip
def test_what_is_said_is_not_asked(
    header: str, rows: Sequence[Sequence[str]], wish: Wish, tmp_path: Path
) -> None:
    assert glance(named(tmp_path, header, rows), wish).labelled


def test_who_only_looks_is_asked_nothing(tmp_path: Path) -> None:
    """As the doctor does in folders of a root."""
    for i in range(len(FLAGS)):
        picture(tmp_path / f"{i}.png", i)
    path = named(tmp_path, "edema,tumor,mass", FLAGS)
    assert look(path).what
    with pytest.raises(DataError, match="several columns may name the class"):
        look(path, asked=AskedColumns())


def test_both_unicode_forms_are_one_name(tmp_path: Path) -> None:
    """The file's own name keeps its form: it has to open."""
    words = [(("\u00d6dem", "Tumor")[i // 2 % 2], ("K\u00f6ln", "Li\u00e8ge")[i // 8])
             for i in range(16)]
    rows = [[unicodedata.normalize("NFD" if i % 2 else "NFC", word) for word in pair]
            for i, pair in enumerate(words)]
    own = read(tmp_path / "one", "class,hospital", rows, CLIENTS_BY="hospital")
    assert own.data.classnames == ["Tumor", "\u00d6dem"]
    assert own.data.client_names == ["K\u00f6ln", "Li\u00e8ge"]
    rows = [[row[0]] for row in rows]
    rows[3] = [unicodedata.normalize("NFD", "Tumor|\u00d6dem")]
    own = read(tmp_path / "sets", "finding", rows, LABELS="finding")
    assert own.data.label_names == ["Tumor", "\u00d6dem"]
    picture(tmp_path / "files" / unicodedata.normalize("NFD", "\u00e9.png"), 1)
    rows = [[unicodedata.normalize("NFD", "\u00e9.png"), "a"], ["1.png", "b"]] + [
        [f"{i}.png", "ab"[i % 2]] for i in range(2, 8)]
    for i in range(8):
        picture(tmp_path / "files" / f"{i}.png", i)
    written(tmp_path / "files", "t.csv", "file,class", rows)
    assert all(d.path.is_file() for d in understand(tmp_path / "files" / "t.csv").data.all())


def test_a_label_that_says_none_is_noted(tmp_path: Path) -> None:
    own = read(tmp_path / "a", "finding", column(*["No Finding", "a", "b", "a|b"] * 3),
               LABELS="finding")
    assert "'No Finding' is read as a label like the others (3 images)" in str(own.notes)
    assert own.data.label_names == ["No Finding", "a", "b"]
    own = read(tmp_path / "b", "finding", column(*["normal", "a", "b", "a|normal"] * 3),
               LABELS="finding")
    assert "like the others" not in str(own.notes)  # it stands with another


def test_a_label_a_line_is_told_how_it_is_written(tmp_path: Path) -> None:
    for i in range(4):
        picture(tmp_path / f"{i}.png", i)
    rows = [[f"{i // 2}.png", "abc"[i % 3]] for i in range(8)]
    written(tmp_path, "t.csv", "file,finding", rows)
    with pytest.raises(DataError, match=r"line 3: '0.png' is also on line 2: .* in one cell, a\|b"):
        understand(tmp_path / "t.csv", {"DATASET.LABELS": "finding"})


def test_folders_in_both_unicode_forms_are_one_class(tmp_path: Path) -> None:
    """macOS decomposes names; side by side the two are copies of one folder, and refused."""
    names = ["R\u00f6ntgen", "\u00d6dem", "plain"]
    apart = [unicodedata.normalize("NFD", name) for name in names]
    for part, spelt in (("train", apart), ("val", names), ("test", names)):
        for n, name in enumerate(spelt):
            for i in range(2):
                picture(tmp_path / "tree" / part / name / f"{part}{i}\u0301.png", n)
    given = {"CACHE_DIR": str(tmp_path / ".cache")}
    data = understand(tmp_path / "tree", given).data
    assert data.classnames == sorted(names) and {d.label for d in data.test} == {0, 1, 2}
    assert all(d.path.is_file() for d in data.all())
    assert {d.classname for d in data.train_x} == set(names)
    word = f"{apart[0]}=x-ray"
    own = understand(tmp_path / "tree", given | {"DATASET.CLASSNAMES": word})
    assert "x-ray" in own.data.classnames
    own = understand(tmp_path / "tree", given | {"DATASET.LEAVE_OUT": apart[0]})
    assert own.data.classnames == sorted(names[1:])

    rows = [[f"{name}/train{i}\u0301.png", name] for name in names[::-1] for i in range(2)]
    rows = [[unicodedata.normalize("NFC", cell) for cell in row] for row in rows]
    written(tmp_path / "tree" / "train", "t.csv", "file,class", rows)
    data = understand(tmp_path / "tree" / "train" / "t.csv", given).data
    assert len(data.all()) == 6 and all(d.path.is_file() for d in data.all())

    places = {f"{d}/{c}" for d in (apart[0], "Lyon") for c in apart[1:]}
    for n, place in enumerate(sorted(places)):
        for i in range(4):
            picture(tmp_path / "domains" / place / f"{i}.png", 4 * n + i)
    data = understand(tmp_path / "domains", given).data
    assert data.domain_names == ["Lyon", names[0]] and data.classnames == sorted(names[1:])

    picture(tmp_path / "tree" / "test" / apart[0] / "0.png", 1)
    with pytest.raises(DataError, match="two folders called 'R\u00f6ntgen'.*Unicode form only"):
        understand(tmp_path / "tree", given)
