"""The sweep at work: killed and resumed, failed and retried, two workers and one, bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fedvlm import run_lock
from fedvlm.cli import main
from fedvlm.cli_sweep_cells import Cell, cells_of
from fedvlm.cli_sweep_memo import Memo
from fedvlm.cli_sweep_words import plan_of, read_words
from fedvlm.models.backbone import load_backbone
from tests import jobs

PLAN = ["--trainers", "FedAvg", "FedPer", "--datasets", "digits", "--seeds", "1", "2", "--name",
        "small", "--backbone", "tiny", "--shots", "1", "--rounds", "2", "--local-epochs", "1",
        "--num-users", "2"]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)


def words(output: Path, *more: str) -> list[str]:
    return ["sweep", *PLAN, "--output-dir", str(output), *more]


def cells(output: Path) -> list[Cell]:
    return cells_of(plan_of(read_words(words(output)[1:])))


def journal(output: Path, name: str = "small") -> list[dict]:
    lines = (output / "sweeps" / name / "cells.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line]


def same(a: Path, b: Path) -> None:
    for left, right in zip(cells(a), cells(b), strict=True):
        jobs.same(left.folder, right.folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted sweep, one worker."""
    output = tmp_path_factory.mktemp("whole")
    assert main(words(output)) == 0
    return output


def test_a_cell_has_the_bits_of_a_single_run(whole: Path, tmp_path: Path) -> None:
    """Also the last cell, whose worker has kept backbone and data from the ones before."""
    last = cells(whole)[-1]
    assert main([*cells(tmp_path)[-1].words]) == 0
    alone = cells(tmp_path)[-1]
    assert alone.key == last.key and alone.folder != last.folder
    jobs.same(last.folder, alone.folder)
    counters = [
        [json.loads(line)["counters"] for line in (f / "metrics.jsonl").read_text().splitlines()]
        for f in (last.folder, alone.folder)
    ]
    assert counters[0] == counters[1]
    command = json.loads((last.folder / "manifest.json").read_text())["sessions"][0]["command"]
    assert command == last.command


def test_two_workers_give_the_bits_of_one(whole: Path, tmp_path: Path) -> None:
    assert main(words(tmp_path, "--jobs", "2")) == 0
    same(whole, tmp_path)


def test_a_finished_sweep_runs_nothing(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = journal(whole)
    assert [r["code"] for r in before] == [0] * 4
    assert all(r["seconds"] > 0 and r["peak_mib"] > 50 for r in before)
    assert main(words(whole)) == 0
    told = capsys.readouterr().out
    assert "4 done, 0 to run" in told and f"fedvlm table {whole}" in told
    assert journal(whole) == before
    assert main(words(whole, "--dry-run")) == 0
    assert "4 cells (4 done)" in capsys.readouterr().out


def test_other_settings_in_the_same_folders_are_refused(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(whole, "--lr", "0.5")) == 2
    assert "OPTIM.LR" in capsys.readouterr().err


def started(output: Path, *more: str) -> subprocess.Popen:
    code = (f"import sys; sys.path.insert(0, {str(jobs.REPOSITORY)!r})\n"
            "if __name__ == '__main__':\n    from fedvlm.cli import main\n"
            f"    sys.exit(main({words(output, *more)!r}))")
    script = output / "start.py"
    output.mkdir(parents=True, exist_ok=True)
    script.write_text(code)
    return subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )


