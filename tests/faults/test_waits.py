"""A grid of events: processes that are killed or stopped, disks that are slow or full.

At build, work, evaluation and save of six methods, computed here, by workers and by sites of this
machine: the run ends, in the end with the bits of one without events. 72 events.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from tests import jobs
from tests.job.sites import places
from tests.job.workers.test_worker_processes import same, workers

pytestmark = pytest.mark.slow
METHODS = ("FedTV", "APFL", "SCAFFOLD", "Ditto", "FedPer", "HEART-PFL")
PLACES = ("build", "work", "evaluate", "save")
KINDS = ("kill", "stop", "slow", "full")
SMALL = ("--demo", "--shots", "2", "--rounds", "3", "--num-users", "4", "--local-epochs", "1")
WORKERS = ("--engine", "workers", "--workers", "2")
LIMIT = 240.0  # seconds of one command: what takes longer hangs
PAUSE = 1.5  # seconds for which a stopped driver or site stays so
AGAIN = 8  # as often a command that ended is repeated


def events_of(at: int, helper: str) -> list[tuple[str, str, str, int]]:
    """Return four events, one at each place; over six methods each kind comes to each place.

    Args:
        at: the method's.
        helper: who computes beside the driver.
    """
    out = []
    for p, place in enumerate(PLACES):
        who = helper if helper and (p + at) % 3 else "driver"
        if helper and place in ("work", "evaluate"):
            who = helper  # the driver computes no client
        nth = {"build": 1, "work": 2, "evaluate": 2, "save": 7 if who == "driver" else 4}[place]
        out.append((who, place, KINDS[(p + at) % 4], nth))
    return out


class Processes:
    """Processes of a run to which events happen; who is not a worker and stopped goes on later."""

    def __init__(self, folder: Path, events: list[tuple[str, str, str, int]]) -> None:
        folder.mkdir()
        (folder / "events.json").write_text(json.dumps(events))
        self.folder, self.count = folder, len(events)
        self._stopped: dict[int, float] = {}

    def begin(self, verb: str, *words: str) -> subprocess.Popen[bytes]:
        path = [str(Path(__file__).parent / "events"), str(jobs.REPOSITORY)]
        return subprocess.Popen(
            [sys.executable, "-m", "fedvlm", *verb.split(), *words], cwd=jobs.REPOSITORY,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1",
                              "FEDVLM_EVENTS": str(self.folder)},
            stdout=(self.folder / f"{verb.split()[0]}.log").open("ab"), stderr=subprocess.STDOUT,
        )

    def wake(self, pid: int) -> None:
        """Let a process go on that was stopped for long enough."""
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        since = self._stopped.setdefault(pid, time.monotonic()) if state == "T" else None
        if since is not None and time.monotonic() - since > PAUSE:
            del self._stopped[pid]
            os.kill(pid, signal.SIGCONT)

    def play(self, words: tuple[str, ...], look: Callable[[], None] = lambda: None) -> list[int]:
        """Repeat a command until it is done; return the exit codes before."""
        codes = list[int]()
        for _ in range(AGAIN):
            run, until = self.begin("run", *words), time.monotonic() + LIMIT
            while run.poll() is None:
                assert time.monotonic() < until, "the run hangs"
                self.wake(run.pid)
                look()
                time.sleep(0.1)
            if run.returncode == 0:
                assert len(list(self.folder.glob("*.done"))) == self.count
                said = (self.folder / "run.log").read_text()
                assert "Traceback" not in said
                return codes
            codes.append(run.returncode)
        raise AssertionError(f"exit codes {codes}: {(self.folder / 'run.log').read_text()[-2000:]}")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def whole(method: str) -> Path:
        output = tmp_path_factory.mktemp("whole")
        code = subprocess.run(
            [sys.executable, "-m", "fedvlm", "run", *SMALL, "--trainer", method, "--output-dir",
             str(output), "FED.CHUNK", "2"], cwd=jobs.REPOSITORY, check=False, timeout=LIMIT,
            env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True,
        ).returncode
        assert code == 0
        return output

    return whole


@pytest.mark.parametrize("at", range(len(METHODS)), ids=METHODS)
def test_events_of_a_local_run(
    local: Callable[[str], Path], tmp_path: Path, at: int
) -> None:
    output, there = tmp_path / "run", Processes(tmp_path / "events", events_of(at, ""))
    there.play((*SMALL, "--trainer", METHODS[at], "--output-dir", str(output), "FED.CHUNK", "2"))
    jobs.same(output, local(METHODS[at]))


@pytest.mark.parametrize("at", range(len(METHODS)), ids=METHODS)
def test_events_of_a_run_by_workers(
    local: Callable[[str], Path], tmp_path: Path, at: int
) -> None:
    output, there = tmp_path / "run", Processes(tmp_path / "events", events_of(at, "worker"))
    there.play((*SMALL, "--trainer", METHODS[at], "--output-dir", str(output), *WORKERS,
                "FED.CHUNK", "2", "FED.ASK.SECONDS", "5"))
    same(output, local(METHODS[at]))
    until = time.monotonic() + 20
    while workers(output) and time.monotonic() < until:  # those of a killed driver
        time.sleep(0.1)
    assert not workers(output)


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = places.make(tmp_path_factory.mktemp("parties") / "p")
    for name in places.NAMES:
        rules = places.RULES.replace("[APFL, FedTV]", f"[{', '.join(METHODS)}]")
        (place / name / "site.yaml").write_text(rules)
    return place


class Sites:
    """Two sites; one that ends is begun again."""

    def __init__(self, place: Path, there: Processes) -> None:
        self.place, self.there = place, there
        self.running = {name: self._begin(name) for name in places.NAMES}

    def _begin(self, name: str) -> subprocess.Popen[bytes]:
        return self.there.begin(
            "site serve", str(self.place / name / "site.yaml"), "--listen",
            str(self.place / "sockets" / name), "CACHE_DIR", str(self.place / name / "cache"))

    def look(self) -> None:
        """Begin again who ended; wake who was stopped."""
        for name, process in self.running.items():
            if process.poll() is not None:
                self.running[name] = self._begin(name)
            else:
                self.there.wake(process.pid)

    def end(self) -> None:
        """End both."""
        for process in self.running.values():
            process.kill()
            process.wait()


@pytest.mark.parametrize("at", range(len(METHODS)), ids=METHODS)
def test_events_of_a_run_over_sites(parties: Path, tmp_path: Path, at: int) -> None:
    words = (
        "--engine", "sites", "--sites-at", ",".join(
            str(parties / "sockets" / n) for n in places.NAMES),
        "--site-file", str(parties / "server" / "site.json"), "--images",
        str(parties / "server" / "images"), "--trainer", METHODS[at], *places.WORDS,
        "--rounds", "3", "FED.ASK.WAIT", "3", "FED.ASK.RETRIES", "8", "FED.ASK.SECONDS", "60",
    )
    found = []
    for name, events in (("whole", []), ("run", events_of(at, "site"))):
        there = Processes(tmp_path / f"{name} events", events)
        two = Sites(parties, there)
        try:
            there.play((*words, "--output-dir", str(tmp_path / name)), two.look)
        finally:
            two.end()
        found.append(places.rows(parties, tmp_path / name))
    kept, again = found
    assert jobs.records(tmp_path / "run") == jobs.records(tmp_path / "whole")
    ours = jobs.state(tmp_path / "run")
    assert all(torch.equal(ours[n], v) for n, v in jobs.state(tmp_path / "whole").items())
    assert again.keys() == kept.keys() and all(torch.equal(again[n], kept[n]) for n in kept)


def test_every_kind_comes_to_every_place_and_there_are_enough() -> None:
    for helper in ("", "worker", "site"):
        all_ = [e for at in range(len(METHODS)) for e in events_of(at, helper)]
        assert len(all_) == 24 and len({(p, k) for _, p, k, _ in all_}) == 16
