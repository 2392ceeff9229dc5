"""The feature store: exact, never stale, safe with two processes, heals itself."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.core.errors import DataError
from fedvlm.models.features.encode import cached_features, encode_padded
from fedvlm.models.features.store import FeatureStore, default_dir
from tests.models.toys import rows_of, toy


class Images:
    """Random images with content keys; counts loads."""

    def __init__(self, n: int, seed: int = 0) -> None:
        gen = torch.Generator().manual_seed(seed)
        self.pixels = torch.randn(n, 3, 32, 32, generator=gen)
        self.loads: list[int] = []

    def key(self, i: int) -> str:
        return hashlib.sha256(self.pixels[i].numpy().tobytes()).hexdigest()

    def load(self, i: int) -> Tensor:
        self.loads.append(i)
        return self.pixels[i]

    def features(self, backbone: Any, folder: Path, **kwargs: Any) -> Tensor:
        keys = [self.key(i) for i in range(len(self.pixels))]
        options = {"view": -1, "transform_digest": "t", "batch": 4} | kwargs
        return cached_features(backbone, keys, self.load, cache_dir=folder, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_features_equal_the_tower_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    backbone, images = toy(dtype=dtype), Images(10)
    first = images.features(backbone, tmp_path)
    assert first.dtype is backbone.feature_dtype and sorted(images.loads) == list(range(10))
    for i in range(10):
        assert torch.equal(first[i], encode_padded(backbone, images.pixels[i : i + 1], 4)[0])
    again = images.features(backbone, tmp_path)
    assert torch.equal(again, first) and len(images.loads) == 10


def test_what_was_missing_does_not_matter(tmp_path: Path) -> None:
    backbone, images = toy(), Images(9)
    cold = images.features(backbone, tmp_path / "a")
    keys = [images.key(i) for i in (7, 2, 5)]
    part = cached_features(
        backbone, keys, lambda i: images.pixels[(7, 2, 5)[i]], view=-1, transform_digest="t",
        cache_dir=tmp_path / "b", batch=4,
    )
    assert torch.equal(part, cold[[7, 2, 5]])
    assert torch.equal(images.features(backbone, tmp_path / "b"), cold)


def test_nothing_stale_is_served(tmp_path: Path) -> None:
    backbone, images = toy(), Images(3)
    first = images.features(backbone, tmp_path)
    images.pixels[1] += 1
    images.loads.clear()
    changed = images.features(backbone, tmp_path)
    assert images.loads == [1] and not torch.equal(changed[1], first[1])
    for kwargs in ({"transform_digest": "u"}, {"view": 0}):
        images.loads.clear()
        images.features(backbone, tmp_path, **kwargs)
        assert len(images.loads) == 3, kwargs
    images.loads.clear()
    other = toy(seed=1)
    assert torch.equal(images.features(other, tmp_path), images.features(other, tmp_path / "new"))
    plain = toy(plain=True)
    images.features(plain, tmp_path)
    assert len(images.loads) == 9  # another backbone twice, other kernels once


def test_equal_images_are_encoded_once(tmp_path: Path) -> None:
    images = Images(2)
    seen: list[tuple[int, int]] = []
    out = cached_features(
        toy(), ["a", "b", "a"], lambda i: images.load(i % 2), view=-1, transform_digest="t",
        cache_dir=tmp_path, progress=lambda _, done, n: seen.append((done, n)),
    )
    assert sorted(images.loads) == [0, 1] and torch.equal(out[0], out[2]) and seen == [(2, 2)]


def test_an_error_while_decoding_is_raised_and_the_rest_kept(tmp_path: Path) -> None:
    images = Images(8)

    def load(i: int) -> Tensor:
        if i == 6:
            raise DataError("image 6 is broken")
        return images.load(i)

    keys = [images.key(i) for i in range(8)]
    with pytest.raises(DataError, match="image 6"):
        cached_features(
            toy(), keys, load, view=-1, transform_digest="t", cache_dir=tmp_path, batch=4
        )
    images.loads.clear()
    images.features(toy(), tmp_path)
    assert sorted(images.loads) == [4, 5, 6, 7]


def _damage_header(path: Path) -> None:
    path.write_bytes(b"not a database" * 100)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 7])


def test_lost_rows_are_encoded_again(tmp_path: Path) -> None:
    """The rows' file is gone or shorter than the index says: after a power cut, or by hand."""
    backbone, images = toy(), Images(8)
    first = images.features(backbone, tmp_path)
    (rows,) = tmp_path.glob("*.rows")
    for size, lost in ((5 * backbone.embed_dim * 4 + 3, 3), (0, 8)):
        os.truncate(rows, size)
        images.loads.clear()
        assert torch.equal(images.features(backbone, tmp_path), first)
        assert len(images.loads) == lost
    rows.unlink()
    assert torch.equal(images.features(backbone, tmp_path), first)
    assert torch.equal(images.features(toy(), tmp_path), first)


