"""Own data in a table: what it may hold, and every line that is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.datasets import load_dataset
from fedvlm.data.datum import DatasetBase
from fedvlm.data.federated import build_federation
from fedvlm.data.formats.table import read_table
from tests.data.miniatures.own import config, copy, write_tree

GOOD = """path,classname,split
b/1.png,dog,train
a/1.png,cat,train
a/2.png,cat,val
a/3.png,cat,test
b/3.png,dog,test
"""


def table(tmp_path: Path, text: str | bytes, **keys: object) -> DatasetBase:
    (tmp_path / "mine").mkdir(exist_ok=True)
    raw = text if isinstance(text, bytes) else text.encode()
    (tmp_path / "mine" / "table.csv").write_bytes(raw)
    given = {"DATASET__DIR": "mine", "DATASET__SPLIT_FILE": "table.csv", **keys}
    return load_dataset(config(tmp_path, tmp_path / "cache", **given))


def keys(data: DatasetBase, part: str) -> list[str]:
    return [d.key for d in data.parts[part]]


@pytest.mark.parametrize("form", ["", "csv", "CSV"])
def test_names_are_sorted_and_lines_keep_their_order(form: str, tmp_path: Path) -> None:
    data = table(tmp_path, GOOD, DATASET__FORMAT=form)
    assert data.classnames == ["cat", "dog"] and data.notes == [] and data.domain_names == []
    assert [(d.key, d.label) for d in data.train_x] == [("b/1.png", 1), ("a/1.png", 0)]
    assert (keys(data, "val"), keys(data, "test")) == (["a/2.png"], ["a/3.png", "b/3.png"])


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + GOOD, GOOD.replace("\n", "\r\n"), GOOD.replace("path", " Path "),
        GOOD.replace("classname", "label"), GOOD.replace("b/1.png", './/b/1.png'),
        GOOD.replace("\na/2", "\n\n,,\na/2"), GOOD.replace("dog", '"dog"'),
        GOOD.replace("train", "TRAIN").replace("val", "validation"),
    ],
)  # fmt: skip
def test_spellings_that_mean_the_same(text: str, tmp_path: Path) -> None:
    want = table(tmp_path, GOOD)
    got = table(tmp_path, text)
    assert [got.parts[p] for p in ("train", "val", "test")] == [
        want.parts[p] for p in ("train", "val", "test")
    ]


def test_labels_order_the_classes_and_domains_are_named(tmp_path: Path) -> None:
    text = (
        "domain,split,label,classname,path,width\n"
        'south,train,1,cat,a.png,8\nnorth,train,0,"dog, big",b.png,8\n'
        "north,test,1,cat,c.png,8\nsouth,test,0,\"dog, big\",d.png,8\n"
    )
    data = table(tmp_path, text)
    assert data.classnames == ["dog, big", "cat"] and data.domain_names == ["north", "south"]
    assert [(d.label, d.domain) for d in data.train_x] == [(1, 1), (0, 0)]
    assert data.notes == ["table.csv: columns not used: width"]


def test_without_a_split_column_the_own_cut_is_named(tmp_path: Path) -> None:
    lines = [f"{c}/{n}.png,{c}" for c in ("a", "b") for n in range(10)]
    data = table(tmp_path, "\n".join(["path,classname", *lines]))
    assert [len(data.parts[p]) for p in ("train", "val", "test")] == [10, 4, 6]
    assert "not a published split" in data.notes[0]
    again = table(tmp_path, "\n".join(["path,classname", *reversed(lines)]))
    assert keys(again, "test") == keys(data, "test")
    tree = write_tree(tmp_path / "tree", [""], ["a", "b"], 10)
    folders = load_dataset(config(tmp_path, tmp_path, DATASET__DIR=tree.name))
    assert keys(folders, "test") == keys(data, "test")  # one rule for tables and trees


HEAD = "path,label,classname,split"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the first line must name the columns path and classname"),
        ("path|classname\na|b\n", "separated by commas"),
        ("picture,classname\na,b\n", "must name the columns path"),
        ("path,split\na,train\n", "must name the columns path and classname"),
        ("path,Labels\na,b|c\n", "'Labels' seems to hold an image's labels: --labels Labels"),
        ("path,classname,path\n", "the column 'path' is there twice"),
        ("path,classname\n", "holds no image"),
        ("path,label\na.png,0\nb.png,1\n", "the column label holds numbers only.*add a column cl"),
        (GOOD + "c.png,cat\n", "line 7: 2 cells, but the header has 3"),
        (GOOD + "c.png,,test\n", "line 7: 'c.png' has no label, and it is in test"),
        (GOOD + "/c.png,cat,train\n", "line 7: '/c.png' must be a relative path"),
        (GOOD + "a/../../c.png,cat,train\n", "line 7: .* must be a relative path without '..'"),
        (GOOD + "C:\\c.png,cat,train\n", "line 7: .* must be a relative path without '..'"),
        (GOOD + "a//./1.png,cat,test\n", "line 7: 'a/1.png' is also on line 3"),
        (GOOD + "c.png,cat,tset\n", "line 7: unknown split 'tset'; did you mean 'test'"),
        ("path,classname,split\na,b,train\n", "no line has split 'test'.*TEST_SHARE 0.3"),
        (GOOD.replace("train", "val"), "no line has split 'train'"),
        (f"{HEAD}\na,-1,x,train\nb,0,y,test\n", "line 2: the label must be a whole number.*'-1'"),
        (f"{HEAD}\na,0,x,train\nb,1.5,y,test\n", "line 3: the label must be a whole number"),
        (f"{HEAD}\na,9999999,x,train\nb,0,y,test\n", "line 2: the label must be a whole number"),
        (f"{HEAD}\na,0,x,train\nb,2,y,test\n", "labels must be 0..1 without gaps"),
        (f"{HEAD}\na,0,x,train\nb,0,y,test\n", "label 0 is called both 'x' and 'y'"),
        (f"{HEAD}\na,0,x,train\nb,1,x,test\n", "labels 0 and 1 are both called 'x'"),
        ('path,classname,split\n"a,cat,train\n', "line 2: not a CSV line"),
        (GOOD + '"c\nd.png",cat,train\n', "line 8: the cell 'path' holds a line break"),
        ('path,"class\nnam",split\na,b,train\n',
         r"did you mean 'classname'\?.*--columns classname=COLUMN"),
        (b"path,classname\n\xff,cat\n", "not a text file in UTF-8"),
    ],
)
def test_a_bad_table_is_refused_in_one_sentence(
    text: str | bytes, says: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=says) as caught:
        table(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="FORMAT csv needs DATASET.SPLIT_FILE"):
        table(tmp_path, GOOD, DATASET__SPLIT_FILE="", DATASET__FORMAT="csv")
    with pytest.raises(DataError, match="tabel.csv .* is missing.*found there: table.csv"):
        table(tmp_path, GOOD, DATASET__SPLIT_FILE="tabel.csv")
    with pytest.raises(ConfigError, match="FORMAT csv needs DATASET.SPLIT_FILE"):
        (tmp_path / "eurosat").mkdir()
        cfg = config(tmp_path, tmp_path, DATASET__NAME="EuroSAT", DATASET__FORMAT="csv")
        load_dataset(cfg)


def test_a_known_set_may_come_with_a_table(tmp_path: Path) -> None:
    (tmp_path / "eurosat" / "2750").mkdir(parents=True)
    (tmp_path / "eurosat" / "t.csv").write_text(GOOD, encoding="utf-8")
    cfg = config(tmp_path, tmp_path, DATASET__NAME="EuroSAT", DATASET__SPLIT_FILE="t.csv")
    data = load_dataset(cfg)
    assert data.classnames == ["cat", "dog"] and data.train_x[0].impath.endswith("2750/b/1.png")
    assert any("not comparable with papers" in note for note in data.notes)


def test_domains_of_a_table_become_clients(tmp_path: Path) -> None:
    write_tree(tmp_path / "mine", ["north", "south"], ["a", "b"], 6)
    paths = [f"{d}/{c}/{n}.png" for d in ("north", "south") for c in "ab" for n in range(6)]
    rows = [f"{p},{p.split('/')[1]},{p.split('/')[0]}" for p in paths]
    (tmp_path / "mine" / "t.csv").write_text("\n".join(["path,classname,domain", *rows]))
    cfg = config(
        tmp_path, tmp_path / "cache", DATASET__DIR="mine", DATASET__SPLIT_FILE="t.csv",
        FED__PARTITION="domain",
    )
    data = build_federation(cfg)
    assert [client.domain for client in data.clients] == ["north", "south"]
    for sample in data.samples:
        domain, name, _ = sample.key.split("/")
        assert data.classnames[sample.label] == name
        assert data.domain_names[sample.domain] == domain


@settings(max_examples=80, deadline=None)
@given(st.text(alphabet='ab,"\n\r;/.0-\0\u2028', max_size=60), st.booleans())
def test_any_text_is_a_table_or_an_error(tmp_path_factory: pytest.TempPathFactory, text: str,
                                         header: bool) -> None:
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    path.write_text("path,classname\n" + text if header else text, encoding="utf-8", newline="")
    try:
        tree = read_table(path.parent, copy(path.parent, path))
    except DataError as error:
        first, *more = str(error).split("\n")  # a line for each kind of fault
        assert first and all(line.startswith(f"{path}, line ") for line in more)
        return
    keys = [d.key for items in tree.parts.values() for d in items]
    assert keys and len(set(keys)) == len(keys) and not any(".." in k.split("/") for k in keys)
