"""Readers of other people's files on random bytes, on files with wrong bytes and with wrong values.

Each takes what it is given or raises an error of the project: no traceback, no memory beyond
``ROOM`` and no time beyond ``PATIENCE``. Wrong values are sealed again with our own functions: what
checksums refuse tells nothing of the reader behind them.
"""

from __future__ import annotations

import copy as plain
import io
import json
import lzma
import resource
import shutil
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedvlm.config.read import read_yaml
from fedvlm.core.errors import FedvlmError
from fedvlm.data.get.unpack import unpack_archive
from fedvlm.data.packs.pack import open_pack
from fedvlm.data.partition.index_file import read_index_file, seal
from fedvlm.distributed import wire
from fedvlm.runs.cells import unpack_runs
from fedvlm.runs.finished import find_finished
from fedvlm.runs.lock import holder
from fedvlm.runs.private import read_private
from fedvlm.runs.seal import seal_of
from fedvlm.runs.verify.check import inspect
from fedvlm.sweep.plan import read_plan
from fedvlm.sweep.tune.records import TrialRecords
from fedvlm.sweep.tune.tuned import read_tuned, write_tuned
from tests import jobs
from tests.data.packs import packs

pytestmark = pytest.mark.slow
ROOM = 2 << 30  # bytes of memory that a reader may ask for
PATIENCE = 20.0  # seconds of the processor for one file
EXAMPLES = 60
REPOSITORY = Path(__file__).parents[2]
ODD = (b"\x00", b"\xff\xfe", b"{", b"[" * 400, b"1e999", b"-1", b"NaN", b"\"", b"\n", b"..", b"/",
       b"null", b"9" * 40, b"\x1b[2J", b"\xe2\x80\xae", b"!!python/object:os.system", b"&a *a")
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["..", "/etc/passwd", "\x1b[2J", "1e999", -1, 2**70, "x" * 5000]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner,
                                                                max_size=3), max_leaves=5)


@dataclass(frozen=True)
class Reader:
    """A reader of one file.

    Attributes:
        make: returns a valid file's bytes.
        read: reads a file at a path.
        name: of the file.
        sealed: writes a plain value as such a file, with checksums that fit; None: not JSON.
    """

    make: Callable[[Path], bytes]
    read: Callable[[Path], Any]
    name: str = "file"
    sealed: Callable[[Any], bytes] | None = field(default=None)


def archive(kind: str) -> bytes:
    out = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(out, "w") as content:
            content.writestr("a/b.txt", "text" * 20)
    else:
        with tarfile.open(fileobj=out, mode="w:xz") as content:
            info = tarfile.TarInfo("a/b.txt")
            info.size = 80
            content.addfile(info, io.BytesIO(b"text" * 20))
    return out.getvalue()


def resealed(record: Any) -> bytes:
    """JSON with a field ``seal`` that fits."""
    if isinstance(record, Mapping):
        record = {k: v for k, v in record.items() if k != "seal"}
        record["seal"] = seal_of(record)
    return json.dumps(record).encode()


def index_sealed(record: Any) -> bytes:
    body = {k: v for k, v in record.items() if k not in ("format", "sha256")} if isinstance(
        record, Mapping) else record
    return json.dumps(seal(body) if isinstance(body, Mapping) else body).encode()


def tuned_file(place: Path) -> bytes:
    write_tuned(place / "tuned.json", {
        "plan": {"seeds": [1], "trainers": [], "datasets": [], "common": {}}, "budget": 1,
        "digest": "d", "failed": {}, "entries": [
            {"label": "FedAvg", "trainer": "FedAvg", "settings": {}, "values": {"OPTIM.LR": "0.1"},
             "space": ["OPTIM.LR 0.001..1 log"], "trials": [], "score": 1.0}]})
    return (place / "tuned.json").read_bytes()


def pack_file(place: Path) -> bytes:
    return packs.make_pack(place / "x.pack.safetensors").read_bytes()


def unpacked(path: Path) -> None:
    try:
        unpack_archive(path, path.with_name("unpacked"))
    finally:
        shutil.rmtree(path.with_name("unpacked"), ignore_errors=True)


def cells_file(place: Path) -> bytes:
    line = {"run": "a/b", "config.yaml": "SEED: 1\n", "manifest.json": "{}", "results.json": "{}"}
    return lzma.compress(json.dumps(line).encode() + b"\n")


def records_read(path: Path) -> None:
    TrialRecords(path.parent)


