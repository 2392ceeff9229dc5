"""``show``: the numbers of a run, or what is there instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedvlm.cli import main as cli
from fedvlm.runs.verify.answer import answer_lines
from tests.report.table_runs import write_run


def test_show_prints_results_or_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["show", str(tmp_path)]) == 3
    assert "is the run finished?" in capsys.readouterr().err
    (tmp_path / "results.json").write_text("{")
    assert cli.main(["show", str(tmp_path)]) == 3
    (tmp_path / "results.json").write_text(json.dumps({"personal": {"accuracy": 81.2, "all": [1]}}))
    assert cli.main(["show", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "personal.accuracy 81.2" in said.out and "no checksum" in said.err


def test_show_ends_with_the_runs_answer(
    quick_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder,) = (path.parent for path in quick_run.rglob("results.json"))
    told = json.loads((folder / "results.json").read_text())["results"]
    assert cli.main(["show", str(folder)]) == 0
    said = capsys.readouterr().out.splitlines()
    answer = answer_lines(told, "FedTV")
    assert said[-len(answer):] == answer and "each client alone" in answer[1]


@pytest.mark.parametrize("sections", [
    {}, {"references": {"chance": {"personal": 10.0}}}])
def test_show_of_a_run_whose_baselines_say_too_little_has_no_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sections: dict[str, object]
) -> None:
    path = write_run(tmp_path, "FedAvg", last={"personal": 81.5}, sections=sections)
    assert cli.main(["show", str(path)]) == 0
    said = capsys.readouterr().out
    assert "personal 81.5" in said and "ederation pays" not in said and "alone" not in said


@pytest.mark.parametrize(("key", "value"), [("format", 9), ("format", None), ("protocol", 3)])
def test_numbers_whose_seal_cannot_be_checked_are_not_shown(
    key: str, value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_run(tmp_path, "FedAvg", last={"personal": 81.5})
    results = json.loads((path / "results.json").read_text())
    (path / "results.json").write_text(json.dumps(results | {key: value}))
    assert cli.main(["show", str(path)]) == 3
    said = capsys.readouterr()
    assert not said.out and ("update fedvlm" in said.err if value == 9 else "damaged" in said.err)


@pytest.mark.parametrize("verb", ["forget", "audit"])
def test_damaged_results_are_not_taken_for_an_unfinished_run(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_run(tmp_path, "FedAvg", last={"personal": 81.5})
    (path / "results.json").write_text('{"format": 2, ')
    assert cli.main([verb, str(path), *(["--client", "0"] if verb == "forget" else [])]) == 3
    said = capsys.readouterr().err
    assert "results.json is damaged" in said and "finish" not in said
