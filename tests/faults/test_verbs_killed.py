"""Commands killed before any of their changes of a file, and files of theirs that are flipped.

The same command again ends with the bytes of one that nobody killed, and nothing half and no
temporary file is left; what a bit flipped in is refused by name, or made again with the same bytes.
``make test`` tries a few of the places, the slow tests many more.
"""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import json
import os
import random
import re
import shutil
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fedvlm.runs import private
from fedvlm.sweep.tune.records import TrialRecords
from tests import jobs
from tests.attacks.forge import flip
from tests.faults.children import Children, Ended
from tests.report.table_runs import rows, write_run
from tests.sweep.tune.conftest import PLAN

FEW, MANY = 3, 40  # places of a command in ``make test``, and in the slow tests
TEMPORARY = (".part", ".part.json", ".unpacked")
GRID = ("--trainers", "FedAvg", "FedPer", "--datasets", "digits", "--seeds", "1", "--name", "small",
        "--backbone", "tiny", "--shots", "1", "--rounds", "2", "--local-epochs", "1",
        "--num-users", "2")  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A command of the grid.

    Attributes:
        task: of ``children``.
        args: its arguments, given the folder of what it writes and the one of what it reads.
        fill: writes what it reads into a folder, once.
        finds: says what a folder of it holds, to be compared.
        left: names of files, of what it wrote, in which a bit flips.
        last: the same command stops before its first such change, so that they are there.
        again: words of the command that reads them; empty: the same one.
        once: words that refuse the same command where it has ended well; empty: it runs again.
    """

    task: str
    args: Callable[[Path, Path], list[Any]]
    fill: Callable[[Path], None] = field(default=lambda folder: None)
    finds: Callable[[Path], Any] = field(default=lambda folder: contents(folder))
    left: tuple[str, ...] = ()
    last: str = ""
    again: Callable[[Path], list[str]] = field(default=lambda folder: [])
    once: str = ""


def contents(folder: Path, skip: tuple[str, ...] = ()) -> dict[str, bytes]:
    """Return the bytes of all files below a folder by name."""
    return {name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
            and not (name := path.relative_to(folder).as_posix()).startswith(skip)}


def archive() -> bytes:
    """An archive of a few images' names."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as content:
        for name in ("a/Forest/1.jpg", "a/Forest/2.jpg", "a/River/1.jpg", "b/list.txt"):
            content.writestr(zipfile.ZipInfo(name), name.encode() * 400)
    return out.getvalue()


URL = "http://127.0.0.1:PORT"
served: dict[str, str] = {}


def download_args(root: Path, source: Path) -> list[Any]:
    checksum = "sha256:" + hashlib.sha256(archive()).hexdigest()
    return [["data", "download", "eurosat", "--root", str(root), "--url-base", served["url"]],
            f"{served['url']}/EuroSAT.zip", checksum,
            [["a", "eurosat/2750"], ["b", "eurosat/more"]]]


def fill_tree(folder: Path) -> None:
    for name in ("AnnualCrop", "Forest", "River", "SeaLake"):
        (folder / "eurosat" / "2750" / name).mkdir(parents=True)
        for n in range(10):
            path = folder / "eurosat" / "2750" / name / f"{n}.png"
            Image.new("RGB", (4, 4), (n, len(name), 0)).save(path)


def fill_lane(folder: Path) -> None:
    for name in ("FedAvg", "FedPer"):
        for seed in (1, 2):
            clients = rows(3 + seed, 5)
            path = write_run(folder / "out" / "lane", name, "Pets", seed, {
                "personal": sum(row["accuracy"] for row in clients) / 2,
                "personal_worst": min(r["accuracy"] for r in clients), "clients": clients})
            (path / "config.yaml").write_text("SEED: 1\n")
    (folder / "plans").mkdir()


def fill_run(folder: Path) -> None:
    assert jobs.run(folder, "--trainer", "PromptFL") == 0


def sweep_found(folder: Path) -> Any:
    """What runs say that no clock does, and the files of a sweep by name."""
    runs = {}
    for path in sorted(folder.rglob("results.json")):
        told = json.loads(path.read_text())
        runs[path.relative_to(folder).as_posix()] = (
            told["identity_digest"], told["results"]["table"], jobs.records(path.parent))
    names = {n for n in contents(folder) if not n.endswith((".png", ".svg", ".html"))}
    return runs, names


def tune_found(folder: Path) -> Any:
    """A tuning's result, its records in any order, and its other files by name."""
    here = contents(folder / "tuning" / "toy", ("optuna.log", "report/"))
    here["runs.jsonl"] = b""
    return here, TrialRecords(folder / "tuning" / "toy").lines, sorted(contents(folder))


