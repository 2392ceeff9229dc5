"""Real worker processes of a sweep: one dies, one cannot load, all are stopped, the parent dies."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedvlm.core import signals
from fedvlm.core.errors import ConfigError
from fedvlm.sweep import worker as sweep_worker
from fedvlm.sweep.processes import GAP, Processes, Worker, deal_devices
from fedvlm.sweep.scheduler import Scheduler
from fedvlm.sweep.worker import Outcome, WorkOrder
from tests import jobs
from tests.sweep import light as light_worker


class Seen:
    """Journal and watcher of a pool."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ends = folder, dict[str, Any]()

    def log(self, cell: Any) -> Path:
        return self.folder / f"{cell.number}.txt"

    def add(self, cell: Any, outcome: Any) -> None:
        self.ends[cell.name] = outcome

    def started(self, cell: Any) -> None:
        """Nobody is told."""

    def ended(self, cell: Any, outcome: Any) -> None:
        assert self.ends[cell.name] is outcome  # the journal knows before the screen


def cells(*names: str, groups: str = "") -> list[Any]:
    return [
        SimpleNamespace(number=i, name=f"{name}{i}", words=(name,), digest="", group=g)
        for i, (name, g) in enumerate(zip(names, groups or "g" * len(names), strict=True))
    ]


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedvlm.sweep.processes.serve_cells", light_worker.light)


def pids(seen: Seen) -> dict[str, float]:
    return {name: outcome.peak_mib for name, outcome in seen.ends.items()}


def test_a_worker_that_dies_costs_its_cell_only(tmp_path: Path, light: None) -> None:
    seen = Seen(tmp_path)
    given = cells("ok", "die", "ok", "fail", "leave", "quit")
    Scheduler(Processes(1, threads=1), seen, seen).run(given)
    assert {n: o.code for n, o in seen.ends.items()} == {
        "ok0": 0, "die1": -9, "ok2": 0, "fail3": 1, "leave4": 7, "quit5": 130,
    }
    assert "killed by SIGKILL" in seen.ends["die1"].sentence
    assert seen.ends["fail3"].sentence == "no luck"
    assert "exit code 7" in seen.ends["leave4"].sentence
    at = pids(seen)
    assert at["ok0"] != at["ok2"] == at["fail3"]  # a new worker after a death, not after a failure


def test_a_worker_keeps_to_its_data_while_there_are_cells(tmp_path: Path, light: None) -> None:
    seen = Seen(tmp_path)
    Scheduler(Processes(1, threads=1), seen, seen).run(cells(*["ok"] * 5, groups="abbab"))
    assert list(seen.ends) == ["ok0", "ok3", "ok1", "ok2", "ok4"]


def test_ctrl_c_ends_all_workers(tmp_path: Path, light: None) -> None:
    seen = Seen(tmp_path)
    pool = Processes(2, threads=1)

    def interrupt() -> None:
        while len(list(tmp_path.glob("*.txt"))) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        Scheduler(pool, seen, seen).run(cells("wait", "wait", "ok"))
    assert time.monotonic() - began < 30  # they were asked, not waited for
    assert not any(w.process.is_alive() for w in pool.workers) and not seen.ends


def test_a_worker_leaves_without_the_teardown_of_libraries() -> None:
    code = """
import atexit, os, sys
from fedvlm.sweep.worker import serve_and_leave
atexit.register(print, "teardown")
serve_and_leave(lambda *given: sys.stdout.write(f"served {given}"), "pipe", 1, "beat")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "served ('pipe', 1, 'beat')", "")


def test_save_now_is_handed_on_to_the_workers(tmp_path: Path, light: None) -> None:
    """Also while they start; the pool itself goes on."""
    before = signal.signal(signals.SAVE, signals._save)
    seen = Seen(tmp_path)

    def ask() -> None:
        os.kill(os.getpid(), signals.SAVE)

    timer = threading.Timer(0.3, ask)
    timer.start()
    try:
        Scheduler(Processes(2, threads=1), seen, seen).run(cells("save", "save"))
    finally:
        timer.join()
        signal.signal(signals.SAVE, before)
    assert {o.code for o in seen.ends.values()} == {0} and len(seen.ends) == 2


def test_a_stopped_worker_is_noticed(
    tmp_path: Path, light: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedvlm.sweep.processes.SILENCE", 3.0)
    seen, began = Seen(tmp_path), time.monotonic()
    Scheduler(Processes(1, threads=1), seen, seen).run(cells("freeze", "ok"))
    assert {n: o.code for n, o in seen.ends.items()} == {"freeze0": -9, "ok1": 0}
    assert "no sign of life for 3 s" in seen.ends["freeze0"].sentence
    assert time.monotonic() - began < 60


def test_a_cell_that_takes_too_long(
    tmp_path: Path, light: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It beats all the time; a neighbour that ends in time is left alone."""
    seen = Seen(tmp_path)
    Scheduler(Processes(1, threads=1, timeout=5), seen, seen).run(cells("ok", "busy", "ok"))
    assert {n: o.code for n, o in seen.ends.items()} == {"ok0": 0, "busy1": -9, "ok2": 0}
    assert "--cell-timeout 5 s" in seen.ends["busy1"].sentence


