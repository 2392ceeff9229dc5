"""Packs of finished runs: bytes come back, the same runs give the same pack, others are refused."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from fedvlm.core.errors import DataError
from fedvlm.runs import cells


def folder(root: Path, name: str) -> Path:
    path = root / name
    path.mkdir(parents=True)
    for file in cells.FILES:
        (path / file).write_bytes(f"{name} {file}\u2028\r\n".encode())
    (path / "metrics.jsonl").write_text("{}\n")
    return path


def test_bytes_come_back_and_are_the_same_every_time(tmp_path: Path) -> None:
    runs = [(name, folder(tmp_path / "out", name)) for name in ("b/2", "a/1")]
    first, second = tmp_path / "one.cells.xz", tmp_path / "two.cells.xz"
    assert cells.pack(runs, first) == 2
    cells.pack(reversed(runs), second)
    assert first.read_bytes() == second.read_bytes()
    there = cells.unpack(first, tmp_path / "cache")
    assert there == cells.unpack(first, tmp_path / "cache") and there.name == "one"
    for name, path in runs:
        assert cells.packed(there / name) and not cells.packed(path)
        for file in cells.FILES:
            assert (there / name / file).read_bytes() == (path / file).read_bytes()


def test_every_reader_finds_runs_in_packs_and_folders_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDVLM_CACHE", str(tmp_path / "cache"))
    out, packs = tmp_path / "out", tmp_path / "packs"
    runs = [(name, folder(out, name)) for name in ("b/2", "a/1")]
    packs.mkdir()
    for name in ("two", "one"):
        cells.pack(runs, packs / f"{name}{cells.ENDING}")
    (out / "b/2/state").mkdir()
    (out / "b/2/state/manifest.json").touch()
    assert cells.folders_of(out) == [out]
    assert [place.name for place in cells.folders_of(packs)] == ["one", "two"]
    (place,) = cells.folders_of(packs / "two.cells.xz")
    for where in (out, place):
        assert [path.relative_to(where).as_posix() for path in cells.runs_below(where)] == [
            "a/1", "b/2"]
    assert cells.run_names(packs / "one.cells.xz") == {"a/1", "b/2"}


@pytest.mark.parametrize("run", ["../out", "/tmp/out", "", "a\0b", "half \ud800"])
def test_a_pack_names_no_place_outside(tmp_path: Path, run: str) -> None:
    path = tmp_path / "x.cells.xz"
    line = json.dumps({"run": run, **dict.fromkeys(cells.FILES, "")})
    path.write_bytes(lzma.compress(f"{line}\n".encode()))
    with pytest.raises(DataError, match="x.cells.xz: is no whole pack of runs"):
        cells.unpack(path, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*/x"))


def test_a_cut_pack_and_a_bomb_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.cells.xz"
    cells.pack([("a", folder(tmp_path, "a"))], path)
    data = path.read_bytes()
    for wrong in (data[:-30], b"", b"no pack"):
        path.write_bytes(wrong)
        with pytest.raises(DataError, match="no whole pack"):
            cells.unpack(path, tmp_path / "cache")
    path.write_bytes(data)
    monkeypatch.setattr(cells, "LARGEST", 100)
    with pytest.raises(DataError, match="cut, or larger"):
        cells.unpack(path, tmp_path / "cache")
