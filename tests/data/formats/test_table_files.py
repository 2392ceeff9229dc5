"""JSON lines and parquet: the same table, other mistakes."""

from __future__ import annotations

import builtins
import importlib
from pathlib import Path

import pytest

from fedvlm.core.errors import DataError
from fedvlm.data.formats.table import glance, part_of_table, read_table
from fedvlm.data.formats.table_files import read_lines_of
from fedvlm.data.own.add import understand
from tests.data.miniatures import shapes
from tests.data.miniatures.own import copy


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"path": "a.png", "label": "x"}\n[1]', "line 2: a line is an object"),
        ('{"path": "a.png"\n', "line 1: not JSON"),
        ('{"path": "a.png", "label": ""}\n{"path": "b.png"}', "line 1: .* no image has a label"),
        ('{"path": ["a"], "label": "x"}', "line 1: the cell 'path' is empty"),
        ('{"path": "../a.png", "label": "x"}', "line 1: .* without '..'"),
        ("", "the first line must name the columns"),
        ('{"image": "a.png", "path": "b.png", "label": "x"}\n{"path": "b.png", "image": "c", '
         '"label": "y"}', "'b.png' is also on line 1"),
        ("[" * 100_000, "line 1: not JSON"),
    ],
)
def test_bad_json_lines(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(DataError, match=says) as caught:
        read_table(tmp_path, copy(tmp_path, tmp_path / "t.jsonl"))
    assert "\n" not in str(caught.value)


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1")

    def absent(name: str, *more: object) -> object:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return builtins.__import__(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(DataError, match=r"reading parquet needs pyarrow: pip install 'fedvlm\[par"):
        read_lines_of(tmp_path / "t.parquet")


def test_parquet_that_is_none(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and nothing")
    with pytest.raises(DataError, match="t.parquet is not a parquet file"):
        read_lines_of(tmp_path / "t.parquet")


def test_images_of_parquet_are_unpacked_once_and_a_glance_unpacks_none(tmp_path: Path) -> None:
    shapes.parquet(tmp_path / "set")
    path = tmp_path / "set" / "data" / "train-00000-of-00001.parquet"
    assert glance(path).first == "" and not (tmp_path / "out").exists()
    info = copy(tmp_path / "set", path, unpacked=tmp_path / "out")
    data = read_table(tmp_path, info)
    files = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*.png")}
    assert len(files) == 12 and {d.impath for d in data.all()} == set(map(str, files))
    assert not list((tmp_path / "out").rglob("*.png.*"))
    read_table(tmp_path, info)
    assert {p: p.stat().st_mtime_ns for p in files} == files


@pytest.mark.parametrize(
    ("name", "part"),
    [("train.csv", "train"), ("data/validation-00000-of-00001.parquet", "val"),
     ("test/metadata.csv", "test"), ("labels.csv", ""), ("my_train.csv", ""),
     ("training-set.jsonl", "train"), ("x/labels.csv", "")],
)
def test_the_part_that_a_name_says(name: str, part: str, tmp_path: Path) -> None:
    assert part_of_table(tmp_path / name, tmp_path) == part


BODY = "path;class\n\u00e9.png;\u00d6dem\n"


@pytest.mark.parametrize("raw", [
    BODY.encode("utf-8-sig"), BODY.replace(";", "\t").encode("utf-16"),
    b"\xfe\xff" + BODY.encode("utf-16-be"), b"\xef\xbb\xbfsep=;\r\n" + BODY.encode(),
    ("sep=|\n" + BODY.replace(";", "|")).encode(),
])  # fmt: skip
def test_files_as_excel_writes_them(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(raw)
    found = read_lines_of(tmp_path / "t.csv")
    assert found.header == ["path", "class"]
    number = 3 if b"sep=" in raw else 2
    assert found.lines == [(number, ["\u00e9.png", "\u00d6dem"])]


def test_another_encoding_is_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(BODY.encode("cp1252"))
    with pytest.raises(DataError, match=r"not a text file in UTF-8 \(line 2 .* 0xE9\).* 'CSV UTF"):
        read_lines_of(tmp_path / "t.csv")


def test_absolute_paths_inside_the_table_s_folder(tmp_path: Path) -> None:
    folder = tmp_path / "ward"
    (folder / "scans").mkdir(parents=True)
    rows = [f"scans/{i}.png" for i in range(8)]
    for row in rows:
        (folder / row).touch()

    def said(start: str) -> list[str]:
        lines = [f"{start}{row},{'ab'[i % 2]}" for i, row in enumerate(rows)]
        (folder / "t.csv").write_text("path,class\n" + "\n".join(lines))
        return sorted(d.key for d in understand(folder / "t.csv").data.all())

    assert said("") == said(f"{folder}/") == rows
    with pytest.raises(DataError, match=r"line 2: 'D:\\W\\scans/0.png' leads out of .*, in which "
                                        r"scans/0.png is: take 'D:\\W\\' away"):
        said("D:\\W\\")
    for start in ("/elsewhere/x", f"{folder}/../"):
        with pytest.raises(DataError, match="must be a relative path without"):
            said(start)


def test_pictures_of_a_leaf_file_that_cannot_be_kept_name_the_cache(tmp_path: Path) -> None:
    leaf = tmp_path / "all.json"
    leaf.write_text('{"users": ["u"], "user_data": {"u": {"x": [[0.0, 1.0, 0.5, 0.2]], "y": [3]}}}')
    assert read_lines_of(leaf, tmp_path / "cache").places
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot unpack .*all.json into .*file.*; set CACHE_DIR or"):
        read_lines_of(leaf, tmp_path / "file")