KINDS = {
    "data download": Kind("tests.faults.verbs:download", download_args,
                          left=(".fedvlm-downloads/EuroSAT.zip",), last="os.mkdir .EuroSAT"),
    "data prepare": Kind("fedvlm.cli.main:main", lambda out, source: [
        ["data", "prepare", "eurosat", "--root", str(source), "--cache-dir", str(out)]], fill_tree,
        left=("**/split_*.json",)),
    "publish": Kind("tests.faults.verbs:publish", lambda out, source: [
        ["publish", str(out), "--from", str(source / "out"), "--plans",
         str(source / "plans")]], fill_lane, left=("cells/*.xz",),
        again=lambda out: ["publish", str(out)]),
    "export": Kind("fedvlm.cli.main:main", lambda out, source: [
        ["export", str(jobs.folder(source)), "--client", "all", "--format", "safetensors",
         "--to", str(out / "models")]],
        fill_run, once="is not empty: export into a new folder"),
    "features --pack": Kind("tests.faults.verbs:features", lambda out, source: [
        ["features", "--dataset", "new_nouns", "--backbone", "tiny", "--pack",
         str(out / "x.pack.safetensors")]], left=("x.pack.safetensors",)),
    "sweep": Kind("tests.faults.verbs:sweep", lambda out, source: [
        ["sweep", *GRID, "--output-dir", str(out)]], finds=sweep_found, left=("personal/**/*.json*",
        "personal/**/*.safetensors", "personal/**/*.yaml", "sweeps/small/cells.jsonl")),
    "tune": Kind("tests.faults.verbs:tune", lambda out, source: [
        ["tune", *PLAN, "--budget", "3", "--output-dir", str(out)]], finds=tune_found,
        left=("tuning/toy/runs.jsonl", "tuning/toy/tuned.json")),
}


SLOW = {  # seconds for each trial -> what it imports
    "publish": ("evidence.results.publish",), "export": ("fedvlm.export.write",),
    "sweep": ("fedvlm.cli.run.sweep", "fedvlm.sweep.run"), "tune": ("fedvlm.sweep.run",),
}


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_args: object) -> None:
        return


