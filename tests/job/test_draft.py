"""``--draft``: a run in a folder of its own that the next one overwrites; marked, in no table."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError
from fedvlm.report.collect import collect
from fedvlm.runs import lock
from fedvlm.runs.claim import ClaimedFolder
from fedvlm.runs.folder import RunFolder
from fedvlm.runs.identity import RunPath
from tests import jobs

METHOD = """
from fedvlm.method import PeftTrainer


class Mine(PeftTrainer):
    name = "Mine"
"""
PARTS = RunPath("personal", "Shapes", 2, "Mine", "tiny", "iid", 1, 1, tag="draft")
Captured = pytest.CaptureFixture[str]


def run(tmp_path: Path, *more: str) -> int:
    spec = f"{tmp_path / 'mine.py'}:Mine"
    return jobs.run(tmp_path / "out", "--rounds", "1", "--trainer", spec, *more)


def test_a_draft_overwrites_the_last_one_and_no_table_takes_it(
    tmp_path: Path, capsys: Captured
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(METHOD)
    assert run(tmp_path, "--draft") == 0
    place = jobs.folder(tmp_path / "out")
    assert "Mine-draft" in place.parts
    digests = [json.loads((place / "manifest.json").read_text())["identity_digest"]]
    (place / "stray.txt").write_text("of the last draft")
    file.write_text(f"{METHOD}# another file, another identity\n")
    assert run(tmp_path, "--draft") == 0
    assert jobs.folder(tmp_path / "out") == place and not (place / "stray.txt").exists()
    manifest = json.loads((place / "manifest.json").read_text())
    results = json.loads((place / "results.json").read_text())
    assert manifest["draft"] is results["draft"] is True and len(manifest["sessions"]) == 1
    assert manifest["identity_digest"] != digests[0]
    assert "this is a draft" in " ".join(capsys.readouterr().out.split())
    assert run(tmp_path, "--draft") == 0  # a finished draft of the same identity runs again
    created = json.loads((place / "manifest.json").read_text())["created"]
    assert created >= manifest["created"] and len(jobs.records(tmp_path / "out")) == 2

    assert run(tmp_path) == 0
    file.write_text(f"{METHOD}# once more\n")
    capsys.readouterr()
    assert run(tmp_path) == 2
    told = capsys.readouterr().err
    assert "your file mine.py, or one that it imports, changed since the run began" in told
    assert "--draft runs it" in told and " -> " not in told
    shutil.rmtree(next((tmp_path / "out").rglob("Mine")))

    below = collect([tmp_path / "out"])
    assert below.runs == [] and "is a draft and left out" in below.problems[0]
    assert main(["table", str(tmp_path / "out")]) == 3
    (named,) = collect([place]).runs
    assert named.draft and named.method.endswith("(draft)")


def test_the_same_run_without_draft_has_its_own_folder_and_the_same_numbers(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text(METHOD)
    assert run(tmp_path, "--draft") == 0
    place = jobs.folder(tmp_path / "out")
    spec = f"{tmp_path / 'mine.py'}:Mine"
    assert jobs.run(tmp_path / "other", "--rounds", "1", "--trainer", spec) == 0
    whole = jobs.folder(tmp_path / "other")
    assert "Mine" in whole.parts
    assert jobs.records(tmp_path / "out") == jobs.records(tmp_path / "other")
    drafts, runs = (json.loads((p / "manifest.json").read_text()) for p in (place, whole))
    assert drafts["identity_digest"] == runs["identity_digest"] and not runs.get("draft")


def test_what_a_draft_does_not_go_with(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "mine.py").write_text(METHOD)
    assert run(tmp_path, "--tag", "draft") == 0  # a run that happens to have that tag
    place = jobs.folder(tmp_path / "out")
    before = {p.name: p.read_bytes() for p in place.iterdir() if p.is_file()}
    capsys.readouterr()
    assert run(tmp_path, "--draft") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "holds a finished or resumable run, which --draft would overwrite" in said
    assert {p.name: p.read_bytes() for p in place.iterdir() if p.is_file()} == before
    assert run(tmp_path, "--draft", "--resume", str(place)) == 2
    assert "a draft always starts again" in capsys.readouterr().err
    sweep = ["--trainers", "FedAvg", "--datasets", "shapes", "--draft", "--dry-run"]
    assert main(["sweep", *sweep, "--output-dir", str(tmp_path / "cells")]) == 2
    assert "not with sweeps" in capsys.readouterr().err


def test_a_run_refuses_the_folder_of_a_draft(tmp_path: Path) -> None:
    with RunFolder.claim(tmp_path, PARTS, {"a": 1}, draft=True) as draft:
        draft.begin()
    with pytest.raises(ConfigError, match="holds a draft run"):
        ClaimedFolder.create(tmp_path, PARTS, {"a": 1})


def test_a_draft_that_fails_before_it_begins_leaves_the_last_one(tmp_path: Path) -> None:
    first = RunFolder.claim(tmp_path, PARTS, {"a": 1}, draft=True)
    with first:
        first.begin()
        first.write_text("partition.csv", "first")
    with RunFolder.claim(tmp_path, PARTS, {"a": 2}, draft=True) as second:
        with pytest.raises(ConfigError):  # one at a time
            RunFolder.claim(tmp_path, PARTS, {"a": 3}, draft=True)
        assert (first.path / "partition.csv").read_text() == "first"
        second.begin()
        assert sorted(p.name for p in second.path.iterdir()) == [
            lock.NAME, "manifest.json", "private.json", "state",
        ]


def test_a_kill_while_a_draft_is_overwritten_leaves_a_draft_without_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunFolder.claim(tmp_path, PARTS, {"a": 1}, draft=True) as first:
        first.begin()
        first.write_results({}, {}, {"last": {}})
        for name in ("a.txt", "z.txt"):
            (first.path / name).write_text(name)
    unlink = Path.unlink

    def stop(path: Path, missing_ok: bool = False) -> None:
        if path.name == "z.txt":
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", stop)
    second = RunFolder.claim(tmp_path, PARTS, {"a": 2}, draft=True)
    with pytest.raises(KeyboardInterrupt), second:
        second.begin()
    monkeypatch.undo()
    left = {p.name for p in first.path.iterdir()} - {lock.NAME}
    assert left == {"manifest.json", "z.txt"}
    with RunFolder.claim(tmp_path, PARTS, {"a": 3}, draft=True) as third:
        third.begin()
        assert not (third.path / "z.txt").exists()
