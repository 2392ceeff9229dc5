"""A sweep in a queue: submitted once, watched, preempted, timed out, found again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from fedvlm.cli.main import main
from fedvlm.cli.run.sweep import plan_of
from fedvlm.cli.verbs import verbs
from fedvlm.core import files, signals
from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.sweep.cells import Cell, cells_of
from fedvlm.sweep.jobs import QueuedJobs
from fedvlm.sweep.queue import (
    PENDING,
    RUNNING,
    JobQueue,
    Resources,
    minutes_of,
    open_queue,
    read_resources,
)
from fedvlm.sweep.run import Sweep
from fedvlm.sweep.state import FAILED, CellState, Journal
from fedvlm.sweep.task import Task
from fedvlm.sweep.worker import INTERRUPTED, Outcome
from tests import jobs
from tests.sweep import in_process as workers

SWEEP = verbs()["sweep"].parser()
PLAN = ["--trainers", "FedAvg", "FedPer", "--datasets", "digits", "--name", "q", "--backbone",
        "tiny", "--shots", "1", "--rounds", "1", "--local-epochs", "1", "--num-users", "2",
        "TEST.REFERENCES", "False"]
Turn = Callable[["Queue"], None]


class Queue:
    """A batch system of the test's: ``turns`` are what happens before each look."""

    name, stays = "slurm", True

    def __init__(self, first: int, *turns: Turn, ends: str = "") -> None:
        self.first, self.turns, self.ends, self.looks = first, list(turns), ends, 0
        self.here, self.tasks = dict[str, str](), dict[str, Task]()
        self.marks = dict[str, list[str]]()

    def submit(self, tasks: Sequence[Task], mark: str) -> list[str]:
        ids = [f"{self.first}_{i}" for i in range(len(tasks))]
        self.tasks |= dict(zip(ids, tasks, strict=True))
        self.here |= dict.fromkeys(ids, PENDING)
        self.marks[mark] = ids
        return ids

    def marked(self, mark: str) -> dict[int, str] | None:
        ids = self.marks.get(mark, [])
        return None if "down" in self.here else {
            int(job[-1]): job for job in ids if job in self.here}

    def states(self) -> dict[str, str] | None:
        self.looks += 1
        assert self.looks < 40, "a job is waited for that is not there any more"
        if self.turns:
            self.turns.pop(0)(self)
        return None if "down" in self.here else dict(self.here)

    def end_of(self, job: str) -> str:
        return self.ends

    def cancel(self, jobs: Iterable[str]) -> None:
        raise AssertionError("jobs of a queue that stays are nobody's to end")


def as_queue(queue: Queue) -> JobQueue:
    return cast("JobQueue", queue)


def to(job: str, state: str) -> Turn:
    return lambda queue: queue.here.update({job: state})


def gone(job: str) -> Turn:
    return lambda queue: queue.here.pop(job, None) and None


def done(job: str) -> Turn:
    def turn(queue: Queue) -> None:
        queue.tasks[job]()
        del queue.here[job]

    return turn


def nothing(queue: Queue) -> None:
    """Nothing happens."""


def stop(queue: Queue) -> None:
    raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedvlm.sweep.task.Processes", workers.processes)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[Cell], Path]:
    output = tmp_path_factory.mktemp("queue")
    args = SWEEP.parse_args([*PLAN[:-2], "--output-dir", str(output), *PLAN[-2:]])
    plan = plan_of(args)
    return plan, cells_of(plan), output


def test_one_cause_of_several_cells_is_told_once(
    plan: tuple[Any, list[Cell], Path], capsys: pytest.CaptureFixture
) -> None:
    sweep = Sweep(plan[0], plan[1], 1)
    sweep.states |= {c.number: CellState(FAILED, "no tower") for c in plan[1][:2]}
    assert sweep.conclude() == 1
    told = capsys.readouterr().out
    assert told.count("no tower") == 1 and f"failed: {plan[1][0]}, {plan[1][1]}: no tower" in told


def launch(plan: tuple[Any, list[Cell], Path], queue: Queue, *, retry: bool = False, **more: Any
           ) -> int:
    sweep = Sweep(plan[0], plan[1], 1)
    sweep.journal.prepare(sweep.plan.content())
    return QueuedJobs(sweep, as_queue(queue), Resources(), poll=0.0, **more).run(retry)


