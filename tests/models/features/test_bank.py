"""Activations of images: computed once, kept by content, served from memory or from the file."""

from __future__ import annotations

import errno
import multiprocessing
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.check.world import CheckWorld
from fedvlm.core.errors import DataError
from fedvlm.models.features import bank as module
from fedvlm.models.features.bank import LOW, Bank, StoredRows, has_room, row_bytes
from fedvlm.models.features.decode import Throughput
from fedvlm.models.features.inventory import list_stores
from fedvlm.models.features.sources import FeatureSource
from fedvlm.models.towers.vision import VisionTower

FORK = multiprocessing.get_context("fork")


class Images:
    """40 images by key, of one tower; counts what is decoded."""

    def __init__(self) -> None:
        w = CheckWorld(["PEFT.TEXT", "none", "PEFT.VISUAL", "lora", "PEFT.RANK", "3"])
        self.tower: VisionTower = w.model().vision
        gen = torch.Generator().manual_seed(0)
        self.pixels = torch.randn(40, 3, 8, 8, generator=gen, dtype=torch.float64)
        self.decoded = 0

    def load(self, i: int) -> Tensor:
        self.decoded += 1
        return self.pixels[i]

    def table(
        self, folder: Path, only: Sequence[int] = range(40), stream: str = "tokens.1",
        kind: str = "full", **more: Any,
    ) -> tuple[Any, Throughput]:
        spent = Throughput()
        bank = Bank(self.tower, stream, "test", folder, kind)
        table = bank.table(
            [str(i) for i in only], lambda n: self.load(only[n]), spent=spent, workers=2, **more
        )
        return table, spent


@pytest.fixture(scope="module")
def images() -> Images:
    return Images()


@pytest.fixture(scope="module")
def before(images: Images) -> Tensor:
    """What a run computed for itself before there were banks: batch after batch, filled up."""
    parts = []
    for part in images.pixels.split(16):
        filler = part[:1].expand(16 - len(part), -1, -1, -1)
        with torch.no_grad():
            parts.append(images.tower.compute(torch.cat([part, filler]), "tokens.1")[: len(part)])
    return torch.cat(parts)


