"""What tests of the Flower carrier share: runs of the job over a federation, and their bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedvlm.core.errors import ConfigError
from fedvlm.distributed.flower import commands
from fedvlm.distributed.flower.place import Place
from fedvlm.distributed.store import SiteStore
from tests import jobs

SITES = "0-1,2-3"
WORDS = ("--demo", "--partition", "disjoint", "--shots", "2", "--rounds", "2", "--num-users", "4",
         "--local-epochs", "1")
# Flower gives up a process that takes 30 s to start, and says so only when time is up.
QUICK = ("TEST.REFERENCES", "False", "FED.ASK.SECONDS", "150")
SECONDS = 1200


def need() -> None:
    """Skip the test where Flower is not installed; fail where ``make test-flower`` names it."""
    try:
        commands.find_flower()
    except ConfigError as error:
        if os.environ.get(commands.VARIABLE):
            pytest.fail(str(error))
        pytest.skip(str(error))


def started(*words: str, cwd: Path = jobs.REPOSITORY) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fedvlm", *words], cwd=cwd, text=True,
        env=os.environ | {"PYTHONPATH": str(jobs.REPOSITORY), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )


def said(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        text = process.communicate(timeout=SECONDS)[0]
    finally:
        process.kill()  # nothing, where it has ended
    return process.returncode, text


def words_of(output: Path, place: Path | None, *more: str) -> list[str]:
    engine = ["--engine", "flower", "--federation", str(place)] if place else []
    return ["run", *WORDS, "--output-dir", str(output), *engine, *more, "FED.SITES", SITES, *QUICK]


def rows(output: Path, place: Place) -> dict[str, torch.Tensor]:
    """The clients' tensors on the disks of their sites, named as in a local state."""
    run = (jobs.folder(output) / "workers" / "run").read_text().strip()
    found: dict[str, torch.Tensor] = {}
    versions = {int(n.split("|")[1]): int(n.split("|")[2]) for n in local_names(output)}
    for at, site in enumerate(place.sites):
        store = SiteStore(place.states(site.name), run, torch.device("cpu"))
        for client in (2 * at, 2 * at + 1):
            if versions.get(client):
                ((_, state),) = store.get([client], [versions[client]])
                found |= {f"clients|{client}|{versions[client]}|{slot}|{name}": v[0]
                          for slot, tree in state.items() for name, v in tree.items()}
    return found


def local_names(output: Path) -> list[str]:
    """Names of clients and versions that the driver's newest state speaks of."""
    from fedvlm.api.rebuild import rebuild

    run = rebuild(jobs.folder(output), "cpu")
    return [f"clients|{c}|{v}" for c, v in run.state.versions.items()]


def same(away: Path, local: Path, place: Place) -> None:
    """Server's tensors, sites' tensors and all rows of numbers are those of the local run."""
    assert jobs.records(away) == jobs.records(local)
    left, right = jobs.state(away) | rows(away, place), jobs.state(local)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[n], right[n]) for n in right)
    assert [n for n in right if n.startswith("clients|")]