def middle_of_second(output: Path) -> None:
    """Wait until one cell is done and the next has saved a round."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        done = list(output.rglob("results.json"))
        begun = [p for p in output.rglob("state/round_*.json")
                 if not (p.parents[1] / "results.json").exists()]
        if done and begun:
            return
        time.sleep(0.01)
    raise AssertionError("the sweep did not get to its second cell")


@pytest.mark.parametrize("how", [
    signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow),
])
def test_killed_in_the_middle_and_resumed(
    whole: Path, tmp_path: Path, how: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    process = started(tmp_path)
    middle_of_second(tmp_path)
    process.send_signal(how)
    _, told = process.communicate(timeout=120)
    assert process.returncode == (-signal.SIGKILL if how == signal.SIGKILL else 130)
    assert how == signal.SIGKILL or ("the same command goes on" in told)
    assert "Traceback" not in told
    finished = {c.key: (c.folder / "results.json").read_bytes() for c in cells(tmp_path)
                if (c.folder / "results.json").exists()}
    assert 1 <= len(finished) < 4
    assert main(words(tmp_path)) == 0
    same(whole, tmp_path)
    for cell in cells(tmp_path):
        if cell.key in finished:
            assert (cell.folder / "results.json").read_bytes() == finished[cell.key]
    assert "4 of 4 cells done" in capsys.readouterr().out


BAD = '''
import os, signal
from pathlib import Path
from fedvlm.errors import DataError
from fedvlm.federation.peft_trainer import PeftTrainer

class Bad(PeftTrainer):
    """Bad: fails while its file is there."""
    name = "Bad"

    def local(self, ctx, c, d):
        if Path("{folder}/raise").exists():
            raise ValueError("no luck today")
        if Path("{folder}/die").exists():
            Path("{folder}/die").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().local(ctx, c, d)
'''


def test_failures_do_not_end_the_sweep_and_are_retried_on_demand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.py").write_text(BAD.format(folder=tmp_path))
    (tmp_path / "raise").touch()
    asked = ["sweep", "--trainers", f"{tmp_path}/bad.py:Bad", "FedAvg", "--datasets", "digits",
             "--name", "bad", *PLAN[PLAN.index("--backbone"):],
             "--output-dir", str(tmp_path / "out")]
    assert main(asked) == 1
    told = capsys.readouterr().out
    assert "1 of 2 cells done" in told and "no luck today" in told and "--retry-failed" in told
    assert [r["code"] for r in journal(tmp_path / "out", "bad")] == [1, 0]
    assert main(asked) == 1  # skipped, still reported
    assert "no luck today" in capsys.readouterr().out
    assert len(journal(tmp_path / "out", "bad")) == 2

    (tmp_path / "raise").rename(tmp_path / "die")
    more = ["--seeds", "2", "1"]  # a new cell stands before the failed one
    assert main([*asked, *more, "--retry-failed"]) == 1
    told = capsys.readouterr().out
    assert "its worker was killed by SIGKILL" in told and "3 of 4 cells done" in told
    assert "no luck" not in told
    codes = [r["code"] for r in journal(tmp_path / "out", "bad")]
    assert codes == [1, 0, -9, 0, 0]  # the new Bad dies, a new worker does FedAvg and the old Bad


def test_a_cell_in_another_process_is_left_to_it(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = cells(tmp_path)[0].folder
    folder.mkdir(parents=True)
    lock = run_lock.acquire(folder)
    try:
        assert main(words(tmp_path, "--only", "0")) == 0
        assert "1 are being run by other processes" in capsys.readouterr().out
        assert main(words(tmp_path, "--list")) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[1].split()[1] == "running" and lines[2].split()[1:3] == ["to", "do"]
    finally:
        lock.release()
    assert main(words(tmp_path, "--only", "2-2")) == 0
    third = cells(tmp_path)[2]
    jobs.same(cells(whole)[2].folder, third.folder)
    assert len(list(tmp_path.rglob("results.json"))) == 1
    assert (tmp_path / "sweeps" / "small" / "cells-2.jsonl").exists()


def test_the_memo_keeps_the_backbone_and_notices_a_change(tmp_path: Path) -> None:
    from fedvlm.cli_config import resolve
    from fedvlm.cli_flags import parse

    cell = cells(tmp_path)[0]
    cfg = resolve(parse(cell.words[1:])).jobs[0].cfg
    memo, device = Memo(), torch.device("cpu")
    first = memo.backbone(cfg, device)
    assert memo.backbone(cfg, device) is first
    assert first.digest == load_backbone("tiny").digest
    assert memo.data(cfg, None) is memo.data(cfg, None)
    with torch.no_grad():
        next(iter(first.model.parameters())).add_(1.0)
    with pytest.raises(RuntimeError, match="changed the frozen weights"):
        memo.backbone(cfg, device)
    assert memo.backbone(cfg, device) is not first