def test_a_store_of_the_older_layout_is_left_alone(tmp_path: Path) -> None:
    backbone, images = toy(), Images(2)
    old = tmp_path / f"{'a' * 40}.sqlite"
    with closing(sqlite3.connect(old)) as db:
        db.execute("CREATE TABLE features (key, view, crc, value)")
    before = old.read_bytes()
    images.features(backbone, tmp_path)
    assert old.read_bytes() == before and len(images.loads) == 2


def test_rows_come_in_the_order_of_the_keys(tmp_path: Path) -> None:
    with FeatureStore(tmp_path / "f.sqlite", 2) as store:
        store.put_many(["a", "b", "c"], 0, torch.tensor([[1.0, 1], [2, 2], [3, 3]]))
        at, rows = store.find(["c", "x", "a", "c"], 0)
        assert at == {"c": 0, "a": 1} and rows.tolist() == [[3, 3], [1, 1]]
        assert rows_of(store, ["a"], 1) == {}
        rows += 1  # a copy: what is stored does not move
        assert rows_of(store, ["a"], 0)["a"].tolist() == [1, 1]


@pytest.mark.parametrize("damage", [_damage_header, _truncate])
def test_a_damaged_file_is_set_aside(tmp_path: Path, damage: Any) -> None:
    backbone, images, notes = toy(), Images(200), []
    first = images.features(backbone, tmp_path, batch=100)
    (path,) = tmp_path.glob("*.sqlite")
    damage(path)
    again = images.features(backbone, tmp_path, batch=100, notes=notes)
    assert torch.equal(again, first) and len(images.loads) == 400
    assert list(tmp_path.glob("*.corrupt-1")) and "renamed to" in notes[0]
    assert torch.equal(images.features(backbone, tmp_path, batch=100), first)


def test_a_damaged_row_is_encoded_again(tmp_path: Path) -> None:
    backbone, images = toy(), Images(3)
    first = images.features(backbone, tmp_path)
    (path,) = tmp_path.glob("*.sqlite")
    with closing(sqlite3.connect(path)) as db:
        ask = "SELECT place FROM places WHERE key=?"
        (place,) = db.execute(ask, (images.key(2),)).fetchone()
    with path.with_suffix(".rows").open("r+b") as file:
        file.seek(place * backbone.embed_dim * 4 + 9)
        file.write(b"\x55")
    images.loads.clear()
    assert torch.equal(images.features(backbone, tmp_path), first) and images.loads == [2]
    images.loads.clear()
    assert torch.equal(images.features(backbone, tmp_path), first) and images.loads == []


def _fill(path: Path, offset: int) -> None:
    with FeatureStore(path, 8) as store:
        for i in range(60):
            key = str((i + offset) % 60)
            store.put_many([key], 0, torch.full((1, 8), float(key)))
            rows_of(store, [key, str(i)], 0)


def test_two_processes_share_one_file(tmp_path: Path) -> None:
    path = tmp_path / "f.sqlite"
    spawn = multiprocessing.get_context("fork")
    workers = [spawn.Process(target=_fill, args=(path, offset)) for offset in (0, 30)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    with FeatureStore(path, 8) as store:
        rows = rows_of(store, [str(i) for i in range(60)], 0)
        assert len(rows) == len(store) == 60 and store.notes == []
        assert all(torch.equal(row, torch.full((8,), float(key))) for key, row in rows.items())


def test_an_unwritable_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="FEDVLM_CACHE"):
        Images(1).features(toy(), tmp_path / "file" / "cache")


def test_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDVLM_CACHE", str(tmp_path))
    assert default_dir() == tmp_path / "features"
    monkeypatch.delenv("FEDVLM_CACHE")
    assert default_dir() == Path.home() / ".cache" / "fedvlm" / "features"


# ---- a store of others, which is read-only --------------------------------------------------
@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders in the list are as on a mount without writing, for files and for SQLite."""
    folders: list[Path] = []
    opened = os.open

    def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT) and any(
            Path(path).is_relative_to(folder) for folder in folders
        ):
            raise OSError(30, "Read-only file system")
        return opened(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    return folders


def test_a_warm_store_that_may_only_be_read_serves(
    tmp_path: Path, read_only: list[Path]
) -> None:
    backbone, images, folder = toy(), Images(6), tmp_path / "cache"
    first, more = images.features(backbone, folder), Images(9)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    read_only.append(folder)
    images.loads.clear()
    assert torch.equal(images.features(backbone, folder), first) and not images.loads
    notes: list[str] = []
    found = more.features(backbone, folder, notes=notes)
    assert torch.equal(found, more.features(backbone, tmp_path / "own"))
    assert len(notes) == 1 and "is read-only" in notes[0]
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_an_empty_folder_that_may_only_be_read_is_refused(
    tmp_path: Path, read_only: list[Path]
) -> None:
    read_only.append(tmp_path)
    with pytest.raises(DataError, match="Read-only"):
        FeatureStore(tmp_path / "a.sqlite", 4)
