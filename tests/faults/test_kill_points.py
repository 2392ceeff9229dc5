"""Stopped at every write point, a run that is started again ends with the same bits.

The run is a toy (one tensor per slot, each round a function of the round before, two of four
clients at work), so that what is tested is the order of the writes. The stop is an exception, and a
real ``SIGKILL`` of a forked process; clients' rows are in memory or on disk, checkpoints come every
round or every third, and records are packed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedvlm.core import files
from fedvlm.core.errors import DataError
from fedvlm.core.rows.memory import MemoryStore
from fedvlm.core.rows.store import RowStore
from fedvlm.runs import manifest, records
from fedvlm.runs.folder import RunFolder
from fedvlm.runs.identity import RunPath, identity_digest, read_results
from fedvlm.runs.metrics import read_metrics
from fedvlm.runs.state import load_newest_state

PARTS = RunPath("personal", "toy", 1, "Toy", "none", "iid", 1, 1)
ROUNDS, CLIENTS = 5, 4
KINDS = [(freq, disk) for freq in (1, 3) for disk in (False, True)]


class Stop(BaseException):
    """As sudden as a kill: nothing below catches it."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No wait for the disk (a kill does not lose what the system holds), no git, no hook left."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(manifest, "session", lambda argv: {
        "command": "toy", "started": "", "versions": {}, "git": None, "machine": {}})
    yield
    files.on_write_point = None


def step(tensor: torch.Tensor, round_: int) -> torch.Tensor:
    return torch.sin(tensor * 1.7 + round_)


def toy_run(root: Path, freq: int = 1, disk: bool = False) -> dict[str, Any]:
    """Run to the end from wherever the folder stands; return the results.

    Args:
        freq: rounds from checkpoint to checkpoint.
        disk: clients' rows are read from records.
    """
    with RunFolder.create(root, PARTS, {"rounds": ROUNDS}, argv=["toy"]) as run:
        if run.finished is not None:
            return run.finished["results"]
        log = run.records["clients"]
        store = log if disk else MemoryStore()
        saved = run.restore()
        if saved is None:
            at, w, versions = 0, torch.linspace(0, 1, 5), dict[int, int]()
            run.write_config({"ROUNDS": ROUNDS}, {})
            run.append_metrics({"round": 0, "sum": float(w.sum())})
            run.save_state(0, {"w": {"x": w}}, {"clients": log.accept(0, store, {})})
        else:
            at, w, versions = saved.round, saved.server["w"]["x"], log.versions()
            for version, ids, rows in () if disk else log.live():
                store.put(version, ids, rows)
        for r in range(at + 1, ROUNDS + 1):
            ids = sorted({r % CLIENTS, (r * r + 1) % CLIENTS})
            store.begin({c: versions.get(c, 0) for c in ids})
            store.put(r, ids, {"v": {"x": step(rows_of(store, ids, versions), r)}})
            store.seal(r)
            versions |= dict.fromkeys(ids, r)
            w = step(w, r)
            run.append_metrics({"round": r, "sum": float(w.sum())})
            if r % freq == 0 or r == ROUNDS:
                named = {"clients": log.accept(r, store, versions)}
                run.save_state(r, {"w": {"x": w}}, named, {"best": float(w.max())})
                store.settle(versions)
        v = rows_of(store, list(range(CLIENTS)), versions)
        return run.write_results({}, {}, {"w": w.tolist(), "v": v.tolist()})["results"]


def rows_of(store: RowStore, ids: list[int], versions: dict[int, int]) -> torch.Tensor:
    """Return the clients' rows ``[K, 5]``; a client that never worked has its own start."""
    out = torch.linspace(0, 1, 5).repeat(len(ids), 1) + torch.tensor(ids)[:, None]
    known = [c for c in ids if c in versions]
    for found, state in store.get(known, [versions[c] for c in known]):
        for c, row in zip(found, state["v"]["x"], strict=True):
            out[ids.index(c)] = row
    return out


def outcome(root: Path) -> dict[str, Any]:
    """What has to be equal bit by bit after any history."""
    folder = root / PARTS.relative()
    record = read_results(folder / "results.json")
    assert record is not None
    state = folder / "state"
    return {
        "results": record["results"],
        "metrics": (folder / "metrics.jsonl").read_text(),
        "state": {
            str(p.relative_to(state)): p.read_bytes() for p in sorted(state.rglob("*.*"))
        },
        "files": sorted(p.name for p in folder.iterdir()),
    }


