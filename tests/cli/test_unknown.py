"""A wrong word gets the nearest thing and the command that does what was wanted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedvlm.cli import main as cli
from fedvlm.console.nearest import nearest_path


def sentence(capsys: pytest.CaptureFixture[str], words: list[str], code: int = 2) -> str:
    """Return the one message of a command that fails with ``code``."""
    assert cli.main(words) == code
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one finished and one stopped run, and a sweep's journal; the current one."""
    finished = tmp_path / "output/personal/Digits/shots_16/FedAvg/tiny/disjoint/seed1-data1"
    finished.mkdir(parents=True)
    (finished / "results.json").write_text("{}")
    (finished / "manifest.json").write_text(json.dumps({"command": "fedvlm --demo"}))
    stopped = tmp_path / "output/half"
    stopped.mkdir()
    (stopped / "manifest.json").write_text(json.dumps({"command": "fedvlm --demo --seed 2"}))
    (tmp_path / "output/sweeps/one").mkdir(parents=True)
    (tmp_path / "output/sweeps/one/plan.yaml").write_text("{}")
    (tmp_path / "mine.yaml").write_text("OPTIM: {LR: 1}")
    (tmp_path / "my.py").write_text("x = 1")
    monkeypatch.chdir(tmp_path)
    return finished


@pytest.mark.parametrize(("word", "told"), [
    ("tabel", "did you mean 'table'?"), ("trian", "did you mean 'run'?"),
    ("train", "did you mean 'run'?"), ("trainers", "did you mean 'list'?"),
    ("plot", "did you mean 'figures'?"), ("datasets", "did you mean 'data'?"),
    ("settings", "did you mean 'config'?"), ("FedTv", "a method: fedvlm list fedtv"),
    ("eurosat", "a data set: --dataset eurosat"), ("pets", "--dataset oxford_pets"),
    ("mine.yaml", "--dataset-config-file mine.yaml"), ("my.py", "fedvlm check my.py"),
    ("output", "fedvlm table output for runs"), ("optim.lr", "in capitals: OPTIM.LR VALUE"),
    ("qqqqqq", "unknown command 'qqqqqq' (known: run, advise, reproduce, sweep,"),
])
def test_unknown_verbs(
    word: str, told: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in sentence(capsys, [word])


def test_a_run_folder_as_a_verb(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = sentence(capsys, [str(runs)])
    assert f"a finished run: fedvlm show {runs}, fedvlm report {runs}" in told


@pytest.mark.parametrize(("words", "told"), [
    (["list", "eurosat"], "fedvlm data list"), (["list", "datasets"], "fedvlm data list"),
    (["list", "sweep"], "fedvlm help lists them"), (["list", "fedtvv"], "did you mean 'fedtv'?"),
    (["--demo", "fedtv"], "'fedtv' is a method: --trainer fedtv"),
    (["--rounds", "2", "eurosat"], "'eurosat' is a data set: --dataset eurosat"),
    (["--demo", "mine.yaml"], "--dataset-config-file mine.yaml"),
    (["--demo", "my.py"], "a Python file: --trainer my.py"),
    (["--demo", "output"], "--output-dir output for runs"),
    (["--demo", "--trainer", "eurosat"], "is a data set: --dataset eurosat"),
    (["--dataset", "ditto"], "is a method: --trainer ditto"),
    (["sweep", "other.yml"], "no plan 'other.yml'"),
    (["config", "OPTIM.LX"], "did you mean 'OPTIM.LR'?"),
    (["help", "trian"], "did you mean 'run'?"),
])
def test_a_word_in_the_wrong_place(
    words: list[str], told: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in sentence(capsys, words)


def test_list_trainers_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    whole = capsys.readouterr().out
    for word in ("trainers", "methods", "all"):
        assert cli.main(["list", word]) == 0
        assert capsys.readouterr().out == whole


def test_folders_that_hold_no_results(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = sentence(capsys, ["show", "output"], 3)
    short = runs.relative_to(Path.cwd())
    assert f"a run below it: fedvlm show {short}, or fedvlm table output" in told
    told = sentence(capsys, ["show", "output/half"], 3)
    assert "is the run finished?; to resume it: fedvlm --demo --seed 2" in told
    told = sentence(capsys, ["show", "output/sweeps/one"], 3)
    assert "a sweep's journal: fedvlm table output" in told
    for verb in ("table", "figures", "report"):
        told = sentence(capsys, [verb, "output/sweeps/one"], 3)
        assert "give the OUTPUT_DIR of the sweep, output" in told
        assert "1 unfinished, first output/half" in sentence(capsys, [verb, "output/half"], 3)


def test_folders_that_do_not_exist(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("show", "table", "figures", "report"):
        assert "did you mean 'output/half'?" in sentence(capsys, [verb, "outptu/half"], 3)
    assert "did you mean 'output/half'?" in sentence(capsys, ["compare", "output/halv", "x"], 3)
    file = runs / "results.json"
    assert f"did you mean its folder, '{runs}'?" in sentence(capsys, ["show", str(file)], 3)


def test_a_run_folder_where_the_folder_of_all_runs_is_wanted(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = str(runs.relative_to(Path.cwd()))
    told = sentence(capsys, ["--demo", "--output-dir", short])
    assert f"{short} is a run folder" in told
    assert "give output, or --resume" in told


def test_nearest_path(runs: Path) -> None:
    assert nearest_path(Path("output/sweps/one")) == "; did you mean 'output/sweeps/one'?"
    assert nearest_path(Path("output/sweps/two")) == "; did you mean 'output/sweeps'?"
    assert nearest_path(Path("output/qq")) == "; the nearest existing folder is output"
    assert nearest_path(Path("qq")) == nearest_path(Path("/qq")) == ""
    assert nearest_path(Path("outputs").absolute()).endswith(f"'{Path('output').absolute()}'?")
    assert nearest_path(Path("mine.yaml/x/y")) == ""