def test_a_worker_that_was_killed_as_its_cell_ended_gets_no_other(tmp_path: Path) -> None:
    """The kill takes a moment: the next cell would be failed for the time of the one before."""
    ended, given, seen = list[float](), list[str](), Seen(tmp_path)

    def made(verdict: str) -> Any:
        return SimpleNamespace(
            cell=None, group="", verdict=verdict, process=SimpleNamespace(is_alive=lambda: True),
            end=ended.append, give=lambda cell, journal: given.append(verdict),
        )

    new = made("")
    pool = Processes(1, threads=1, start=lambda *_: new)
    pool.workers = [made("it took longer")]
    pool.give(cells("ok"), seen, seen)
    assert pool.workers == [new] and ended == [0] and given == [""]


def test_a_pool_that_was_stopped_itself_blames_nobody() -> None:
    """After Ctrl-Z and fg the clock has jumped, for the pool as for its workers."""
    worker = object.__new__(Worker)
    killed: list[int] = []
    worker.process = SimpleNamespace(kill=lambda: killed.append(1))  # type: ignore[assignment]
    worker.beat = SimpleNamespace(value=0)
    worker.verdict, worker.heard, worker.silent, worker.spent = "", 0, 0.0, 0.0
    worker.watch(min(3600.0, GAP), 60)
    assert not killed
    worker.watch(100.0, 60)
    assert killed


def test_a_worker_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(60)\n")  # keeps the worker busy
    script = tmp_path / "parent.py"
    script.write_text(f"""import multiprocessing, sys, time
sys.path.insert(1, {str(jobs.REPOSITORY)!r})
if __name__ == "__main__":
    from fedvlm.sweep.worker import serve_cells
    context = multiprocessing.get_context("spawn")
    beat = context.Value("Q", 0, lock=False)
    worker = context.Process(target=serve_cells, args=(context.Pipe()[1], 1, beat), daemon=True)
    worker.start()
    print(worker.pid, flush=True)
    time.sleep(60)
""")
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    time.sleep(0.5)
    assert alive(worker)
    parent.kill()
    parent.wait()
    for _ in range(500):
        if not alive(worker):
            break
        time.sleep(0.02)
    else:
        raise AssertionError("the worker lives on")


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_a_worker_that_cannot_load_says_so_of_each_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fedvlm.job.inputs", None)
    monkeypatch.setattr(sweep_worker, "_die_with_parent", lambda: None)
    monkeypatch.setattr(sweep_worker.signal, "signal", lambda *a: None)
    monkeypatch.setattr(sweep_worker, "BEAT", 1e6)
    beat = SimpleNamespace(value=0)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    given: list[Any] = [WorkOrder((), "", tmp_path / "log")] * 2 + [None]
    sent: list[Any] = []
    sweep_worker.serve_cells(SimpleNamespace(recv=lambda: given.pop(0), send=sent.append), 1, beat)
    assert [outcome.code for outcome in sent] == [1, 1]
    assert "could not start: " in sent[0].sentence and "job.inputs" in sent[0].sentence


def test_a_worker_collects_what_a_cell_leaves_and_walks_what_cells_share_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: None
) -> None:
    class Ring:
        me: Any

    left, shared, frozen = list[Any](), list[Any](), list[int]()

    def cell(order: WorkOrder, inputs: Any) -> Outcome:
        ring = Ring()
        ring.me = ring
        left.append(weakref.ref(ring))
        frozen.append(gc.get_freeze_count())
        shared.extend([] for _ in range(1000))
        return Outcome(0, "", 0.0)

    monkeypatch.setattr(sweep_worker, "run_cell", cell)
    monkeypatch.setattr(sweep_worker, "_die_with_parent", lambda: None)
    monkeypatch.setattr(sweep_worker.signal, "signal", lambda *a: None)
    monkeypatch.setattr(sweep_worker, "BEAT", 1e6)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads, before = torch.get_num_threads(), gc.get_freeze_count()
    given: list[Any] = [WorkOrder((), "", tmp_path / "log")] * 3 + [None]
    pipe = SimpleNamespace(recv=lambda: given.pop(0), send=lambda outcome: None)
    try:
        sweep_worker.serve_cells(pipe, 1, SimpleNamespace(value=0))
        assert gc.isenabled() and [ring() for ring in left] == [None] * 3
        assert frozen[1] > frozen[0] + 500 and frozen[2] < frozen[1] + 500
    finally:
        if not before:
            gc.unfreeze()
        torch.set_num_threads(threads)


def test_workers_are_dealt_over_the_gpus_unless_a_cell_says_where(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def on(device: str = "auto", engine: str = "local") -> Any:
        return SimpleNamespace(device=device, engine=engine)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    every = ("cuda:0", "cuda:1", "cuda:2")
    assert deal_devices((), [on(), on("cuda")], 2) == every
    assert deal_devices(("cuda:1",), [on()], 2) == ("cuda:1",)
    for kept in (on("cuda:2"), on("cpu"), on(engine="workers")):
        assert deal_devices((), [on(), kept], 2) == ()
    assert deal_devices((), [on()], 1) == ()
    for asked, cell in ((("cuda:3",), on()), ((), on("cuda:3"))):
        with pytest.raises(ConfigError, match="cuda:0 to cuda:2"):
            deal_devices(asked, [cell], 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert deal_devices((), [on()], 2) == ()
