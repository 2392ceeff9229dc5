"""A finished run, read from its folder: strictly, leniently, and what a draft says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedvlm.core.errors import DataError
from fedvlm.runs.finished import find_finished, read_finished
from fedvlm.runs.names import RESULTS, is_finished
from tests.report.table_runs import write_run

REPOSITORY = Path(__file__).resolve().parents[2]


def test_a_run_is_finished_with_its_results_only(tmp_path: Path) -> None:
    path = write_run(tmp_path, "FedAvg", last={"personal": 81.5})
    for run in (find_finished(path), read_finished(path)):
        assert run is not None and run.value("personal") == 81.5 and run.path == path
        assert run.method == "FedAvg" and not run.draft
    (path / RESULTS).unlink()
    assert find_finished(path) is None and read_finished(path) is None and not is_finished(path)


def test_damage_is_refused_by_one_and_no_run_for_the_other(tmp_path: Path) -> None:
    path = write_run(tmp_path, "FedAvg", last={"personal": 81.5})
    (path / RESULTS).write_text("{")
    assert is_finished(path) and find_finished(path) is None
    with pytest.raises(DataError, match="damaged or of another version"):
        read_finished(path)
    (path / RESULTS).write_text('{"format": 9}')
    with pytest.raises(DataError, match="has format 9, and .* up to 2: update fedvlm"):
        read_finished(path)
    (path / RESULTS).unlink()
    (path / RESULTS).mkdir()
    assert not is_finished(path)
    with pytest.raises(DataError, match="not a regular file"):
        read_finished(path)


def test_a_number_that_cannot_be_is_found_by_the_check(tmp_path: Path) -> None:
    path = write_run(tmp_path, "FedAvg", last={"personal": 181.5})
    run = find_finished(path)
    assert run is not None
    with pytest.raises(DataError, match="181.5: not a percentage"):
        run.check()


def test_a_draft_is_known_by_its_manifest(tmp_path: Path) -> None:
    path = write_run(tmp_path, "FedAvg", last={"personal": 81.5})
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"draft": True}))
    run = find_finished(path)
    assert run is not None and run.draft


def test_the_results_file_is_named_in_one_place() -> None:
    named = [
        path.relative_to(REPOSITORY).as_posix()
        for path in sorted((REPOSITORY / "fedvlm").rglob("*.py"))
        if f'"{RESULTS}"' in path.read_text(encoding="utf-8")
    ]
    assert named == ["fedvlm/runs/names.py"]
