"""The feature store under several processes: killed writers, readers during a clean-up."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from fedvlm.models.features.inventory import list_stores, remove_store
from fedvlm.models.features.store import FeatureStore, store_path
from tests.models.toys import rows_of

WIDTH, COUNT = 64, 400
MANY = 100_000  # a writer of so many is never done before it is killed
CONTEXT = multiprocessing.get_context("fork")


class Writer:
    """A process that puts the keys 0.. one by one, from ``offset`` on; killed if asked."""

    def __init__(self, path: Path, offset: int = 0, count: int = COUNT) -> None:
        self.path, self.offset, self.count = path, offset, count
        self.filling = CONTEXT.Event()
        self.process = CONTEXT.Process(target=self._fill)
        self.process.start()

    def _fill(self) -> None:
        with FeatureStore(self.path, WIDTH) as store:
            for at in range(0, self.count, 4):
                keys = [str((at + n + self.offset) % self.count) for n in range(4)]
                rows = torch.tensor([[float(key)] * WIDTH for key in keys])
                store.put_many(keys, 0, rows)
                if at == 40:
                    self.filling.set()

    def kill_in_the_middle(self) -> None:
        assert self.filling.wait(60) and self.process.is_alive()
        os.kill(self.process.pid or 0, signal.SIGKILL)
        assert self.end() == -signal.SIGKILL

    def end(self) -> int | None:
        self.process.join(120)
        return self.process.exitcode


def expect_whole(path: Path, count: int = COUNT) -> None:
    """Every key is there once, with its own numbers; every row that is named is sound."""
    with FeatureStore(path, WIDTH) as store:
        at, rows = store.find([str(i) for i in range(count)], 0)
        assert len(at) == len(store) == count and store.notes == []
        wanted = torch.arange(float(count))[:, None].expand(count, WIDTH)
        assert torch.equal(rows[[at[str(i)] for i in range(count)]], wanted)


def index(path: Path) -> list[tuple[int, int]]:
    db = sqlite3.connect(path)
    try:
        return list(db.execute("SELECT place, crc FROM places"))
    finally:
        db.close()


def test_two_processes_fill_one_store_and_one_is_killed(tmp_path: Path) -> None:
    path = store_path(tmp_path, "a")
    victim = Writer(path, count=MANY)
    assert victim.filling.wait(60)
    other = Writer(path, COUNT // 2)
    victim.kill_in_the_middle()
    assert other.end() == 0
    raw = np.fromfile(path.with_suffix(".rows"), np.float32)
    rows = raw[: len(raw) // WIDTH * WIDTH].reshape(-1, WIDTH)
    named = index(path)
    assert len({place for place, _ in named}) == len(named) >= COUNT
    assert all(zlib.crc32(rows[place]) == crc for place, crc in named)
    with FeatureStore(path, WIDTH) as store:
        found = rows_of(store, [str(i) for i in range(COUNT)], 0)
        assert len(found) == COUNT and store.notes == []
        assert all(torch.equal(v, torch.full((WIDTH,), float(k))) for k, v in found.items())


def test_three_writers_of_the_same_keys_store_each_once(tmp_path: Path) -> None:
    path = store_path(tmp_path, "a")
    writers = [Writer(path, offset) for offset in (0, 100, 250)]
    assert [writer.end() for writer in writers] == [0, 0, 0]
    expect_whole(path)
    assert path.with_suffix(".rows").stat().st_size == COUNT * WIDTH * 4


def test_rows_of_a_killed_writer_are_covered(tmp_path: Path) -> None:
    """Rows that were written and not yet named, and half a row, are no harm."""
    path = store_path(tmp_path, "a")
    with FeatureStore(path, WIDTH) as store:
        store.put_many(["0"], 0, torch.zeros(1, WIDTH))
    with path.with_suffix(".rows").open("ab") as file:
        file.write(b"\x7f" * (WIDTH * 4 * 3 + 5))
    with FeatureStore(path, WIDTH) as store:
        store.put_many(["1", "2"], 0, torch.tensor([[1.0], [2.0]]).expand(2, WIDTH))
    expect_whole(path, 3)


@contextmanager
def holding(path: Path) -> Iterator[multiprocessing.process.BaseProcess]:
    """A process that has the store open, and fills it when told to go on."""
    ready, go = CONTEXT.Event(), CONTEXT.Event()

    def work() -> None:
        with FeatureStore(path, WIDTH) as store:
            ready.set()
            go.wait(60)
            store.put_many(["1"], 0, torch.ones(1, WIDTH))

    process = CONTEXT.Process(target=work)
    process.start()
    assert ready.wait(60)
    try:
        yield process
    finally:
        go.set()
        process.join()


def test_a_store_in_use_is_never_deleted(tmp_path: Path) -> None:
    path = store_path(tmp_path, "a")
    with FeatureStore(path, WIDTH) as store:
        store.put_many(["0"], 0, torch.zeros(1, WIDTH))
    with holding(path) as process:
        (info,) = list_stores(tmp_path)
        assert info.rows == 1 and not remove_store(info)
        assert path.exists() and path.with_suffix(".rows").exists()
    assert process.exitcode == 0
    expect_whole(path, 2)
    (info,) = list_stores(tmp_path)
    assert remove_store(info) and list(tmp_path.iterdir()) == []


def test_a_killed_process_does_not_keep_its_store(tmp_path: Path) -> None:
    path = store_path(tmp_path, "a")
    writer = Writer(path, count=MANY)
    assert writer.filling.wait(60)
    (info,) = list_stores(tmp_path)
    assert not remove_store(info)
    writer.kill_in_the_middle()
    (info,) = list_stores(tmp_path)
    assert remove_store(info) and list(tmp_path.iterdir()) == []


def test_a_store_deleted_while_it_is_opened_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clean-up comes between the two files of one store: what is opened belongs together."""
    path, connect = store_path(tmp_path, "a"), FeatureStore._connect
    tries = []

    def late(self: FeatureStore) -> sqlite3.Connection:
        db = connect(self)
        tries.append(db)
        if len(tries) == 1:
            path.unlink()
            path.with_suffix(".rows").unlink()
        return db

    monkeypatch.setattr(FeatureStore, "_connect", late)
    with FeatureStore(path, WIDTH) as store:
        store.put_many(["0"], 0, torch.zeros(1, WIDTH))
    assert len(tries) == 2
    monkeypatch.undo()
    expect_whole(path, 1)


def test_an_index_that_another_process_is_making_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that set up the log of a new index at once: SQLite tells one of them at once."""
    original, calls = FeatureStore._connect, list[int]()

    def busy(self: FeatureStore) -> sqlite3.Connection:
        calls.append(1)
        if len(calls) < 3:
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY_RECOVERY
            raise error
        return original(self)

    monkeypatch.setattr(FeatureStore, "_connect", busy)
    with FeatureStore(tmp_path / "a.sqlite", 4) as store:
        store.put_many(["x"], 0, torch.ones(1, 4))
        assert len(store) == 1 and len(calls) == 3
