"""``fedvlm figures`` on runs of the real main job."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest

from fedvlm.cli.main import main
from tests import jobs


@pytest.fixture(scope="module")
def runs(quick_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of a run of two rounds."""
    output = tmp_path_factory.mktemp("runs")
    shutil.copytree(quick_run, output, dirs_exist_ok=True)  # the first seed's
    assert jobs.run(output, "--seeds", "1", "2") == 0
    return output


def names(folder: Path) -> set[str]:
    kinds = {p.suffix for p in folder.iterdir()}
    assert kinds == {".pdf", ".png", ".svg", ".csv"}
    found = {p.stem for p in folder.iterdir()}
    assert len(list(folder.iterdir())) == 4 * len(found)
    return found


def test_one_run(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = sorted(p.parent for p in runs.rglob("results.json"))[0]
    assert main(["figures", str(folder), "--into", str(tmp_path / "new"), "--column"]) == 0
    assert names(tmp_path / "new") == {
        "convergence", "traffic", "partition", "clients", "similarity", "similarity_to_global",
    }
    said = capsys.readouterr()
    assert "few_shot: the runs of no dataset differ in shots" in said.err
    assert "partition.pdf .png .svg .csv" in said.out
    drawn = list(csv.DictReader((tmp_path / "new" / "clients.csv").open()))
    known = {(c["client"], r["round"]): c["accuracy"] for r in _records(folder)
             for c in r["clients"]}
    assert {(int(r["client"]), int(r["round"])): float(r["accuracy"]) for r in drawn} == known


def test_several_runs(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figures", str(runs), "--into", str(tmp_path / "new"), "--metric", "global"]) == 0
    assert names(tmp_path / "new") == {"convergence", "traffic", "forest", "pareto"}
    assert "of one run" in capsys.readouterr().err
    rows = list(csv.DictReader((tmp_path / "new" / "convergence.csv").open()))
    folders = sorted(p.parent for p in runs.rglob("results.json"))
    last = [_records(folder)[-1]["global"] for folder in folders]
    assert float(rows[-1]["mean"]) == pytest.approx(sum(last) / 2)
    assert rows[-1]["seeds"] == "2"


def test_every_run_has_a_picture_of_its_partition(runs: Path) -> None:
    for results in runs.rglob("results.json"):
        svg = (results.parent / "partition.svg").read_text()
        assert (results.parent / "partition.png").stat().st_size > 1000
        assert "training images" in svg


@pytest.mark.parametrize(("words", "code", "said"), [
    (["/nope"], 3, "not a folder"),
    (["."], 3, "no finished run"),
    (["RUNS", "--width", "5", "--column"], 2, "drop one of them"),
    (["RUNS", "--metric", "globl"], 2, "did you mean 'global'"),
])
def test_mistakes_are_one_sentence(
    words: list[str], code: int, said: str, runs: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["figures", *(str(runs) if w == "RUNS" else w for w in words)]) == code
    err = capsys.readouterr().err
    assert said in err and len(err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def _records(folder: Path) -> list[dict]:
    from fedvlm.runs.metrics import read_metrics

    return read_metrics(folder / "metrics.jsonl")[0]
