"""Class names, configs and splits that want to reach a terminal, a spreadsheet or the memory."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedvlm.cli.main import main
from fedvlm.core.pixels import MAX_PIXELS, decode
from fedvlm.core.spelling import (
    MAX_NAME,
    cell_text,
    name_fault,
    text_of_cell,
    visible_text,
)
from fedvlm.report.figures.style import figure_csv
from fedvlm.runs.names import read_partition
from tests import jobs

NAMES = {
    "a\x00b": "control", "\x1b[2Jcat": "control", "cat\ndog": "control", "\ud800x": "surrogate",
    "cat\u2028dog": "line separator", "\u200b": "shows nothing", "\u3164\u2800": "shows nothing",
    "\u202etac": "direction", "x" * (MAX_NAME + 1): "longer",
}
FORMULAS = ("=HYPERLINK(1)", "@SUM(1+1)*cmd|' /C calc'!A0", "+1+1", "-1+1", "\t=1")


def split(folder: Path, name: str) -> Path:
    """A table of own images whose first class has a name."""
    for i in range(12):
        Image.new("RGB", (16, 16), (20 * i, i, 0)).save(folder / f"{i}.png")
    rows = [{"path": f"{i}.png", "label": name if i % 2 else "dog",
             "split": "test" if i > 7 else "train"} for i in range(12)]
    path = folder / "set.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def words(table: Path, output: Path) -> list[str]:
    form = {".jsonl": "jsonl", ".json": "coop"}[table.suffix]
    config = table.with_name("mine.yaml")
    config.write_text(f"DATASET: {{NAME: Mine, DIR: {table.parent.name}, FORMAT: {form}, "
                      f"SPLIT_FILE: {table.name}}}")
    return ["--root", str(table.parent.parent), "--dataset-config-file", str(config),
            "--backbone", "tiny", "--rounds", "1", "--num-users", "2", "--lr", "0.01",
            "--shots", "2", "--output-dir", str(output), "CACHE_DIR", str(output.parent / "cache")]


def refused(code: int, said: str, output: Path) -> str:
    errors = [line for line in said.splitlines() if line.startswith("error:")]
    assert code in (2, 3) and len(errors) == 1, said
    assert errors[0].isprintable() and len(errors[0]) < 500
    assert not list(output.rglob("*.json")) and not output.exists()
    return errors[0]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_names_that_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert NAMES[name] in name_fault(name)
    code = main(words(split(tmp_path, name), tmp_path / "out"))
    said = refused(code, capsys.readouterr().err, tmp_path / "out")
    assert NAMES[name] in said or "holds a line break" in said


@pytest.mark.parametrize(
    "name", ["cat", "Škoda Fabia", "日本の猫", "-1+1", "قط", "👩‍🚀", "a\u200db"]
)
def test_names_that_are_some(name: str) -> None:
    assert name_fault(name) == ""


def test_a_name_too_long_for_the_tower_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(words(split(tmp_path, "very " * 50 + "long"), tmp_path / "out"))
    assert "tokens" in refused(code, capsys.readouterr().err, tmp_path / "out")


@pytest.mark.parametrize("name", FORMULAS)
def test_no_cell_is_a_formula(name: str) -> None:
    assert cell_text(name) == f"'{name}" and text_of_cell(f"'{name}") == name
    (row,) = csv.DictReader(io.StringIO(figure_csv([{"class": name, "images": -1.5}])))
    seen = visible_text(name)  # a tab at the start is shown as \\t, which begins no formula
    assert row == {"class": f"'{name}" if seen == name else seen, "images": "-1.5"}
    assert cell_text(row["class"]) == row["class"] or seen == name


def test_numbers_and_names_stay_as_they_are() -> None:
    for cell in ("-1.5", "+3", "cat", "'t Hooft", "", -2, None):
        assert cell_text(cell) == cell
    assert text_of_cell("'t Hooft") == "'t Hooft"


def test_partition_csv_of_a_formula_and_back(tmp_path: Path) -> None:
    assert main(words(split(tmp_path, "=1+1"), tmp_path / "out")) == 0
    text = (jobs.folder(tmp_path / "out") / "partition.csv").read_text()
    assert ",'=1+1," in text and ",=1+1," not in text
    assert {r["class"] for r in read_partition(jobs.folder(tmp_path / "out"))} == {"=1+1", "dog"}


# ---- pixels and views ---------------------------------------------------------------------------
def bomb(path: Path) -> None:
    side = int(MAX_PIXELS ** 0.5) + 1
    Image.fromarray(np.zeros((side, side), np.uint8)).save(path, compress_level=1)


def test_a_pixel_bomb_is_named_and_not_decoded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = split(tmp_path, "cat")
    bomb(tmp_path / "3.png")
    with pytest.raises(ValueError, match="pixels are more than"):
        decode((tmp_path / "3.png").read_bytes())
    line = [*words(table, tmp_path / "out"), "DATASET.ON_CORRUPT", "refuse"]
    assert main(line) == 3
    said = capsys.readouterr().err
    assert "3.png" in said and "pixels are more than" in said and not (tmp_path / "out").exists()


def test_views_are_bounded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(jobs.argv(tmp_path / "out", "--views", "1000000")) == 2
    assert "1000" in refused(2, capsys.readouterr().err, tmp_path / "out")


# ---- configs and JSON ---------------------------------------------------------------------------
YAMLS: dict[str, bytes | Callable[[Path], bytes]] = {
    "python tag": lambda at: f"FED: !!python/object/apply:os.system ['touch {at}/PWNED']".encode(),
    "new object": lambda at: f"SEED: !!python/object/new:open ['{at}/PWNED', w]".encode(),
    "bomb": b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
        b"%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n" % (c + 1, c + 1, *[c] * 9)
        for c in range(97, 106)
    ),
    "deep": b"FED: " + b"[" * 20_000,
    "nan": b"OPTIM: {LR: .nan}",
    "infinity": b"OPTIM: {LR: .inf}",
    "control": b"SEED: 1\x00",
    "escape": b"SEED: \x1b[2J",
    "itself": b"FED: &a {ROUNDS: *a}",
}


@pytest.mark.parametrize("name", YAMLS)
def test_configs(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    made = YAMLS[name]
    path = tmp_path / "c.yaml"
    path.write_bytes(made(tmp_path) if callable(made) else made)
    code = main(jobs.argv(tmp_path / "out", "--config-file", str(path)))
    said = capsys.readouterr().err
    assert code == 2 and "c.yaml" in said and "Traceback" not in said
    assert not (tmp_path / "out").exists() and not (tmp_path / "PWNED").exists()


SPLITS = {
    "deep": b'{"train": ' + b"[" * 100_000,
    "nan": b'{"train": [["0.png", NaN, "cat"]], "val": [], "test": [["1.png", 0, "cat"]]}',
    "huge": b'{"train": [["0.png", 1' + b"0" * 5000 + b', "cat"]], "val": [], "test": []}',
    "climbs": b'{"train": [["../../../etc/passwd", 0, "cat"]], "val": [],'
              b' "test": [["1.png", 0, "cat"]]}',
    "surrogate": b'{"train": [["0.png", 0, "\\ud800"]], "val": [],'
                 b' "test": [["1.png", 0, "\\ud800"]]}',
}


@pytest.mark.parametrize("name", SPLITS)
def test_splits(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    split(tmp_path, "cat")
    path = tmp_path / "split.json"
    path.write_bytes(SPLITS[name])
    code = main(words(path, tmp_path / "out"))
    said = capsys.readouterr().err
    assert code in (2, 3) and said.startswith("error: ") and "Traceback" not in said
    assert ("Mine" if name == "surrogate" else "split.json") in said
    assert not (tmp_path / "out").exists()
