"""The sweep at work: bits of single runs, shared work, failures and retries, killed and resumed.

What a sweep does with its cells is shown without processes (``in_process``); real ones are in
``test_processes`` and in the tests of a killed sweep below.
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from fedvlm.cli.main import main
from fedvlm.cli.run.sweep import plan_of
from fedvlm.cli.verbs import verbs
from fedvlm.job import inputs as job_inputs
from fedvlm.job.inputs import Inputs, SharedInputs
from fedvlm.models.features import encode as store
from fedvlm.models.load.backbones import load_backbone
from fedvlm.runs import lock as run_lock
from fedvlm.runs.private import public_command, read_private
from fedvlm.sweep.cells import Cell, cells_of
from tests import jobs
from tests.sweep import in_process as workers

SWEEP = verbs()["sweep"].parser()
SMALL = ["--backbone", "tiny", "--shots", "1", "--rounds", "3", "--local-epochs", "1",
         "--num-users", "2"]
PLAN = ["--trainers", "FedAvg", "FedPer", "--datasets", "digits", "--seeds", "1", "2", "--name",
        "small", *SMALL]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", autouse=True)
def in_process(one_thread: None) -> Iterator[None]:
    """Sweeps that tests start by ``main`` need no processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedvlm.sweep.run.Processes", workers.processes)
        yield


def words(output: Path, *more: str) -> list[str]:
    return ["sweep", *PLAN, "--output-dir", str(output), *more]


def cells(output: Path) -> list[Cell]:
    return cells_of(plan_of(SWEEP.parse_args(words(output)[1:])))


def journal(output: Path, name: str = "small") -> list[dict]:
    lines = (output / "sweeps" / name / "cells.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line]


def same(a: Path, b: Path) -> None:
    for left, right in zip(cells(a), cells(b), strict=True):
        jobs.same(left.folder, right.folder)


@dataclass
class Whole:
    """An uninterrupted sweep of one worker, and what it did in its cells."""

    output: Path
    work: list[tuple[str, Counter[str]]]  # cell by cell: backbones loaded, data built, images


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    output, work = tmp_path_factory.mktemp("whole"), list[tuple[str, Counter[str]]]()

    def counted(name: str, call, size=lambda *a: 1):
        def wrapped(*args, **more):
            work[-1][1][name] += size(*args)
            return call(*args, **more)
        return wrapped

    def give(worker, cell, log):
        work.append((str(cell), Counter()))
        original(worker, cell, log)

    original = workers.InProcess.give
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDVLM_CACHE", str(tmp_path_factory.mktemp("cache")))  # nothing is known
        patch.setattr(job_inputs, "load_backbone", counted("backbones", job_inputs.load_backbone))
        patch.setattr(job_inputs, "build_federation", counted("data", job_inputs.build_federation))
        patch.setattr(store, "encode_padded", counted(
            "images", store.encode_padded, lambda backbone, pixels, size: len(pixels)))
        patch.setattr(workers.InProcess, "give", give)
        assert main(words(output)) == 0
    return Whole(output, work)


@pytest.fixture(scope="module")
def whole(swept: Whole) -> Path:
    return swept.output


def test_a_second_cell_loads_no_backbone_and_encodes_no_image(swept: Whole) -> None:
    (first, did), *others = swept.work
    assert first == "digits 1 FedAvg seed 1" and did["backbones"] == 1 and did["data"] == 1
    assert did["images"] > 20  # both clients' shots and the test set
    assert others[0] == ("digits 1 FedPer seed 1", Counter())
    # Another data seed: other shots and clients, the same backbone, the same test images.
    name, did = others[1]
    assert name == "digits 1 FedAvg seed 2" and did["backbones"] == 0 and did["data"] == 1
    assert 0 < did["images"] <= 20
    assert others[2] == ("digits 1 FedPer seed 2", Counter())


def test_a_cell_has_the_bits_of_a_single_run(whole: Path, tmp_path: Path) -> None:
    """The last cell, whose worker has kept backbone and data from the ones before."""
    last = cells(whole)[-1]
    alone = cells(tmp_path)[-1]
    assert main([*alone.words]) == 0
    assert alone.key == last.key and alone.folder != last.folder
    jobs.same(last.folder, alone.folder)
    counters = [
        [json.loads(line)["counters"] for line in (f / "metrics.jsonl").read_text().splitlines()]
        for f in (last.folder, alone.folder)
    ]
    assert counters[0] == counters[1]
    command = json.loads((last.folder / "manifest.json").read_text())["sessions"][0]["command"]
    assert read_private(last.folder)["sessions"][0]["command"] == "fedvlm " + shlex.join(last.words)
    assert command == public_command(["fedvlm", *last.words])


def test_a_run_made_by_a_single_command_is_a_cell_that_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*cells(tmp_path)[0].words]) == 0
    capsys.readouterr()
    assert main(words(tmp_path, "--dry-run")) == 0
    told = capsys.readouterr().out
    assert " with 1 job" in told and "1 jobs" not in told
    assert "1 done" in told and "to run   3" in told and "digits 1 FedAvg seed 1" not in told


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


def test_other_settings_in_the_same_folders_are_refused_once(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(whole, "--lr", "0.5")) == 2
    told = capsys.readouterr().err
    assert told.count("OPTIM.LR") == 1 and "(and 3 more cells alike)" in told