@pytest.mark.parametrize("limit", [1 << 30, 0])
def test_bits_are_those_of_before_whatever_was_there(
    images: Images, before: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(module, "IN_MEMORY", limit)
    monkeypatch.setattr(module, "_AT_A_TIME", 3 * row_bytes(images.tower, "tokens.1"))
    seen: list[tuple[int, int]] = []
    some = [31, 2, 17]
    assert images.table(tmp_path, some)[1].encoded == 3
    rows, spent = images.table(tmp_path, progress=lambda _, n, of: seen.append((n, of)))
    assert (spent.encoded, spent.hits) == (37, 3) and seen[-1] == (37, 37)
    assert isinstance(rows, StoredRows) is (limit == 0)
    assert torch.equal(rows[torch.arange(40)], before)
    seen_before = images.decoded
    again, spent = images.table(tmp_path, [5, 5, 39, 5])  # the same image twice
    assert (spent.encoded, spent.hits, images.decoded) == (0, 2, seen_before)
    assert torch.equal(again[torch.tensor([[0, 1], [2, 3]])], before[[5, 5, 39, 5]].view(
        2, 2, *before.shape[1:]))
    (info,) = list_stores(tmp_path)
    assert (info.about["stream"], info.about["dtype"], info.rows) == ("tokens.1", "float64", 40)
    labels = torch.zeros(40, dtype=torch.int64)
    source = FeatureSource.of((rows,), torch.arange(40), labels, "tokens.1")
    assert torch.equal(source.fetch(torch.tensor([7, 3]), 0)["tokens.1"], before[[7, 3]])
    assert source.on(torch.device("cpu")) is source and rows.nbytes == before.nbytes
    assert torch.equal(rows.to(torch.device("cpu")), before) and before.element_size() == 8


def test_streams_and_types_have_stores_of_their_own(
    images: Images, before: Tensor, tmp_path: Path
) -> None:
    full, _ = images.table(tmp_path, range(4))
    low, spent = images.table(tmp_path, range(4), kind=LOW)
    assert spent.encoded == 4 and low.dtype is torch.bfloat16
    assert torch.equal(low, before[:4].to(torch.bfloat16)) and torch.equal(full, before[:4])
    again, spent = images.table(tmp_path, range(4), kind=LOW)
    assert spent.hits == 4 and torch.equal(again, low)
    patches, _ = images.table(tmp_path, range(4), "patches")
    assert torch.allclose(patches, images.tower.compute(images.pixels[:4], "patches"), 0, 1e-12)
    assert len(list_stores(tmp_path)) == 3
    tower = images.tower
    assert row_bytes(tower, "patches") == patches[0].numel() * 8
    assert row_bytes(tower, "patches", LOW) == patches[0].numel() * 2
    assert has_room(tmp_path, 1) and not has_room(tmp_path, 1 << 60)


def test_a_damaged_row_is_computed_again(images: Images, before: Tensor, tmp_path: Path) -> None:
    images.table(tmp_path)
    (file,) = tmp_path.glob("*.rows")
    size = row_bytes(images.tower, "tokens.1")
    with file.open("r+b") as rows:
        rows.seek(9 * size + 11)
        rows.write(b"\xff\xff")
    table, spent = images.table(tmp_path)
    assert (spent.encoded, spent.hits) == (1, 39) and torch.equal(table, before)
    assert images.table(tmp_path)[1].hits == 40


@pytest.mark.parametrize("limit", [1 << 30, 0])
def test_a_store_that_may_only_be_read_serves_and_the_rest_is_for_this_run(
    images: Images, before: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(module, "IN_MEMORY", limit)
    images.table(tmp_path, range(30))
    original = os.open

    def closed(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_RDWR and str(path).startswith(str(tmp_path)):
            raise OSError(errno.EROFS, "read-only")
        return original(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", closed)
    notes: list[str] = []
    table, spent = images.table(tmp_path, notes=notes)
    assert (spent.encoded, spent.hits) == (10, 30) and torch.equal(table, before)
    assert len(notes) == 1 and "is read-only and lacks" in notes[0]
    assert images.table(tmp_path)[1].encoded == 10
    assert {p.suffix for p in tmp_path.iterdir()} <= {".rows", ".sqlite", ".sqlite-wal",
                                                      ".sqlite-shm"}


def test_without_room_nothing_is_kept(images: Images, before: Tensor, tmp_path: Path) -> None:
    bank = Bank(images.tower, "tokens.1", "test", tmp_path)
    bank.keeps = False
    keys = [str(i) for i in range(40)]
    assert bank.lacking(keys) == 40
    assert torch.equal(bank.table(keys, images.load), before)
    assert images.table(tmp_path)[1].encoded == 40


def test_what_may_not_be_kept_goes_aside_only_where_something_is_missing_and_has_room(
    images: Images, before: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IN_MEMORY", 0)
    monkeypatch.setattr(module, "has_room", lambda *_: False)
    images.table(tmp_path, range(30))
    keys = [str(i) for i in range(40)]
    bank = Bank(images.tower, "tokens.1", "test", tmp_path)
    assert bank.aside(keys) == 0
    bank.keeps = False
    assert bank.aside(keys[:30]) == 0 and bank.aside(keys) == bank.bytes(40)
    with pytest.raises(DataError, match=r"cannot be cached in .* do not fit into .*: set TMPDIR"):
        bank.table(keys, images.load)
    whole = bank.table(keys[:30], images.load)
    assert isinstance(whole, StoredRows) and torch.equal(whole.to(before.device), before[:30])


def _fill(images: Images, folder: Path, at: Any, told: Any) -> None:
    at.wait()
    table, spent = images.table(folder)
    told.put((spent.encoded, spent.hits, table.sum().item()))


def test_two_processes_share_the_work(images: Images, before: Tensor, tmp_path: Path) -> None:
    at, told = FORK.Barrier(2), FORK.Queue()
    both = [FORK.Process(target=_fill, args=(images, tmp_path, at, told)) for _ in range(2)]
    for one in both:
        one.start()
    found = [told.get(timeout=120) for _ in both]
    for one in both:
        one.join(60)
    assert all(e + h == 40 and total == before.sum().item() for e, h, total in found)
    assert images.table(tmp_path)[1].hits == 40
    (info,) = list_stores(tmp_path)
    assert info.rows == 40
