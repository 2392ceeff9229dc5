"""``fedvlm verify``: a line per run, exit code 3 where one is damaged; readers leave it out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedvlm.api.frames import _rounds
from fedvlm.cli.main import main
from fedvlm.core.errors import DataError
from fedvlm.report.collect import collect
from fedvlm.runs.cells import pack_runs
from fedvlm.runs.folder import RunFolder
from fedvlm.runs.identity import RunPath
from tests.report.table_runs import write_run

Capture = pytest.CaptureFixture[str]


def sealed(root: Path, seed: int = 1, value: float = 50.0) -> Path:
    """Write a sealed run of two rounds without clients' rows."""
    parts = RunPath("personal", "Pets", 16, "FedAvg", "tiny", "iid-K2-f1", seed, seed)
    with RunFolder.create(root, parts, {"config": {"SEED": seed}}) as run:
        for round_ in range(2):
            run.append_metrics({"round": round_, "personal": value})
        protocol = {"trainer": "FedAvg", "dataset": "Pets", "seed": seed, "data_seed": seed}
        run.write_results({}, protocol, {"last": {"round": 1, "personal": value}})
    return run.path


def test_a_line_per_run_and_what_is_wrong(tmp_path: Path, capsys: Capture) -> None:
    good, bad = sealed(tmp_path / "a"), sealed(tmp_path / "b", seed=2)
    old = write_run(tmp_path / "c", "A", last={"personal": 2.0})
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "manifest.json").write_text("{}")
    results = bad / "results.json"
    results.write_text(results.read_text().replace('"personal": 50.0', '"personal": 924.0'))
    assert main(["verify", str(good)]) == 0
    assert main(["verify", str(tmp_path)]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == lines[1] == f"ok         {good}"
    assert lines[2] == f"damaged    {bad}: results.json is damaged (its checksum does not match)"
    assert lines[3].startswith(f"damaged    {old}: manifest.json is damaged (its identity")
    assert lines[4].startswith("damaged") and "manifest.json is not readable" in lines[4]
    assert lines[5] == "4 runs: 1 ok, 3 damaged"


def test_an_odd_folder_is_one_line_and_the_others_are_checked(
    tmp_path: Path, capsys: Capture
) -> None:
    good, pipe, folder = (sealed(tmp_path / name, i) for i, name in enumerate("abc"))
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").mkdir()
    os.mkfifo(pipe / "log.txt")
    name = tmp_path / "d\x1b[31m"
    sealed(name, 5)
    assert main(["verify", str(tmp_path)]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"ok         {good}"
    assert lines[1] == f"damaged    {pipe}: log.txt is not a regular file; remove it"
    assert lines[2] == f"damaged    {folder}: metrics.jsonl is a folder, not a file"
    assert lines[3].startswith(f"ok         {tmp_path}/d\\x1b[31m/")
    seen = collect([tmp_path])
    assert len(seen.runs) == 2 and len(seen.problems) == 2
    (pipe / "results.json").unlink()
    os.mkfifo(pipe / "results.json")
    assert len(collect([tmp_path]).problems) == 2 and main(["table", str(tmp_path)]) == 0


def test_runs_of_a_pack_are_named_by_it(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDVLM_CACHE", str(tmp_path / "cache"))
    run = sealed(tmp_path / "out")
    (run / "config.yaml").touch()
    path = tmp_path / "lane.cells.xz"
    pack_runs([("some/run", run)], path)
    main(["verify", str(path)])
    told = capsys.readouterr().out
    assert f" {path}/some/run: " in told and str(tmp_path / "cache") not in told


def test_every_reader_leaves_it_out_and_names_it(tmp_path: Path, capsys: Capture) -> None:
    good, bad = sealed(tmp_path), sealed(tmp_path, seed=2)
    metrics = bad / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace("50.0", "77.0", 1))
    seen = collect([tmp_path])
    assert [run.path for run in seen.runs] == [good] and seen.runs[0].seal == "sealed"
    assert seen.bare() == [] and f"{bad}: metrics.jsonl: line 1 is damaged" in seen.notes()[0]
    assert main(["show", str(good), str(bad)]) == 3
    told = capsys.readouterr()
    assert "results.last.personal 50.0" in told.out and "line 1 is damaged" in told.err
    assert main(["compare", str(good), str(bad)]) == 3
    assert "metrics.jsonl: line 1 is damaged" in capsys.readouterr().err
    with pytest.raises(DataError, match="line 1 is damaged"):
        _rounds(bad)


def test_runs_of_before_are_counted(tmp_path: Path, capsys: Capture) -> None:
    sealed(tmp_path)
    old = write_run(tmp_path / "old", "A", seed=2, last={"personal": 2.0})
    seen = collect([tmp_path])
    assert sorted(run.seal for run in seen.runs) == ["sealed", "unsealed"]
    (note,) = seen.notes()
    assert note.startswith("1 of 2 run(s) have no checksum (made by") and str(old) in note
    assert main(["show", str(old)]) == 0
    assert "no checksum (made by" in capsys.readouterr().err


def test_one_identity_of_two_seeds_is_no_run(tmp_path: Path) -> None:
    for seed in (1, 2):
        path = write_run(tmp_path, "A", seed=1, last={"personal": 2.0}, folder=f"copy{seed}")
        if seed == 2:
            results = path / "results.json"
            results.write_text(results.read_text().replace('"seed": 1', '"seed": 2'))
            (path / "manifest.json").unlink()
    seen = collect([tmp_path])
    assert seen.runs == [] and "the same identity digest has seed" in seen.problems[0]


@pytest.mark.parametrize(("words", "code", "told"), [
    (["nowhere"], 3, "is not a folder that contains runs"), (["EMPTY"], 3, "no run below"),
    (["EMPTY", "--root", "x"], 2, "--root needs --replay N"),
    (["EMPTY", "--trust-code", "x"], 2, "need --replay N"),
])  # fmt: skip
def test_mistakes_are_one_sentence(
    tmp_path: Path, capsys: Capture, words: list[str], code: int, told: str
) -> None:
    (tmp_path / "EMPTY").mkdir()
    assert main(["verify", str(tmp_path / words[0]), *words[1:]]) == code
    assert told in capsys.readouterr().err