READERS = {
    "config": Reader(lambda p: (REPOSITORY / "configs/datasets/eurosat.yaml").read_bytes(),
                     lambda p: read_yaml(p, ()), "a.yaml"),
    "plan": Reader(lambda p: (REPOSITORY / "configs/sweeps/demo.yaml").read_bytes(), read_plan,
                   "a.yaml"),
    "tuned": Reader(tuned_file, read_tuned, "tuned.json", resealed),
    "trial records": Reader(lambda p: resealed({
        "config": "c", "method": "FedAvg", "trial": 0, "dataset": "digits 2", "seed": 1, "code": 0,
        "sentence": "", "seconds": 0.5, "clients": [[1, 2]], "origin": {}}) + b"\n",
                            records_read, "runs.jsonl", resealed),
    "packed records": Reader(lambda p: lzma.compress(b"{}\n"), records_read, "tuning.jsonl.xz"),
    "cells": Reader(cells_file, lambda p: unpack_runs(p, p.with_name("into")), "a.cells.xz"),
    "feature pack": Reader(pack_file, open_pack, "x.pack.safetensors"),
    "frame": Reader(lambda p: wire.pack(wire.Frame("failed", {
        "nonce": "ab" * 8, "kind": "refused", "text": "no"}, {})),
        lambda p: wire.unpack(p.read_bytes())),
    "zip": Reader(lambda p: archive("zip"), unpacked),
    "tar": Reader(lambda p: archive("tar"), unpacked),
    "lock": Reader(lambda p: b'{"pid": 1, "host": "x"}', lambda p: holder(p.parent), "RUNNING",
                   lambda v: json.dumps(v).encode()),
    "private": Reader(lambda p: b'{"sessions": [{}], "config": {"A": "b"}}',
                      lambda p: read_private(p.parent), "private.json",
                      lambda v: json.dumps(v).encode()),
}
IN_RUN = ("results.json", "manifest.json", "metrics.jsonl", "config.yaml", "partition.json",
          "partition.csv", "state/round_0002.json", "state/round_0002.safetensors")


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """No file may ask for much memory."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


fuzzed = settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None,
                  suppress_health_check=list(HealthCheck))


def judge(read: Callable[[Path], Any], path: Path) -> None:
    """Read a file; only the project's errors may come of it, in one line, in time."""
    began = time.process_time()
    try:
        read(path)
    except FedvlmError as error:
        assert str(error) and "\x1b" not in str(error)
    assert time.process_time() - began < PATIENCE


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Random bytes, or a valid file with a few wrong ones."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.binary(max_size=300))
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        how = draw(st.sampled_from(("flip", "cut", "drop", "insert", "repeat")))
        if how == "flip" and at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "cut":
            del data[at:]
        elif how == "drop":
            del data[at : at + draw(st.integers(1, 40))]
        elif how == "insert":
            data[at:at] = draw(st.sampled_from(ODD))
        else:
            data[at:at] = data[max(0, at - 60) : at] * draw(st.integers(1, 20))
    return bytes(data)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values in a plain value."""
    yield at
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(
        value, list) else ()
    for key, inner in pairs:
        yield from places(inner, (*at, key))


@st.composite
def changed(draw: st.DrawFn, record: Any) -> Any:
    """A plain value in which another stands at one place, or one is gone."""
    record = plain.deepcopy(record)
    *above, last = draw(st.sampled_from([p for p in places(record) if p]))
    there = record
    for key in above:
        there = there[key]
    if draw(st.booleans()) and isinstance(there, dict):
        del there[last]
    else:
        there[last] = draw(values)
    return record


@pytest.mark.parametrize("name", READERS)
def test_wrong_bytes(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    whole = reader.make(tmp_path)
    path = tmp_path / reader.name
    path.write_bytes(whole)
    reader.read(path)

    @fuzzed
    @given(damaged(whole))
    def one(data: bytes) -> None:
        path.write_bytes(data)
        judge(reader.read, path)

    one()


@pytest.mark.parametrize("name", [name for name, reader in READERS.items() if reader.sealed])
def test_wrong_values(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    path = tmp_path / reader.name
    record = json.loads(reader.make(tmp_path))

    @fuzzed
    @given(changed(record))
    def one(value: Any) -> None:
        assert reader.sealed is not None
        path.write_bytes(reader.sealed(value))
        judge(reader.read, path)

    one()


def look(folder: Path) -> None:
    """What ``verify`` and tables do with a run: a verdict of any file."""
    inspect(folder)
    find_finished(folder)


@pytest.mark.parametrize("name", IN_RUN)
def test_wrong_bytes_in_a_run(name: str, quick_run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(jobs.folder(quick_run), tmp_path / "run"))
    whole = (folder / name).read_bytes()

    @fuzzed
    @given(damaged(whole))
    def one(data: bytes) -> None:
        (folder / name).write_bytes(data)
        judge(lambda path: look(folder), folder / name)

    one()


@pytest.mark.parametrize("name", [n for n in IN_RUN if n.endswith(".json")])
def test_wrong_values_in_a_run(name: str, quick_run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(jobs.folder(quick_run), tmp_path / "run"))
    record = json.loads((folder / name).read_bytes())
    write = index_sealed if name == "partition.json" else resealed

    @fuzzed
    @given(changed(record))
    def one(value: Any) -> None:
        (folder / name).write_bytes(write(value))
        judge(lambda path: look(folder), folder / name)
        if name == "partition.json":
            judge(read_index_file, folder / name)

    one()