def test_from_the_queue_to_results(
    plan: tuple[Any, list[Cell], Path], capsys: pytest.CaptureFixture
) -> None:
    # Left while both wait; found again; one preempted and done, one cancelled; then the rest.
    told = "2 jobs stay in the queue.* scancel 7 cancels them"
    with pytest.raises(KeyboardInterrupt, match=told):
        launch(plan, Queue(7, nothing, stop))
    again = Queue(
        8, nothing, to("7_0", RUNNING), to("7_0", PENDING), to("down", ""), gone("down"),
        to("7_0", RUNNING), done("7_0"), gone("7_1"), ends="CANCELLED by 0",
    )
    again.here = {"7_0": PENDING, "7_1": PENDING, "6_0": RUNNING}
    again.tasks = {"7_0": Task("q", plan[2], (plan[1][0],))}
    capsys.readouterr()
    assert launch(plan, again) == 1 and "8_0" not in again.tasks
    said = capsys.readouterr().out
    assert "0 to run in 0 slurm jobs, 2 jobs are in the queue already" in said
    for words in ("slurm jobs: 1 pending, 1 running", "slurm does not answer; the jobs continue",
                  "1/2 digits FedAvg seed 1: personal", "digits FedPer seed 1: its slurm job 7_1 "
                  "ended: CANCELLED by 0", "1 returned by the queue", "1 of 2 cells done"):
        assert words in said.replace("digits 1 ", "digits "), words
    assert launch(plan, Queue(9, to("9_0", RUNNING), done("9_0"))) == 0
    assert "2 of 2 cells done" in capsys.readouterr().out
    assert launch(plan, Queue(10)) == 0  # nothing is submitted
    assert [row["job"] for row in lines_of(plan[2]) if "job" in row] == ["7_0", "7_1", "9_0"]


def lines_of(output: Path) -> list[dict[str, Any]]:
    path = output / "sweeps" / "q" / "submitted.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_kill_between_the_queue_and_its_lines_loses_no_job(
    tmp_path: Path, plan: tuple[Any, list[Cell], Path], capsys: pytest.CaptureFixture
) -> None:
    """One of both lines was written, half of the other; one job has ended without a word."""
    other = (plan[0], [replace(c, output=tmp_path) for c in plan[1]], tmp_path)
    queue = Queue(7, stop)
    with pytest.raises(KeyboardInterrupt):
        launch(other, queue)
    path = tmp_path / "sweeps" / "q" / "submitted.jsonl"
    intent, first, second = path.read_text().splitlines(keepends=True)
    assert json.loads(intent)["mark"] == json.loads(first)["mark"] == next(iter(queue.marks))
    for text in (intent, intent + first + second[:20]):
        path.write_text(text)
        queue.turns = [nothing, stop, nothing, stop]
        for sentence in (True, False):
            with pytest.raises(KeyboardInterrupt, match="2 jobs stay in the queue"):
                launch(other, queue)
            said = capsys.readouterr().out
            assert ("2 jobs of an interrupted submission were found in the "
                    "queue" in said) == sentence
    path.write_text(intent)
    del queue.here["7_1"]
    queue.turns, queue.first = [nothing, stop], 8
    with pytest.raises(KeyboardInterrupt, match="2 jobs stay in the queue"):
        launch(other, queue)
    assert [row["job"] for row in lines_of(tmp_path) if "job" in row] == ["7_0", "8_0"]
    path.write_text(intent)
    queue.here = {"down": ""}
    with pytest.raises(FedvlmError, match="squeue failed"):
        launch(other, queue)


