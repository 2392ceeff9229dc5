"""A run folder without names: of its machine in any file, and of its images where asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedvlm.cli.main import main
from fedvlm.runs.bits import PLACES
from fedvlm.runs.verify.check import inspect
from scripts.scrub_cells import main as scrub
from tests import jobs
from tests.attacks.forge import copy, edit

OLD = "/home/ann/study/images"


def test_a_log_names_no_folder(quick_run: Path) -> None:
    log = (jobs.folder(quick_run) / "log.txt").read_text()
    assert str(quick_run) not in log and "Finish training" in log


def test_a_run_of_before_is_scrubbed_and_verifies(
    quick_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy(jobs.folder(quick_run), tmp_path / "run")
    log = folder / "log.txt"
    log.write_text(f"read from {OLD}/x.csv\n{log.read_text()}")
    edit(folder / "results.json", lambda r: r["covers"]["files"].pop("log.txt"))
    assert scrub([str(folder)]) == 0 and OLD in log.read_text()  # lists only
    assert "log.txt: lines: 1" in capsys.readouterr().out
    assert scrub([str(folder), "--write"]) == 0
    assert OLD not in log.read_text() and "read from x.csv" in log.read_text()
    assert inspect(folder).word == "ok"


def test_notes_of_before_count_images_and_name_none(quick_run: Path, tmp_path: Path) -> None:
    folder = copy(jobs.folder(quick_run), tmp_path / "run")
    notes = ["1 image(s) do not decode and are left out: Cork/c004.jpg (the file is empty)",
             "2 of 9 test images have the same bytes as a training image (first: Cork/c1 (2).jpg), "
             "so the numbers are too high for new images"]
    log = folder / "log.txt"
    log.write_text(f"note: {notes[0]}\nnote: {notes[1]}\n{log.read_text()}")
    edit(folder / "manifest.json", lambda r: r["facts"].update(notes=notes))
    edit(folder / "results.json", lambda r: (r["covers"]["files"].pop("log.txt"),
                                             r["run_info"].update(notes=notes)))
    assert scrub([str(folder), "--write", "--hash-names"]) == 0
    assert inspect(folder).word == "ok"
    for name in ("log.txt", "manifest.json", "results.json"):
        text = (folder / name).read_text()
        assert "Cork" not in text and "1 image(s) do not decode and are left out" in text, name
        assert "as a training image, so the numbers are too high for new" in text, name


def test_images_by_keyed_hashes(
    quick_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy(jobs.folder(quick_run), tmp_path / "run")
    names = json.loads((folder / "partition.json").read_text())["clients"][0]["test"]
    places = {"of": "", "clients": {}}  # in a list that others can guess
    edit(folder / "results.json", lambda r: r["results"].update({PLACES: places}))
    assert scrub([str(folder), "--write", "--hash-names"]) == 0
    text, key = (folder / "partition.json").read_text(), folder / "partition.key"
    assert not any(name in text for name in names) and key.stat().st_mode & 0o77 == 0
    assert inspect(folder).word == "ok"
    assert PLACES not in json.loads((folder / "results.json").read_text())["results"]
    assert main(["verify", str(folder), "--replay", "1"]) == 0
    words = [*jobs.SMALL, "FED.INDEX_FILE", str(folder / "partition.json")]
    assert main([*words, "--output-dir", str(tmp_path / "with")]) == 0
    capsys.readouterr()
    kept = key.read_bytes()
    key.unlink()
    assert main(["verify", str(folder), "--replay", "1"]) == 0
    assert "its key is not here: the images of each client are not compared" in (
        capsys.readouterr().err)
    assert main([*words, "--output-dir", str(tmp_path / "without")]) == 3
    assert "put its key beside it, partition.key" in capsys.readouterr().err
    key.write_bytes(bytes(reversed(kept)))  # another key
    assert main(["verify", str(folder), "--replay", "1"]) == 3
