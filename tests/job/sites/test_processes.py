"""Sites as processes of their own, at their sockets: one is killed during a run."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests import jobs
from tests.job.sites.places import NAMES, WORDS, make, rows
from tests.job.workers.test_worker_processes import SECONDS, after, started, until
from tests.listeners import tcp_listeners

pytestmark = pytest.mark.slow


@pytest.fixture
def place(tmp_path: Path, few_images: None) -> Path:
    return make(tmp_path / "parties")


class Party:
    """A site's process, begun as often as it has to be."""

    def __init__(self, place: Path, name: str) -> None:
        self.words = (str(place / name / "site.yaml"), "--listen", str(place / "sockets" / name),
                      "CACHE_DIR", str(place / name / "cache"))
        self.begin()

    def begin(self) -> None:
        self.process: subprocess.Popen[str] = started("site serve", *self.words)


@pytest.fixture
def parties(place: Path) -> Iterator[list[Party]]:
    out = [Party(place, name) for name in NAMES]
    yield out
    for party in out:
        party.process.terminate()
        party.process.communicate(timeout=SECONDS)


def test_a_site_that_is_killed_and_begun_again_moves_no_bit(
    place: Path, parties: list[Party], tmp_path: Path
) -> None:
    words = [
        "--engine", "sites", "--sites-at", ",".join(str(place / "sockets" / n) for n in NAMES),
        "--site-file", str(place / "server" / "site.json"), "--images",
        str(place / "server" / "images"), "--trainer", "APFL", *WORDS, "--rounds", "5",
    ]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run = started("run", *words, "--output-dir", str(whole))
    assert "results:" in run.communicate(timeout=SECONDS)[0] and run.returncode == 0
    kept = rows(place, whole)
    run = started("run", *words, "--output-dir", str(killed), "FED.ASK.WAIT", "15",
                  "FED.ASK.RETRIES", "8")
    until(after(killed, 1))
    assert not tcp_listeners([run.pid, *(party.process.pid for party in parties)])
    os.kill(parties[1].process.pid, signal.SIGKILL)
    parties[1].process.communicate()
    parties[1].begin()
    said = run.communicate(timeout=SECONDS)[0]
    assert run.returncode == 0 and "site1: " in said
    assert jobs.records(killed) == jobs.records(whole)
    ours, again = jobs.state(killed), rows(place, killed)
    assert all(torch.equal(ours[n], v) for n, v in jobs.state(whole).items())
    assert again.keys() == kept.keys() and all(torch.equal(again[n], kept[n]) for n in kept)
    stop = started("site stop", parties[0].words[0])
    assert "has stopped" in stop.communicate(timeout=SECONDS)[0] and stop.returncode == 0