def test_a_stop_while_jobs_are_submitted_loses_none(
    tmp_path: Path, plan: tuple[Any, list[Cell], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = (plan[0], [replace(c, output=tmp_path) for c in plan[1]], tmp_path)
    append, lines = files.append_line, list[str]()

    class Stopped(Queue):
        def submit(self, tasks: Sequence[Task], mark: str) -> list[str]:
            ids = super().submit(tasks, mark)
            signals._stop(signal.SIGINT, None)  # sbatch has the jobs; nothing is written yet
            # the terminal tells sbatch as well
            subprocess.run(["sh", "-c", "kill -INT $$; exit 0"], check=True)
            return ids

    def note(path: Path, line: str) -> None:
        lines.append(line)
        append(path, line)

    monkeypatch.setattr(files, "append_line", note)
    with pytest.raises(KeyboardInterrupt, match="2 jobs stay in the queue"):
        launch(other, Stopped(7))
    _, line = lines  # what is meant; then both jobs or none
    assert [json.loads(row)["job"] for row in line.splitlines()] == ["7_0", "7_1"]


def test_a_failed_cell_is_tried_again_though_its_job_goes_on_with_another(
    tmp_path: Path, plan: tuple[Any, list[Cell], Path]
) -> None:
    """What failed before the job was submitted still lies in it."""
    cells = [replace(c, output=tmp_path) for c in plan[1]]
    journal = Journal(tmp_path, "q")
    journal.prepare({})
    row = {"job": "7_0", "launch": "slurm", "submitted": "2026-01-02T00:00:00Z",
           "cells": [(c.key, c.digest) for c in cells]}
    (journal.folder / "submitted.jsonl").write_text(json.dumps(row) + "\n")
    for ended, waiting, live in (("01T00:00:00Z", 0, [2]), ("02T00:01:00Z", 1, [1])):
        attempt = {"cell": cells[0].key, "config": cells[0].digest, "code": 1, "seconds": 1.0,
                   "sentence": "no", "ended": f"2026-01-{ended}"}
        journal.path.write_text(json.dumps(attempt) + "\n")
        queue = Queue(8)
        queue.here = {"7_0": RUNNING}
        launched = QueuedJobs(Sweep(plan[0], cells, 1), as_queue(queue), Resources())
        rest = launched.find(retry=True)
        assert len(rest) == waiting and [len(s.cells) for s in launched.live] == live
    assert rest == cells[:1]


def test_a_job_out_of_time_fails_its_cells_with_a_hint(
    tmp_path: Path, plan: tuple[Any, list[Cell], Path], capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = (plan[0], [replace(c, output=tmp_path) for c in plan[1]], tmp_path)
    end = "Job not requeued because: reached its time limit too often."
    both = Queue(3, to("3_0", RUNNING), gone("3_0"), ends=end)
    assert launch(other, both, chunk=2) == 1 and list(both.tasks) == ["3_0"]
    said = f"its slurm job 3_0 ended: {end} (raise --slurm-time or --slurm-requeues)"
    assert capsys.readouterr().out.count(said) == 3  # each cell, and once for both at the end
    untouched = Queue(4)
    assert launch(other, untouched) == 1 and not untouched.tasks  # failed cells wait for a word
    retried = Queue(5, nothing, gone("5_0"), gone("5_1"), ends="OUT_OF_MEMORY")
    assert launch(other, retried, retry=True) == 1
    assert "OUT_OF_MEMORY (raise --slurm-mem)" in capsys.readouterr().out
    down = Queue(6)
    down.here = {"down": ""}
    with pytest.raises(FedvlmError, match="two jobs may run the same cell"):
        launch(other, down, retry=True)


def test_a_job_that_leaves_a_damaged_folder_fails_its_cell_alone(
    tmp_path: Path, plan: tuple[Any, list[Cell], Path], capsys: pytest.CaptureFixture
) -> None:
    """A node that dies may leave half a run; the others are still watched."""
    cell = replace(plan[1][0], output=tmp_path)

    def tear(queue: Queue) -> None:
        cell.folder.mkdir(parents=True)
        (cell.folder / "log.txt").touch()
        gone("3_0")(queue)

    assert launch((plan[0], [cell], tmp_path), Queue(3, tear, ends="FAILED")) == 1
    assert "its slurm job 3_0 ended: FAILED" in capsys.readouterr().out


def test_a_warned_task_stops_its_worker_and_comes_back_with_the_rest(
    tmp_path: Path, plan: tuple[Any, list[Cell], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    first, second = (replace(c, output=tmp_path) for c in plan[1])
    log = list[str]()

    class Workers:
        def __init__(self, count: int, **how: Any) -> None:
            assert count == 1 and how == {"threads": 2, "timeout": 9}

        def stop(self) -> None:
            log.append("stopped")

    class Stopping:
        """Ends the first cell; a warning comes during the second."""

        def __init__(self, workers: Workers, journal: Journal, watcher: Task) -> None:
            self.watcher = watcher

        def run(self, cells: list[Cell]) -> None:
            log.append(f"{len(cells)} cells")
            self.watcher.ended(cells[0], Outcome(0, "", 1.0))
            log.append(str(len(self.watcher.checkpoint().function.cells)))
            self.watcher.ended(second, Outcome(INTERRUPTED, "", 1.0))

    monkeypatch.setattr("fedvlm.sweep.task.Processes", Workers)
    monkeypatch.setattr("fedvlm.sweep.task.Scheduler", Stopping)
    Journal(tmp_path, "q").prepare({})
    task = Task("q", tmp_path, (first, second), 2, 9, patience=0.0)
    with pytest.raises(FedvlmError, match="stopped by a signal and not restarted"):
        task()
    assert log == ["2 cells", "stopped", "1"]


@pytest.mark.parametrize(("word", "minutes"), [
    ("", 60), ("90", 90), ("90:30", 91), ("1:30:00", 90), ("2-12", 3600), ("1-0:30", 1470),
])
def test_times_are_sbatchs(word: str, minutes: int) -> None:
    assert minutes_of(word) == minutes


def test_what_sbatch_would_not_understand_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    for words, said in (
        ({"time": "soon"}, "--slurm-time expects a time such as 1:00:00"),
        ({"time": "1"}, "allow at least 3 minutes"), ({"memory": "much"}, "--slurm-mem expects"),
        ({"options": ["a b"]}, "--slurm-option expects an option such as gres=gpu:1"),
        ({"options": ["job-name=x"]}, "jobs are named after the sweep; use --name"),
    ):
        with pytest.raises(ConfigError, match=said):
            read_resources(**words)  # type: ignore[arg-type]
    assert read_resources(options=["--gres=gpu:1", "exclusive"]).options == (
        ("gres", "gpu:1"), ("exclusive", True))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="no sbatch, srun, squeue, scontrol; use a login"):
        open_queue("slurm", tmp_path, "q", Resources())
    assert main(["sweep", *PLAN, "--launch", "local", "--jobs", "2"]) == 2
    assert "--jobs cannot be combined with --launch: use --slurm-jobs" in capsys.readouterr().err
    assert main(["sweep", *PLAN, "--slurm-mem", "8G"]) == 2
    assert "--slurm-mem needs --launch slurm" in capsys.readouterr().err


def test_slurm_is_asked_by_its_own_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With stand-ins for them; a real SLURM 22.05 was tried by hand (docs/sweeps.md)."""
    pytest.importorskip("submitit")
    for name, body in {
        "sbatch": "echo Submitted batch job 41", "srun": "exit 1", "sacct": "echo 'TIMEOUT '",
        "squeue": f"""test -e {tmp_path}/down && exit 1
case "$*" in *--name=a_b.ab*) printf '41_0\\n41_1\\n';; *--name*) ;;
*) echo '41_0|RUNNING'; echo '41_1|PENDING';; esac""",
        "scancel": f"echo $* >> {tmp_path}/cancelled",
        "scontrol": "test $4 = 41_0 && echo 'JobId=42 JobState=NODE_FAIL Reason=x'; exit 0",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    queue = open_queue("slurm", tmp_path / "jobs", "a b", read_resources(
        time="2:00:00", memory="8G", cpus=3, options=["partition=long"], at_once=1))
    assert isinstance(queue, JobQueue)
    two = [Task("q", tmp_path, ()), Task("q", tmp_path, ())]
    assert queue.submit(two, "ab") == ["41_0", "41_1"]
    script = (tmp_path / "jobs" / "41_submission.sh").read_text()
    for line in ("--array=0-1%1", "--time=120", "--mem=8G", "--cpus-per-task=3", "--requeue",
                 "--partition=long", "--job-name=a_b.ab", "--signal=USR2@90"):
        assert f"#SBATCH {line}\n" in script, line
    assert queue.states() == {"41_0": "RUNNING", "41_1": "PENDING"}
    assert queue.marked("ab") == {0: "41_0", 1: "41_1"} and queue.marked("cd") == {}
    (tmp_path / "jobs" / "41_0_submitted.pkl").unlink()  # killed before submitit wrote it
    assert queue.marked("ab") == {1: "41_1"}
    assert (tmp_path / "cancelled").read_text() == "41_0\n"
    (tmp_path / "down").touch()
    assert queue.states() is None and queue.marked("ab") is None
    assert queue.end_of("41_0") == "NODE_FAIL" and queue.end_of("41_1") == "TIMEOUT"


@pytest.mark.slow
def test_a_local_job_that_is_warned_is_queued_again_and_ends_with_the_same_bits(
    tmp_path: Path,
) -> None:
    """submitit's local executor, a real worker, SIGUSR2 in the middle of the run."""
    pytest.importorskip("submitit")
    words = ["sweep", *PLAN[:-2], "--rounds", "120", *PLAN[-2:], "TEST.EVAL_EVERY", "100"]
    sides = [tmp_path / "warned", tmp_path / "whole"]
    command = [sys.executable, "-m", "fedvlm", *words, "--trainers", "FedPer", "--output-dir",
               str(sides[0]), "--launch", "local"]
    process = subprocess.Popen(command, cwd=jobs.REPOSITORY, stdout=subprocess.PIPE, text=True)
    while not list(sides[0].rglob("round_0003.json")):
        assert process.poll() is None
        time.sleep(0.05)
    lines = subprocess.run(["ps", "-ewwo", "pid,args"], capture_output=True, text=True, check=True)
    (pid,) = [int(line.split()[0]) for line in lines.stdout.splitlines()
              if "submitit.core._submit" in line and str(sides[0]) in line]
    os.kill(pid, signal.SIGUSR2)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0 and "1 of 1 cells done" in out
    (log,) = (sides[0] / "sweeps" / "q" / "jobs").glob("*.out")
    assert "Requeued job" in log.read_text()
    assert main([*words, "--trainers", "FedPer", "--output-dir", str(sides[1])]) == 0
    jobs.same(*sides)