def write_points(root: Path, *kind: Any) -> list[str]:
    seen: list[str] = []
    files.on_write_point = seen.append
    toy_run(root, *kind)
    files.on_write_point = None
    return seen


def stop_at(number: int, action: Callable[[], None]) -> None:
    """Do ``action`` at the write point of this number (from 0)."""
    count = iter(range(10**6))

    def hook(point: str) -> None:
        if next(count) == number:
            action()

    files.on_write_point = hook


def raise_stop() -> None:
    raise Stop


def in_child(root: Path, number: int, *kind: Any) -> int:
    """Run in a forked process that is killed at a write point; return its wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            stop_at(number, lambda: os.kill(os.getpid(), signal.SIGKILL))
            toy_run(root, *kind)
        finally:
            os._exit(7)
    return os.waitpid(pid, 0)[1]


@pytest.fixture(
    params=[pytest.param(64, marks=pytest.mark.slow), 2], ids=["no packs", "packs"]
)
def most(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many records a checkpoint may name."""
    monkeypatch.setattr(records, "MOST", request.param)
    return int(request.param)


@pytest.mark.parametrize("kind", KINDS)
def test_every_write_point_stopped_by_an_exception(
    tmp_path: Path, kind: tuple[int, bool], most: int
) -> None:
    points = write_points(tmp_path / "whole", *kind)
    want = outcome(tmp_path / "whole")
    assert len(points) > 60 and len({p.split()[1] for p in points}) >= 12
    packed = any(p.split()[1].startswith("p0") for p in points)
    assert packed == (most == 2 and kind != (3, False))  # that has two records in all
    for number in range(len(points)):
        root = tmp_path / str(number)
        stop_at(number, raise_stop)
        with pytest.raises(Stop):
            toy_run(root, *kind)
        files.on_write_point = None
        me = identity_digest({"rounds": ROUNDS})
        assert load_newest_state(root / PARTS.relative() / "state", identity=me)[1] == []
        toy_run(root, *kind)  # from the newest checkpoint, not from the beginning
        assert outcome(root) == want, points[number]


def test_rows_in_memory_and_on_disk_and_any_frequency_give_the_same_results(
    tmp_path: Path, most: int
) -> None:
    found = []
    for kind in KINDS:
        toy_run(tmp_path / str(kind), *kind)
        told = outcome(tmp_path / str(kind))
        found.append((told["results"], told["metrics"]))
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_may_change_where_rows_lie_when_it_goes_on(
    tmp_path: Path, kind: tuple[int, bool]
) -> None:
    write_points(tmp_path / "whole", *kind)
    want = outcome(tmp_path / "whole")["results"]
    for number in range(0, 100, 7):
        root = tmp_path / str(number)
        stop_at(number, raise_stop)
        with contextlib.suppress(Stop):
            toy_run(root, *kind)
        files.on_write_point = None
        toy_run(root, kind[0], not kind[1])
        assert outcome(root)["results"] == want, number


@pytest.mark.parametrize(("kind", "step"), [
    ((1, False), 4),
    *(pytest.param(kind, 1, marks=pytest.mark.slow) for kind in ((1, False), (3, True))),
])
def test_every_write_point_really_killed(
    tmp_path: Path, kind: tuple[int, bool], step: int
) -> None:
    """Or every fourth: ``raise_stop`` tries each of them above."""
    points = write_points(tmp_path / "whole", *kind)
    want = outcome(tmp_path / "whole")
    for number in range(0, len(points), step):
        root = tmp_path / str(number)
        status = in_child(root, number, *kind)
        if os.WIFEXITED(status):
            pytest.fail(f"point {number} ({points[number]}) was not reached")
        assert os.WTERMSIG(status) == signal.SIGKILL
        toy_run(root, *kind)
        assert outcome(root) == want, points[number]


