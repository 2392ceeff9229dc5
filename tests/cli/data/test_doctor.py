"""``fedvlm doctor``: its lines, its JSON and its exit codes."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedvlm.cli.data import _findings as console_doctor
from fedvlm.cli.main import main
from fedvlm.data.catalog import CATALOG

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
CLASSES = {"AnnualCrop": "Annual Crop Land", "Forest": "Forest", "River": "River"}


def write_images(folder: Path, each: int = 7) -> None:
    for c, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for n in range(each):
            pixels = np.random.default_rng([c, n]).integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{n}.png")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """EuroSAT in small, and nothing else."""
    folder = tmp_path / "data" / "eurosat"
    write_images(folder / "2750")
    split: dict[str, list[Any]] = {"train": [], "val": [], "test": []}
    for label, (name, said) in enumerate(CLASSES.items()):
        for n in range(7):
            part = "train" if n < 4 else "val" if n < 5 else "test"
            split[part].append([f"{name}/{n}.png", label, said])
    (folder / "split_zhou_EuroSAT.json").write_text(json.dumps(split))
    return tmp_path / "data"


def doctor(root: Path | str, *more: str) -> int:
    return main(["doctor", "--root", str(root), *more])


def test_one_line_for_every_known_set(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(root) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in CATALOG:
        states = [words[1] for line in lines if (words := line.split())[:1] == [name]]
        assert len(states) == 1, name
        assert states[0] == ("ready" if name == "EuroSAT" else
                             "built" if CATALOG[name].builtin else "absent")
    row = next(line for line in lines if line.startswith("EuroSAT "))
    assert row.split() == ["EuroSAT", "ready", "CoOp", "split", "file", "3", "of", "10", "12/3/6",
                           "13500/5400/8100", "0", "of", "21", "0", "1"]  # fmt: skip
    assert any(line.startswith("EuroSAT: note: this copy has 3 classes") for line in lines)
    assert f"downloads: add --root {root}" in lines
    pages = [line for line in lines if line.startswith("(1) https://")]
    assert len(pages) == 1 and any(line.endswith("by hand, page (1)") for line in lines)
    absent = len(CATALOG) - 5
    assert lines[-1].startswith(f"{root}: 1 ready, 4 built in, {absent} absent; at most 64")


def test_nothing_is_written_but_the_records(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(root.rglob("*"))
    assert doctor(root, "--full", "--cache-dir", str(tmp_path / "cache")) == 0
    assert "all images were decoded" in capsys.readouterr().out
    assert sorted(root.rglob("*")) == before
    made = [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]
    assert [p.parent.name for p in made] == ["images"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("eurosat",), 0), (("EuroSAT", "shapes"), 0), (("eurosat", "oxford-pets"), 3),
        (("eurosta",), 2), (("--ful",), 2), (("--full", "--sample", "3"), 2),
        (("--sample", "-1"), 2), (("--sample", "few"), 2), (("--near",), 2),
        (("--dataset-config-file", "absent.yaml"), 2), (("--sample", "0"), 0),
    ],
)  # fmt: skip
def test_exit_codes(
    root: Path, words: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor(root, *words) == code
    said = capsys.readouterr()
    assert bool(said.err) == (code == 2) and "Traceback" not in said.err
    if code == 2:
        assert not said.out and len(said.err.splitlines()) == 1


def test_a_root_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 2
    assert "--root is missing" in capsys.readouterr().err
    assert doctor(tmp_path / "absent") == 3
    assert "does not exist" in capsys.readouterr().err
    assert doctor(tmp_path) == 3  # nothing is ready
    assert "0 ready" not in capsys.readouterr().out


def test_what_is_broken_stops_no_other_set(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "dtd" / "images").mkdir(parents=True)
    (root / "dtd" / "split_zhou_DescribableTextures.json").write_text("{")
    (root / "food-101").mkdir()
    (root / "eurosat" / "2750" / "River" / "3.png").write_bytes(b"")
    assert doctor(root) == 3
    out = capsys.readouterr().out
    assert ("EuroSAT: note: usable: 1 of 21 images looked at do not decode (first: River/3.png: "
            in out)
    assert "DescribableTextures: problem: " in out and "is not a JSON file" in out
    assert "Food101: problem: food-101/images, food-101/split_zhou_Food101.json are missing" in out
    assert "Food101: get it: fedvlm data download Food101 (5 GB)" in out
    assert "1 broken, 1 partly" in out
    assert doctor(root, "caltech101") == 3  # absent, and named
    assert doctor(root, "shapes") == 0


def test_json_holds_all_of_it(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "eurosat" / "2750" / "River" / "3.png").write_bytes(b"")
    assert doctor(root, "eurosat", "pets", "--json", "--full") == 3
    record = json.loads(capsys.readouterr().out)
    assert {"root", "sample", "exit_code", "sets"} == set(record)
    assert record["sample"] is None and record["exit_code"] == 3
    eurosat, pets = record["sets"]
    assert eurosat["sizes"] == {"train": 12, "val": 3, "test": 6}
    assert eurosat["published_sizes"] == {"train": 13500, "val": 5400, "test": 8100}
    assert eurosat["state"] == "ready" and not eurosat["problems"]
    assert [(p["check"], p["count"]) for p in eurosat["remarks"] if p["check"] != "published"] == [
        ("unreadable", 1)]
    assert len(eurosat["remarks"]) == 2
    assert pets["state"] == "absent" and pets["get"].startswith("fedvlm data download OxfordPets")
    keys = {"name", "state", "layout", "folder", "classes", "sizes", "published_classes",
            "published_sizes", "images", "looked", "unreadable", "leaks", "modes", "problems",
            "remarks", "get", "page", "unit"}  # fmt: skip
    assert set(eurosat) == set(pets) == keys


def test_own_sets_by_their_config(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_images(root / "my_set" / "images")
    file = tmp_path / "mine.yaml"
    text = "DATASET: {NAME: MySet, DIR: my_set, IMAGE_DIR: images, FORMAT: folders}\n"
    file.write_text(text)
    assert doctor(root, "--dataset-config-file", str(file)) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1].split()[:4] == ["MySet", "ready", "folders", "3"]
    assert "cut 50/20/30" in out
    first, second = (root / "my_set" / "images" / f"{name}" for name in ("River", "Forest"))
    for n in range(7):  # whatever the cut: training and test images share their bytes
        (first / f"{n}.png").write_bytes((second / "0.png").read_bytes())
    assert doctor(root, "--dataset-config-file", str(file), "--full") == 3
    assert "with the bytes of a training image" in capsys.readouterr().out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("width", "columns"), [(60, 6), (80, 6), (120, 9)])
def test_a_terminal_gets_what_fits(
    width: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((width, 24)))
    row = {"set": "DescribableTextures", "state": "ready", "layout": "CoOp split file",
           "classes": "10 of 47", "train/val/test": "600/240/360", "published": "2820/1128/1692",
           "unreadable": "0 of 64", "leaks": "0", "remarks": "1"}  # fmt: skip
    assert len(console_doctor.fit_columns([row], width)) == columns
    screen = Terminal()
    with contextlib.redirect_stdout(screen):
        console_doctor.show_table([row])
        console_doctor.show_lines(["x: note: " + "word " * 40 + "https://a.b/" + "c" * 30])
    lines = screen.getvalue().splitlines()
    assert "\x1b[" in lines[0]
    assert all(len(line) <= width for line in lines[3:]) and "c" * 30 in lines[-1]


def test_help_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["doctor", "--help"], ["doctor", "-h"], ["doctor", "help"]):
        assert main(words) == 0
        assert "exit code: 0 no problem" in capsys.readouterr().out


def test_the_shared_sets_are_ready(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["caltech101", "dtd", "eurosat", "cifar10", "cifar100"]
    absent = [n for n in ("caltech-101", "dtd", "eurosat") if not (SHARED / n).is_dir()]
    if absent:
        pytest.skip(f"{SHARED / absent[0]} is not on this machine")
    assert doctor(SHARED, "--json", "--sample", "8", *names) == 0
    sets = {row["name"]: row for row in json.loads(capsys.readouterr().out)["sets"]}
    assert all(row["state"] == "ready" and not row["problems"] for row in sets.values())
    subset = {name for name, row in sets.items()
              if any(r["check"] == "published" for r in row["remarks"])}
    assert subset == {"DescribableTextures", "EuroSAT", "Cifar10", "Cifar100"}
    assert sets["Caltech101"]["images"] == 8242 and sets["Caltech101"]["looked"] == 8


def test_unknown_folders_are_named_with_what_they_are(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_images(root / "my photos" / "train")
    (root / "papers").mkdir()
    (root / "papers" / "a.pdf").write_text("x")
    assert doctor(root) == 0
    out = capsys.readouterr().out
    rows = [line.split("  ") for line in out.splitlines() if " unknown " in line]
    assert [row[0] for row in rows] == ["my photos", "papers"]
    assert "a train folder only" in next(line for line in out.splitlines() if "my photos " in line)
    assert f"my photos: not a known set; to use it: fedvlm data add '{root / 'my photos'}'" in out
    assert "papers: note: " in out and "holds no image" in out
    assert "2 unknown" in out
    assert doctor(root, "--json") == 0
    sets = {row["name"]: row for row in json.loads(capsys.readouterr().out)["sets"]}
    assert sets["my photos"]["state"] == "unknown" and sets["papers"]["get"] == ""
    assert doctor(root, "eurosat") == 0  # who names a set asks for no other
    assert "no known set" not in capsys.readouterr().out


def test_unlabelled_images_read_as_a_class_are_a_problem(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_images(root / "my_set" / "train")
    rows = [f"train/{p.parent.name}/{p.name},{p.parent.name},train"
            for p in (root / "my_set" / "train").glob("*/*.png")]
    write_images(root / "my_set" / "test")
    rows += [f"test/{p.parent.name}/{p.name},images,test"
             for p in (root / "my_set" / "test").glob("*/*.png")]
    (root / "my_set" / "t.csv").write_text("\n".join(["path,classname,split", *rows]))
    file = tmp_path / "mine.yaml"
    file.write_text("DATASET: {NAME: MySet, DIR: my_set, SPLIT_FILE: t.csv}\n")
    assert doctor(root, "--dataset-config-file", str(file)) == 3
    assert "MySet: problem: 3 classes without a test image" in capsys.readouterr().out