@pytest.fixture(scope="module", autouse=True)
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A server of the archive."""
    place = tmp_path_factory.mktemp("www")
    (place / "EuroSAT.zip").write_bytes(archive())
    handler = functools.partial(Quiet, directory=str(place))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    served["url"] = f"http://127.0.0.1:{server.server_address[1]}"
    yield
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def children(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Children]:
    """Where commands are forked, with what those of the chosen tests import."""
    asked = {item.callspec.params.get("grid") for item in request.session.items
             if isinstance(item, pytest.Function) and hasattr(item, "callspec")}
    modules = dict.fromkeys(name for kind, names in SLOW.items() if kind in asked for name in names)
    with Children(tmp_path_factory.mktemp("children"), "fedvlm.job.run", *modules) as there:
        yield there


@dataclass
class Grid:
    """A kind at work: an undisturbed command, and trials in folders of their own."""

    kind: Kind
    children: Children
    place: Path
    source: Path
    want: Any = None
    changes: tuple[str, ...] = ()

    def run(
        self, out: Path, at: int = 0, how: str = "kill", children: Children | None = None
    ) -> Ended:
        """Run the command in a folder; ``at``: and let ``how`` happen there."""
        out.mkdir(parents=True, exist_ok=True)
        more: dict[str, Any] = {"at": at, "how": how} if at else {}
        return (children or self.children).run(
            self.kind.task, *self.kind.args(out, self.source), root=out.resolve(), **more,
            FEDVLM_CACHE=str(self.place / "cache"), no_proxy="*")

    def flipped(self, out: Path, seed: int) -> None:
        """Flip a bit of what a command left, and let the same or the next one read it."""
        if self.kind.last:
            shutil.rmtree(out, ignore_errors=True)
            at = next(i for i, c in enumerate(self.changes, 1) if c.startswith(self.kind.last))
            assert self.run(out, at).killed
        elif not out.is_dir():
            assert self.run(out).code == 0
        draw = random.Random(seed)
        path = draw.choice(sorted(
            p for pattern in self.kind.left for p in out.glob(pattern) if p.name != private.NAME))
        whole = path.read_bytes()
        data = bytearray(whole)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        again = self.kind.again(out)
        ended = self.run(out) if not again else self.children.run(
            self.kind.task, again, root=out.resolve(), FEDVLM_CACHE=str(self.place / "cache"))
        where = f"seed {seed}, {path.relative_to(out)}: {ended.said}"
        assert "Traceback" not in ended.said, where
        if ended.code:
            assert ended.code in (2, 3) and path.name in ended.said, where
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(whole)
        else:
            assert self.kind.finds(out) == self.want, where

    def same(self, out: Path, where: str, ended: bool = False) -> None:
        """Run the command again, and compare; ``ended``: one has ended well there already."""
        again = self.run(out)
        assert "Traceback" not in again.said, f"{where}: {again.said}"
        if ended and self.kind.once:
            assert again.code == 2 and self.kind.once in again.said, f"{where}: {again.said}"
        else:
            assert again.code == 0, f"{where}: {again.said}"
        assert self.kind.finds(out) == self.want, where
        left = [p.name for p in out.rglob("*") if p.name.endswith(TEMPORARY)]
        assert not left, f"{where}: {left}"
        shutil.rmtree(out)

    def trial(self, at: int) -> None:
        """Kill the command before a change, run it again, and compare."""
        out = self.place / "out"  # paths stand in some files: the same place for all
        ended = self.run(out, at)
        assert ended.killed, f"change {at} was not reached: {ended.said}"
        where = f"killed at {at} of {len(self.changes)}: {self.changes[at - 1]}"
        self.same(out, where)


@pytest.fixture(scope="module", params=[
    pytest.param(kind, marks=[pytest.mark.slow] * (kind in SLOW)) for kind in KINDS
])
def grid(request: pytest.FixtureRequest, children: Children,
         tmp_path_factory: pytest.TempPathFactory) -> Grid:
    """Fill what the kind reads, run it twice without a kill (the first fills the cache)."""
    kind = KINDS[request.param]
    place = tmp_path_factory.mktemp(request.param.replace(" ", ""))
    grid = Grid(kind, children, place, place / "source")
    grid.source.mkdir()
    kind.fill(grid.source)
    for _ in range(2):
        ended = grid.run(place / "out")
        assert ended.code == 0, ended.said
        found, before = kind.finds(place / "out"), grid.want
        grid.want, grid.changes = found, ended.changes
        shutil.rmtree(place / "out")
    assert before == found
    return grid


def trials(grid: Grid, count: int) -> None:
    """Try ``count`` changes, the first and the last among them, or all where there are fewer."""
    assert len(grid.changes) >= FEW
    for at in some(grid, min(count, len(grid.changes))):
        grid.trial(at)


def test_killed_at_a_few_changes(grid: Grid) -> None:
    trials(grid, FEW)


@pytest.mark.slow
def test_killed_at_many_changes(grid: Grid) -> None:
    trials(grid, MANY)


def flips(grid: Grid, count: int) -> None:
    out = grid.place / "out"
    if not grid.kind.left:  # nothing of ours reads an export: its sums name the file
        assert grid.run(out).code == 0
        for seed in range(count):
            name = flip(out / "models", seed)
            lines = (out / "models" / "SHA256SUMS").read_text(errors="replace").splitlines()
            told = [line.partition("  ")[2] for line in lines if hashlib.sha256(
                (out / "models" / line.partition("  ")[2]).read_bytes()).hexdigest()
                != line.partition("  ")[0]] if name != "SHA256SUMS" else [name]
            assert told == [name]
            shutil.rmtree(out)
            assert grid.run(out).code == 0
    for seed in range(count if grid.kind.left else 0):
        grid.flipped(out, seed)
    shutil.rmtree(out)


def test_a_few_flips(grid: Grid) -> None:
    flips(grid, FEW)


@pytest.mark.slow
def test_many_flips(grid: Grid) -> None:
    flips(grid, MANY)


def some(grid: Grid, count: int = 6) -> list[int]:
    """Return numbers of changes, spread over a command."""
    last = len(grid.changes)
    return sorted({1 + share * (last - 1) // (count - 1) for share in range(count)})


@pytest.mark.slow
@pytest.mark.parametrize(("error", "words"), [("ENOSPC", "disk is full|No space|no space"),
                                              ("EROFS", "read-only|Read-only")])
def test_a_disk_that_takes_nothing_more(grid: Grid, error: str, words: str) -> None:
    """One sentence and no traceback, and then the same command again."""
    out = grid.place / "out"
    for at in some(grid):
        ended = grid.run(out, at, error)
        where = f"{error} at {at}, {grid.changes[at - 1]}"
        assert "Traceback" not in ended.said, f"{where}: {ended.said}"
        if ended.code:  # else what is written there is only a cache, or goes away
            assert re.search(words, ended.said), f"{where}: {ended.said}"
        grid.same(out, where)


@pytest.mark.slow
def test_two_at_once(grid: Grid, tmp_path: Path) -> None:
    """A second command while the first is stopped: it ends well, or says who is at work."""
    out = grid.place / "out"
    with Children(tmp_path / "second") as second:
        for at in some(grid, 4):
            where = f"stopped at {at}, {grid.changes[at - 1]}"
            assert grid.run(out, at, "stop").stopped
            other = grid.run(out, children=second)
            first = grid.children.go_on()
            for ended in (other, first):
                assert "Traceback" not in ended.said, f"{where}: {ended.said}"
                assert ended.code == 0 or "in use by process" in ended.said or (
                    ended.code in (2, 3)), f"{where}: {ended.said}"
            assert 0 in (other.code, first.code), f"{where}: {other.said} {first.said}"
            grid.same(out, where, ended=True)


@pytest.mark.slow
def test_files_of_the_future(grid: Grid) -> None:
    """The clock was put back after a kill: what lies there is a year younger than today."""
    out = grid.place / "out"
    for at in some(grid, 4):
        assert grid.run(out, at).killed
        for path in [*out.rglob("*"), *grid.source.rglob("*")]:
            if path.is_file() and not path.is_symlink():
                os.utime(path, (time.time() + 3e7,) * 2)
        grid.same(out, f"killed at {at}, then a year back")
