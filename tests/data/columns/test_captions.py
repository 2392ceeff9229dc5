"""Captions in a table: the forms, topics, published splits, and bad input."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fedvlm.cli.main import main
from fedvlm.core.errors import FedvlmError
from fedvlm.data.columns.topics import group_texts
from fedvlm.data.own.add import OwnSet, understand
from fedvlm.data.targets import split_digest
from tests.data.columns.publishers import picture, written

TEXTS = {
    i: (f"a {('red fox', 'blue jay')[i % 2]} in the snow", f"{('fox', 'jay')[i % 2]} number {i}")
    for i in range(20)
}


def read(folder: Path, name: str = "t.csv", **flags: str) -> OwnSet:
    given = {f"DATASET.{key}": value for key, value in flags.items()}
    return understand(folder / name, {"CACHE_DIR": str(folder / ".cache")} | given)


def table(folder: Path, header: str, rows: Sequence[Sequence[str]]) -> Path:
    for i in range(20):
        picture(folder / f"{i}.png", i)
    written(folder, "t.csv", f"file,{header}", rows)
    return folder


FORMS = {
    "lines": ("caption", [[f"{i}.png", text] for i in TEXTS for text in TEXTS[i]], "caption"),
    "lists": ("caption", [[f"{i}.png", json.dumps(TEXTS[i])] for i in TEXTS], "caption"),
    "columns": ("first,second", [[f"{i}.png", *TEXTS[i]] for i in TEXTS], "first,second"),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_forms_say_the_same(form: str, tmp_path: Path) -> None:
    header, rows, flag = FORMS[form]
    own = read(table(tmp_path, header, rows), CAPTIONS=flag, TOPICS="2")
    images = own.data.all()
    assert {d.key: d.captions for d in images} == {f"{i}.png": TEXTS[i] for i in TEXTS}
    assert own.data.captioned and own.data.classnames == ["topic 1", "topic 2"]
    topics = [{d.label for d in images if int(d.path.stem) % 2 == k} for k in (0, 1)]
    assert len(topics[0]) == len(topics[1]) == 1 and topics[0] != topics[1]


def test_json_lines_and_a_column_of_topics(tmp_path: Path) -> None:
    for i in TEXTS:
        picture(tmp_path / f"{i}.png", i)
    lines = [json.dumps({"file_name": f"{i}.png", "text": list(TEXTS[i]),
                         "topic": ("fox", "jay")[i % 2]}) for i in TEXTS]
    (tmp_path / "t.jsonl").write_text("\n".join(lines) + "\n")
    own = read(tmp_path, "t.jsonl", CAPTIONS="text")
    assert own.data.classnames == ["fox", "jay"]
    assert {d.captions for d in own.data.all()} == set(TEXTS.values())


def test_topics_follow_the_words_and_not_the_order() -> None:
    """Two groups that share no word; any order of the images gives each the same topic."""
    texts = [("a cat sleeps on a sofa",)] * 9 + [("two boats sail near harbour",)] * 6
    assert group_texts(texts, 2) == ["topic 1"] * 9 + ["topic 2"] * 6
    mixed = [(f"{random.Random(i).choice(['sea boat', 'cat sofa', 'tree leaf'])} {i % 5} word",)
             for i in range(60)]
    plain = dict(zip(range(60), group_texts(mixed, 3), strict=True))
    order = np.random.default_rng(0).permutation(60).tolist()
    turned = group_texts([mixed[i] for i in order], 3)
    assert dict(zip(order, turned, strict=True)) == plain
    assert len(set(plain.values())) == 3
    assert group_texts([("b",), ("c",)], 5) == ["topic 1", "topic 1"]


def published(folder: Path, coco: bool) -> Path:
    images = []
    for i in TEXTS:
        part = ("train", "val", "test", "restval" if coco else "train")[i % 4]
        place = folder / ("val2014" if coco else "flickr30k-images")
        picture(place / f"{i}.jpg", i)
        images.append({
            "filename": f"{i}.jpg", "imgid": i, "split": part, "sentids": [2 * i, 2 * i + 1],
            "sentences": [{"raw": text, "tokens": text.split(), "imgid": i, "sentid": n}
                          for n, text in enumerate(TEXTS[i])],
        } | ({"filepath": "val2014", "cocoid": i} if coco else {}))
    name = folder / f"dataset_{'coco' if coco else 'flickr30k'}.json"
    name.write_text(json.dumps({"dataset": name.stem, "images": images}))
    return name


@pytest.mark.parametrize("coco", [True, False])
def test_the_published_splits_are_read_as_they_are(coco: bool, tmp_path: Path) -> None:
    """``restval`` counts as training, as in all papers."""
    own = read(tmp_path, published(tmp_path, coco).name, CAPTIONS="sentences", TOPICS="2")
    parts = {part: sorted(int(d.path.stem) for d in rows) for part, rows in own.data.parts.items()}
    assert parts == {"train": [i for i in range(20) if i % 4 in (0, 3)],
                     "val": list(range(1, 20, 4)), "test": list(range(2, 20, 4))}
    assert all(d.path.is_file() and d.captions == TEXTS[int(d.path.stem)] for d in own.data.all())


def test_another_caption_is_other_data(tmp_path: Path) -> None:
    rows = FORMS["lists"][1]
    one = read(table(tmp_path / "a", "caption,topic", [[*r, "x"] for r in rows]),
               CAPTIONS="caption")
    rows[3][1] = json.dumps(["something else"])
    two = read(table(tmp_path / "b", "caption,topic", [[*r, "x"] for r in rows]),
               CAPTIONS="caption")
    assert split_digest(one.data) != split_digest(two.data)


BAD = {
    "empty": ("caption", [["0.png", "a fox"], ["1.png", "  "]], "caption",
              "line 3: the caption 'caption' is empty"),
    "empty in a list": ("caption", [["0.png", '["a fox", ""]']], "caption", "is empty"),
    "no list": ("caption", [["0.png", '["a fox"']], "caption", "no JSON list of captions"),
    "absent": ("caption", [["0.png", "a fox"]], "captoin",
               "no column 'captoin'; did you mean 'caption'?"),
    "two parts": ("caption,split", [["0.png", "a fox", "train"], ["0.png", "fox", "test"]],
                  "caption", "'0.png' has the split 'test' here and 'train' in"),
    "not asked for": ("caption", [["0.png", "a fox"]], "", "--captions caption reads it as such"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, rows, flag, words = BAD[case]
    folder = table(tmp_path / "t", header, rows)
    with pytest.raises(FedvlmError) as error:
        read(folder, CAPTIONS=flag)
    assert words in str(error.value) and "\n" not in str(error.value)
    place = tmp_path / "made.yaml"
    given = ["--captions", flag] if flag else []
    assert main(["data", "add", str(folder / "t.csv"), "--to", str(place), *given]) == 3
    assert not place.exists() and words in capsys.readouterr().err
