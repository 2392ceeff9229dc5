"""Packs of finished runs: bytes come back, the same runs give the same pack, others are refused."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path

import pytest

from fedvlm.core.errors import DataError
from fedvlm.runs import cells
from fedvlm.runs.names import PACKED_FILES, is_packable


def folder(root: Path, name: str) -> Path:
    path = root / name
    path.mkdir(parents=True)
    for file in PACKED_FILES:
        (path / file).write_bytes(f"{name} {file}\u2028\r\n".encode())
    (path / "metrics.jsonl").write_text("{}\n")
    return path


def test_bytes_come_back_and_are_the_same_every_time(tmp_path: Path) -> None:
    runs = [(name, folder(tmp_path / "out", name)) for name in ("b/2", "a/1")]
    first, second = tmp_path / "one.cells.xz", tmp_path / "two.cells.xz"
    assert cells.pack_runs(runs, first) == 2
    cells.pack_runs(reversed(runs), second)
    assert first.read_bytes() == second.read_bytes()
    there = cells.unpack_runs(first, tmp_path / "cache")
    assert there == cells.unpack_runs(first, tmp_path / "cache") and there.name == "one"
    for name, path in runs:
        assert is_packable(there / name) and not is_packable(path)
        for file in PACKED_FILES:
            assert (there / name / file).read_bytes() == (path / file).read_bytes()


def test_every_reader_finds_runs_in_packs_and_folders_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDVLM_CACHE", str(tmp_path / "cache"))
    out, packs = tmp_path / "out", tmp_path / "packs"
    runs = [(name, folder(out, name)) for name in ("b/2", "a/1")]
    packs.mkdir()
    for name in ("two", "one"):
        cells.pack_runs(runs, packs / f"{name}{cells.ENDING}")
    (out / "b/2/state").mkdir()
    (out / "b/2/state/manifest.json").touch()
    assert cells.folders_of(out) == [out]
    assert [place.name for place in cells.folders_of(packs)] == ["one", "two"]
    (place,) = cells.folders_of(packs / "two.cells.xz")
    for where in (out, place):
        assert [path.relative_to(where).as_posix() for path in cells.runs_below(where)] == [
            "a/1", "b/2"]
    assert cells.run_names(packs / "one.cells.xz") == {"a/1", "b/2"}


@pytest.mark.parametrize("run", [
    "../out", "/tmp/out", "", "a\0b", "half \ud800", "\u202eevil", "a\x1b[31m", "x" * 256,
    "a/" * 501 + "b", "a/results.json"])
def test_a_pack_names_no_place_outside(tmp_path: Path, run: str) -> None:
    path = tmp_path / "x.cells.xz"
    line = json.dumps({"run": run, **dict.fromkeys(PACKED_FILES, "")})
    path.write_bytes(lzma.compress(f"{line}\n".encode()))
    with pytest.raises(DataError, match="x.cells.xz: is not a complete pack of runs"):
        cells.unpack_runs(path, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*/x"))


@pytest.mark.parametrize("names", [("a", "a"), ("a", "a/b"), ("a/b", "a")])
def test_a_run_lies_in_no_other(tmp_path: Path, names: tuple[str, str]) -> None:
    path = tmp_path / "x.cells.xz"
    lines = [json.dumps({"run": name, **dict.fromkeys(PACKED_FILES, "")}) for name in names]
    path.write_bytes(lzma.compress("".join(f"{line}\n" for line in lines).encode()))
    with pytest.raises(DataError, match=r"twice, or inside another.*; copy it again"):
        cells.unpack_runs(path, tmp_path / "cache")


def test_what_lies_in_the_cache_is_compared_with_the_pack(tmp_path: Path) -> None:
    runs = [(name, folder(tmp_path / "out", name)) for name in ("b/2", "a/1")]
    path = tmp_path / "x.cells.xz"
    cells.pack_runs(runs, path)
    place = cells.unpack_runs(path, tmp_path / "cache")
    whole = (place / "a/1/results.json").read_bytes()
    (place / "a/1/results.json").write_text("edited")
    assert cells.unpack_runs(path, tmp_path / "cache") == place
    assert (place / "a/1/results.json").read_bytes() == whole
    shutil.rmtree(place / "b")
    folder(place, "c")
    cells.unpack_runs(path, tmp_path / "cache")
    assert [run.relative_to(place).as_posix() for run in cells.runs_below(place)] == ["a/1", "b/2"]
    assert [p.name for p in place.parent.iterdir()] == ["x"]


def test_two_packs_in_one_file_and_a_line_without_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.cells.xz"
    cells.pack_runs([("a", folder(tmp_path, "a"))], path)
    data = path.read_bytes()
    for wrong, why in ((data + data, "data after its end"),
                       (lzma.compress(lzma.decompress(data)[:-1]), "last line is truncated")):
        path.write_bytes(wrong)
        with pytest.raises(DataError, match=why):
            cells.unpack_runs(path, tmp_path / "cache")


def test_a_cut_pack_and_a_bomb_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.cells.xz"
    cells.pack_runs([("a", folder(tmp_path, "a"))], path)
    data = path.read_bytes()
    for wrong in (data[:-30], b"", b"no pack"):
        path.write_bytes(wrong)
        with pytest.raises(DataError, match="not a complete pack"):
            cells.unpack_runs(path, tmp_path / "cache")
    path.write_bytes(data)
    monkeypatch.setattr(cells, "LARGEST", 100)
    with pytest.raises(DataError, match="truncated, or larger"):
        cells.unpack_runs(path, tmp_path / "cache")