def started(output: Path, *more: str) -> subprocess.Popen:
    code = (f"import sys; sys.path.insert(0, {str(jobs.REPOSITORY)!r})\n"
            "if __name__ == '__main__':\n    from fedvlm.cli.main import main\n"
            f"    sys.exit(main({words(output, *more)!r}))")
    script = output / "start.py"
    output.mkdir(parents=True, exist_ok=True)
    script.write_text(code)
    return subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )


def middle(output: Path) -> None:
    """Wait until one cell is done and another has saved a round."""
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
def test_two_real_workers_killed_and_resumed_give_the_bits_of_one(
    whole: Path, tmp_path: Path, how: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    process = started(tmp_path, "--jobs", "2")
    middle(tmp_path)
    process.send_signal(how)
    _, told = process.communicate(timeout=120)
    assert process.returncode == (-signal.SIGKILL if how == signal.SIGKILL else 130)
    assert how == signal.SIGKILL or ("the same command resumes" in told)
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


@pytest.mark.slow
def test_two_workers_give_the_bits_of_one(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uninterrupted; the quick proof is the test above, whose first cells have two workers."""
    from fedvlm.sweep.processes import Processes

    monkeypatch.setattr("fedvlm.sweep.run.Processes", Processes)
    assert main(words(tmp_path, "--jobs", "2")) == 0
    same(whole, tmp_path)


BAD = '''
from pathlib import Path
from fedvlm.method import PeftTrainer

class Bad(PeftTrainer):
    """Bad: fails while its file is there."""
    name = "Bad"

    def client_update(self, ctx, state, received):
        if Path("{folder}/raise").exists():
            raise ValueError("no luck today")
        return super().client_update(ctx, state, received)
'''


def test_failures_do_not_end_the_sweep_and_are_retried_on_demand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.py").write_text(BAD.format(folder=tmp_path))
    (tmp_path / "raise").touch()
    asked = ["sweep", "--trainers", f"{tmp_path}/bad.py:Bad", "ZeroShot", "--datasets", "digits",
             "--name", "bad", *SMALL, "--output-dir", str(tmp_path / "out")]
    assert main(asked) == 1
    told = capsys.readouterr().out
    assert "1 of 2 cells done" in told and "no luck today" in told and "--retry-failed" in told
    lines = told.splitlines()  # of the data set's first cell before its end, of no other
    begun = [(at, line) for at, line in enumerate(lines) if "its images are encoded first" in line]
    ((at, line),) = begun
    assert line.startswith("digits 1 Bad seed 1 begins; ")
    assert "digits 1 Bad seed 1: failed" in lines[at + 1]
    assert Path(line.rpartition("progress: ")[2].removesuffix(")")).is_file()
    assert [r["code"] for r in journal(tmp_path / "out", "bad")] == [2, 0]
    assert main(asked) == 1  # skipped, still reported
    assert "no luck today" in capsys.readouterr().out
    assert len(journal(tmp_path / "out", "bad")) == 2

    (tmp_path / "raise").unlink()
    assert main([*asked, "--retry-failed"]) == 0
    assert "2 of 2 cells done" in capsys.readouterr().out
    assert [r["code"] for r in journal(tmp_path / "out", "bad")] == [2, 0, 0]


def test_a_cell_in_another_process_is_left_to_it(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = cells(tmp_path)[0].folder
    folder.mkdir(parents=True)
    lock = run_lock.acquire(folder)
    try:
        assert main(words(tmp_path, "--only", "0")) == 0
        assert "1 are running in other processes" in capsys.readouterr().out
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


def test_a_second_sweep_of_that_name_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sweeps" / "small"
    folder.mkdir(parents=True)
    lock = run_lock.acquire(folder)
    try:
        assert main(words(tmp_path)) == 2
        told = capsys.readouterr().err
        assert str(folder) in told and "--name" in told and "--tag" not in told
    finally:
        lock.release()
    assert not list(tmp_path.rglob("manifest.json"))


def test_shared_inputs_keep_the_backbone_and_notices_a_change(tmp_path: Path) -> None:
    from fedvlm.job.flags import parse
    from fedvlm.job.resolve import resolve

    cell = cells(tmp_path)[0]
    cfg = resolve(parse(cell.words[1:])).jobs[0].cfg
    inputs, device = SharedInputs(), torch.device("cpu")
    first = inputs.backbone(cfg, device)
    assert inputs.backbone(cfg, device) is first
    assert first.digest == load_backbone("tiny").digest
    assert inputs.data(cfg, None) is inputs.data(cfg, None)
    cfg.defrost()
    cfg.DATA_SEED = 2  # the set's lists are read once, and each seed has its own draw
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_inputs, "load_for_training", None)
        other = inputs.data(cfg, None)
    alone = Inputs().data(cfg, None)
    assert (other.split_digest, other.notes) == (alone.split_digest, alone.notes)
    assert [list(c.train) for c in other.clients] == [list(c.train) for c in alone.clients]
    cfg.DATASET.JOIN_TEST = 0.3  # which the seed draws
    joined = inputs.data(cfg, None).split_digest
    cfg.DATA_SEED = 1
    assert inputs.data(cfg, None).split_digest == Inputs().data(cfg, None).split_digest != joined
    cfg.DATASET.JOIN_TEST, cfg.DATASET.TEST_SHARE = 0.0, 0.3  # so is this part of folders
    assert inputs._known(cfg) is None
    with torch.no_grad():
        next(iter(first.model.parameters())).add_(1.0)
    with pytest.raises(RuntimeError, match="changed the frozen weights"):
        inputs.backbone(cfg, device)
    assert inputs.backbone(cfg, device) is not first