@pytest.mark.parametrize("kind", KINDS)
def test_killed_again_and_again(tmp_path: Path, kind: tuple[int, bool], most: int) -> None:
    write_points(tmp_path / "whole", *kind)
    for number in (9, 25, 22, 20, 24, 21, 19, 23):  # each gets a little further, or not at all
        assert os.WIFSIGNALED(in_child(tmp_path / "run", number, *kind))
    toy_run(tmp_path / "run", *kind)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_order_of_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File contents reach the disk before the rename, the rename before the next file."""
    seen: list[str] = []
    real = os.replace
    monkeypatch.setattr(os, "fsync", lambda h: seen.append(
        "sync folder" if os.path.isdir(f"/proc/self/fd/{h}") else "sync file"))
    monkeypatch.setattr(os, "replace", lambda a, b: (seen.append("replace"), real(a, b)))
    files.write_bytes(tmp_path / "x", b"1")
    assert seen == ["sync file", "replace", "sync folder"]
    seen.clear()
    files.append_line(tmp_path / "x", "2")
    assert seen == ["sync file"] and (tmp_path / "x").read_bytes() == b"12\n"


def fail_with(code: int) -> Callable[[], None]:
    def action() -> None:
        raise OSError(code, os.strerror(code))

    return action


OTHER_ERRORS = [("EROFS", "read-only"), ("EIO", "input/output error")]


@pytest.mark.parametrize("name, word, step", [
    ("ENOSPC", "disk is full", 1),
    *((*error, 5) for error in OTHER_ERRORS),
    *(pytest.param(*error, 1, marks=pytest.mark.slow) for error in OTHER_ERRORS),
])
def test_a_failing_disk_at_every_write_point(
    tmp_path: Path, name: str, word: str, step: int
) -> None:
    """One message that says what and where; nothing lost; no temporary file; goes on after.

    Each point once, each error at all kinds of points: a file has four of them, hence every fifth.
    """
    points = write_points(tmp_path / "whole")
    want = outcome(tmp_path / "whole")
    for number, point in list(enumerate(points))[::step]:
        if point.startswith("after-replace"):
            continue  # nothing can fail there any more
        root = tmp_path / str(number)
        stop_at(number, fail_with(getattr(errno, name)))
        with pytest.raises(DataError, match=word) as caught:
            toy_run(root)
        assert str(caught.value).count("\n") == 0 and point.split()[1] in str(caught.value)
        assert list(root.rglob("*.part")) == [] and list(root.rglob("RUNNING")) == []
        files.on_write_point = None
        toy_run(root)
        assert outcome(root) == want, point


def test_previous_state_survives_a_disk_that_fills_up(tmp_path: Path) -> None:
    """A real limit of the system (file size), not a simulated one."""
    with RunFolder.create(tmp_path, PARTS, {"a": 1}) as run:
        run.save_state(1, {"w": {"x": torch.ones(8)}})
        run.append_metrics({"round": 1})
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            with pytest.raises(DataError, match="file too large"):
                run.save_state(2, {"w": {"x": torch.ones(8192)}})
            with pytest.raises(DataError, match="file too large"):
                run.append_metrics({"round": 2, "blob": "x" * 8192})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, handler)
        assert read_metrics(run.path / "metrics.jsonl") == ([{"round": 1}], [])
        state = run.restore()
        assert state is not None and state.round == 1
        names = sorted(p.name for p in run.state_dir.iterdir())
        assert names == ["index.json", "round_0001.json", "round_0001.safetensors"]


def test_folder_deleted_during_the_run(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, PARTS, {"a": 1})
    shutil.rmtree(run.path)
    for write in (lambda: run.append_metrics({"round": 1}), lambda: run.save_state(1, {}, {}),
                  lambda: run.write_results({}, {}, {}), run.close):
        with pytest.raises(DataError, match="deleted or moved"):
            write()
    assert not run.path.exists()
    run.close()


def test_read_only_folder() -> None:
    """Permissions as the system keeps them: root gives its own up for the test."""
    root, user = Path(tempfile.mkdtemp()), os.geteuid()
    if user == 0:
        os.chown(root, 65534, -1)
        os.seteuid(65534)
    try:
        run = RunFolder.create(root, PARTS, {"a": 1})
        run.save_state(1, {}, {})
        for folder in (run.path, run.state_dir):
            folder.chmod(0o500)
        for write in (lambda: run.write_results({}, {}, {}), lambda: run.save_state(2, {}, {}),
                      lambda: run.append_metrics({"round": 2}), run.close):
            with pytest.raises(DataError, match="read-only"):
                write()
        with pytest.raises(DataError, match="read-only"):
            RunFolder.create(root, PARTS, {"a": 1})
        for folder in (run.path, run.state_dir):
            folder.chmod(0o700)
        with RunFolder.create(root, PARTS, {"a": 1}) as run:
            state = run.restore()
            assert state is not None and state.round == 1
    finally:
        os.seteuid(user)
        shutil.rmtree(root)
