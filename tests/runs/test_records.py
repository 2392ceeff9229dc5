"""Records of rows: what is written when, packs, what grows and what does not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvlm.core.errors import DataError, FedvlmError
from fedvlm.core.rows.memory import MemoryStore
from fedvlm.core.rows.store import RowStore
from fedvlm.core.trees import State
from fedvlm.runs import records
from fedvlm.runs.records import RecordStore, read_models
from fedvlm.runs.seal import Damaged, check_records

ME = "this-run"


def rows(ids: Sequence[int], version: int, width: int = 3) -> State:
    value = torch.tensor([[1000.0 * c + version] * width for c in ids])
    return {"v": {"x": value, "n": torch.full((len(ids),), version)}, "none": {}}


def look(store: RowStore, versions: dict[int, int]) -> None:
    """Every row that counts is there, with its own numbers."""
    ids = sorted(versions, reverse=True)
    found = 0
    for clients, state in store.get(ids, [versions[c] for c in ids]):
        assert clients == [c for c in ids if c in clients] and list(state) == ["v", "none"]
        found += len(clients)
        for c, x, n in zip(clients, state["v"]["x"], state["v"]["n"], strict=True):
            assert x.tolist() == [1000.0 * c + versions[c]] * len(x) and int(n) == versions[c]
    assert found == len(versions)


class Run:
    """Rounds with checkpoints, in memory or on disk; every n-th checkpoint is read whole."""

    def __init__(self, folder: Path, disk: bool, every: int = 1) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.disk, self.every = folder / "clients", disk, every
        self.versions: dict[int, int] = {}
        self.named: list[list[str]] = []
        self.open()

    def open(self) -> None:
        """Start from the last checkpoint."""
        self.log = RecordStore(self.folder, ME)
        self.log.load(self.named)
        self.versions = self.log.versions()
        self.store: RowStore = self.log if self.disk else MemoryStore()
        for version, ids, state in () if self.disk else self.log.live():
            self.store.put(version, ids, state)

    def round(self, r: int, ids: Sequence[int], checkpoint: bool = True, width: int = 3) -> None:
        self.store.begin({c: self.versions.get(c, 0) for c in ids})
        self.store.put(r, ids, rows(ids, r, width))
        self.store.seal(r)
        self.versions |= dict.fromkeys(ids, r)
        if checkpoint:
            self.named = self.log.accept(r, self.store, self.versions)
            if r % self.every == 0:
                check_records(self.folder, self.named, ME)
            self.log.sweep({name for name, _ in self.named})
            self.store.settle(self.versions)

    def names(self) -> list[str]:
        return sorted(p.stem for p in self.folder.glob("*.json"))


@pytest.mark.parametrize("disk", [False, True])
@settings(max_examples=25, deadline=None)
@given(work=st.lists(st.tuples(
    st.lists(st.integers(0, 6), min_size=1, unique=True), st.sampled_from("cckrw")
), min_size=1, max_size=14))
def test_any_history_gives_every_row_that_counts(
    tmp_path_factory: pytest.TempPathFactory, disk: bool, work: list[tuple[list[int], str]]
) -> None:
    """Checkpoints, rounds without one, restarts that lose those, rows of another shape."""
    records.MOST, before = 2, records.MOST
    try:
        run, saved = Run(tmp_path_factory.mktemp("run"), disk), dict[int, int]()
        for r, (ids, what) in enumerate(work, 1):
            run.round(r, ids, what in "cw", width=5 if what == "w" else 3)
            if what in "cw":
                saved = dict(run.versions)
            if what == "k":  # killed: what no checkpoint names is gone
                run.open()
                assert run.versions == saved
            look(run.store, run.versions)
        run.open()
        assert run.versions == saved and len(run.named) <= 3
        look(run.store, saved)
    finally:
        records.MOST = before


def test_a_round_that_did_not_count_is_written_again(tmp_path: Path) -> None:
    run = Run(tmp_path, disk=True)
    run.round(1, [0, 1])
    run.store.begin({0: 1, 1: 1})
    run.store.put(2, [0, 1], rows([8, 9], 2))
    run.store.seal(2)
    run.store.put(3, [1], rows([9], 3))  # not even whole
    run.store.begin({0: 1, 1: 1})
    for client, version in ((0, 2), (1, 2), (1, 3)):
        with pytest.raises(FedvlmError, match=f"no state of client {client} from round {version}"):
            run.store.get([client], [version])
    run.round(2, [1])
    look(run.store, {0: 1, 1: 2})
    assert run.versions == {0: 1, 1: 2} and run.names() == ["r000001", "r000002"]


@pytest.mark.parametrize("disk", [False, True])
def test_what_a_round_writes_does_not_grow_with_the_clients(tmp_path: Path, disk: bool) -> None:
    sizes = []
    for n in (20, 2000):
        run = Run(tmp_path / str(n), disk)
        for r in range(1, 6):
            run.round(r, [(7 * r + k) % n for k in range(5)])
        sizes.append(sum(p.stat().st_size for p in run.folder.iterdir()))
    assert abs(sizes[1] - sizes[0]) < 200  # ids have more digits


@pytest.mark.parametrize("disk", [False, True])
def test_rewriting_is_a_few_times_what_was_worked(
    tmp_path: Path, disk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """400 rounds of 4 of 1,000 clients: packs by size, not all rows again and again."""
    written = []
    real = RecordStore.write

    def write(self: RecordStore, name: str, groups: Sequence[records.RowGroup]) -> None:
        written.append((name, sum(len(g[0]) for g in groups)))
        real(self, name, groups)

    monkeypatch.setattr(RecordStore, "write", write)
    monkeypatch.setattr("os.fsync", lambda handle: None)
    run = Run(tmp_path, disk, every=50)
    for r in range(1, 401):
        run.round(r, [(4 * r + k) % 1000 for k in range(4)])
        assert len(run.named) <= records.MOST
    packed = sum(n for name, n in written if name.startswith("p"))
    assert 0 < packed < 2 * 4 * 400
    look(run.store, run.versions)
    alive = sum(len(json.loads((run.folder / f"{name}.json").read_text())["groups"][0]["ids"])
                for name, _ in run.named)
    assert alive <= 2 * 1000 + 8


@pytest.mark.parametrize("disk", [False, True])
def test_only_records_that_a_checkpoint_names_stay(tmp_path: Path, disk: bool) -> None:
    run, written = Run(tmp_path, disk), set[str]()
    for r in range(1, 7):
        run.round(r, [r % 2, 2], checkpoint=r != 3)
        written |= set(run.names())
        if r != 3:
            assert run.names() == sorted(name for name, _ in run.named)
    assert len(written) > len(run.named) and any(run.folder.glob("*.safetensors"))
    assert sorted(p.stem for p in run.folder.glob("*.safetensors")) == run.names()


def test_full_participation_needs_one_record(tmp_path: Path) -> None:
    run = Run(tmp_path, disk=False)
    for r in range(1, 5):
        run.round(r, range(6))
    assert run.names() == [f"r{4:06d}"] and run.named[0][0] == "r000004"


def test_a_record_that_changes_under_a_run_is_named(tmp_path: Path) -> None:
    run = Run(tmp_path, disk=True)
    run.round(1, [0])
    (run.folder / "r000001.safetensors").write_bytes(b"")
    with pytest.raises(DataError, match="r000001.safetensors' cannot be read any more"):
        run.store.get([0], [1])
    with pytest.raises(Damaged, match="clients/r000001.safetensors has 0 bytes"):
        check_records(run.folder, run.named, ME)
    with pytest.raises(Damaged, match="clients/r000001.json belongs to another run"):
        RecordStore(run.folder, "another").load(run.named)


def test_a_slot_with_the_separator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\|b"):
        RecordStore(tmp_path, ME).write("r000001", [([0], [1], {"a|b": {}})])


def test_models_are_read_by_client_and_name(tmp_path: Path) -> None:
    log = RecordStore(tmp_path, ME)
    two = {"w": {"text.ctx": torch.tensor([[3.0], [1.0]])}}
    log.write("personal000000", [([3, 1], [0, 0], two)])
    log.write("personal000001", [([0], [0], {"w": {"text.ctx": torch.tensor([[0.0]])}})])
    models = read_models(tmp_path)
    assert {c: p["text.ctx"].tolist() for c, p in models.items()} == {3: [3.0], 1: [1.0], 0: [0.0]}
    path = tmp_path / "personal000001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"personal000001.json' cannot be read: .* bytes instead"):
        read_models(tmp_path)
    with pytest.raises(DataError, match="holds no models called personal000000"):
        read_models(tmp_path / "absent")
