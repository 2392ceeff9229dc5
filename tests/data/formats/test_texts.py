"""Texts as samples: 20 Newsgroups' folders, tables, and what is refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.transform import TextSpec, TransformSpec
from fedvlm.data.datum import Datum, Passage
from fedvlm.data.formats.texts import read_texts
from fedvlm.data.images import ImageLoader
from fedvlm.data.layouts import CopyInfo
from tests.models.bert import TOPICS, texts_of, write_news

SPEC = TextSpec(3, (), (), vocabulary="v", tokenize=lambda text: [len(text), 1, 0])


def info(folder: Path, *files: str, **more: object) -> CopyInfo:
    return CopyInfo("Texts", folder, tuple(folder / f for f in files), **more)  # type: ignore[arg-type]


def texts(rows: list[Datum]) -> list[str]:
    return [d.array.text for d in rows if isinstance(d.array, Passage)]


def test_the_folders_of_20_newsgroups(tmp_path: Path) -> None:
    write_news(tmp_path, 4)
    odd = tmp_path / "20news-bydate-train" / "sci.space" / "9"
    odd.write_bytes("Umlaute: \xe4 \xfc".encode("latin-1"))
    data = read_texts(tmp_path, info(tmp_path))
    data.check()
    assert data.classnames == sorted(TOPICS)
    assert [len(data.parts[p]) for p in ("train", "val", "test")] == [13, 0, 6]
    space = [d for d in data.train_x if d.classname == "sci.space"]
    assert texts(space)[:4] == texts_of("sci.space", 4) and texts(space)[4] == "Umlaute: ä ü"
    assert space[0].key == "20news-bydate-train/sci.space/50000" and space[0].label == 1


def test_a_class_may_be_called_as_a_part_is_and_what_lies_beside_parts_is_said(
    tmp_path: Path,
) -> None:
    for name in ("bus", "steam-train", "crash_test"):
        (tmp_path / name).mkdir()
        for i in range(4):
            (tmp_path / name / f"{i}.txt").write_text(f"{name} {i}")
    data = read_texts(tmp_path, info(tmp_path))
    assert sorted({d.classname for d in data.all()}) == ["bus", "crash_test", "steam-train"]
    news = write_news(tmp_path / "news", 2)
    (news / "raw").mkdir()
    (news / "20news-bydate-train" / "steam-train").mkdir()
    (news / "20news-bydate-train" / "steam-train" / "1").write_text("x")
    data = read_texts(news, info(news))
    assert {d.classname for d in data.train_x} == {*TOPICS, "steam-train"}
    assert data.notes[-1] == (
        "news: not read, beside 20news-bydate-test, 20news-bydate-train: raw")
    assert not any("not read" in n for n in read_texts(news, info(news, drop=("raw",))).notes)


def test_flat_folders_of_two_parts_are_no_classes(tmp_path: Path) -> None:
    for name in ("mine-train", "mine-test"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.txt").write_text("x")
    with pytest.raises(DataError, match="has no class folders"):
        read_texts(tmp_path, info(tmp_path))


def test_folders_without_parts_are_cut_and_say_so(tmp_path: Path) -> None:
    for topic in TOPICS:
        (tmp_path / topic).mkdir()
        for i, text in enumerate(texts_of(topic, 10)):
            (tmp_path / topic / f"{i}.txt").write_text(text)
    data = read_texts(tmp_path, info(tmp_path))
    assert [len(data.parts[p]) for p in ("train", "val", "test")] == [15, 6, 9]
    assert "not a published split" in data.notes[0]
    whole = read_texts(tmp_path, info(tmp_path, test_share=0.2))
    assert [len(whole.parts[p]) for p in ("train", "val", "test")] == [24, 0, 6]


def test_a_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        'body,topic,part,who\n"one, with a comma\nand a line",b,train,Ada\ntwo,a,train,Bo\n'
        "three,a,test,Ada\n")
    data = read_texts(tmp_path, info(tmp_path, "t.csv", clients_by="who"))
    assert texts(data.train_x) == ["one, with a comma\nand a line", "two"]
    assert [(d.classname, d.label, d.client) for d in data.train_x] == [
        ("b", 1, "Ada"), ("a", 0, "Bo")]
    assert data.client_names == ["Ada", "Bo"] and texts(data.test) == ["three"]


def test_tables_of_parts_and_columns_that_are_named(tmp_path: Path) -> None:
    for part, word in (("train", "x"), ("test", "y")):
        (tmp_path / f"{part}.jsonl").write_text(
            f'{{"q": "{word} 1", "label": 10, "more": 1}}\n{{"q": "{word} 2", "label": 9}}\n'
            .replace(', "label": 9}', ', "label": 9, "more": 2}'))
    data = read_texts(tmp_path, info(tmp_path, "train.jsonl", "test.jsonl", columns="text=q"))
    assert texts(data.train_x) == ["x 1", "x 2"] and texts(data.test) == ["y 1", "y 2"]
    assert [d.classname for d in data.train_x] == ["10", "9"]
    assert [d.label for d in data.train_x] == [1, 0]
    assert "columns not used: more" in data.notes[0]


@pytest.mark.parametrize(("rows", "words"), [
    ("text,label\n ,a\n", "line 2: the cell 'text' is empty"),
    ("words,label\nx,a\n", "no column 'text' .*--columns text=COLUMN"),
    ("text,body,label\nx,y,a\n", "several columns 'text'"),
    ("text,label,split\nx,a,trian\n", "unknown split 'trian'; did you mean 'train'"),
    ("text,label,split\nx,a,test\n", "no line has split 'train'"),
    ("text,label\n", "holds no text"),
])
def test_a_table_that_is_wrong(rows: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(rows)
    with pytest.raises(DataError, match=words):
        read_texts(tmp_path, info(tmp_path, "t.csv"))


@pytest.mark.parametrize(("make", "words"), [
    (lambda at: (at / "empty").write_text("  \n"), "empty is empty: take the file out"),
    (lambda at: (at / "x.jpg").write_bytes(b"\xff\xd8\0\0"), "x.jpg is no text"),
    (lambda at: (at / "inner").mkdir(), r"holds folders \(inner\)"),
])
def test_a_folder_that_is_wrong(make: object, words: str, tmp_path: Path) -> None:
    write_news(tmp_path, 2)
    make(tmp_path / "20news-bydate-train" / "rec.autos")  # type: ignore[operator]
    with pytest.raises(DataError, match=words):
        read_texts(tmp_path, info(tmp_path))


def test_a_tower_reads_what_it_can(tmp_path: Path) -> None:
    text = Datum("t.csv", 0, 0, "a", "t.csv:2", Passage("one two"))
    loader = ImageLoader([text], SPEC)
    assert loader.load(0).tolist() == [7, 1, 0] and loader.load(0, 0).tolist() == [7, 1, 0]
    assert loader.content_key(0) == Passage("one two").key != Passage("one").key
    assert loader.transform_key() == "text:v1:3:v"
    with pytest.raises(ConfigError, match="these samples are texts .* transformers-text:FOLDER"):
        ImageLoader([text], TransformSpec(8, (0.0,) * 3, (1.0,) * 3))
    with pytest.raises(ConfigError, match="these samples are images, and the backbone reads texts"):
        ImageLoader([Datum("x.jpg", 0)], SPEC)
    with pytest.raises(ConfigError, match="no augmented views"):
        ImageLoader([text], SPEC, 2)
    with pytest.raises(DataError, match="is a text"):
        Passage("x").read()


def test_tables_of_one_name_in_two_parts_are_two(tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "data.csv").write_text(
            f"text,label\n{part} one,a\n{part} two,b\n{part} three,a\n{part} four,b\n")
    data = read_texts(tmp_path, info(tmp_path, "train/data.csv", "test/data.csv"))
    data.check()
    assert {d.key for d in data.test} == {f"test/data.csv:{n}" for n in (2, 3, 4, 5)}
