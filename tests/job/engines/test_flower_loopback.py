"""Runs over a real federation on this machine: TLS, registered keys, processes that are killed.

``make test-flower`` runs them; where Flower is not installed they are skipped, unless
``FEDVLM_FLOWER`` says that it is.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedvlm.cli.main import main
from fedvlm.distributed.flower import network, outpost, processes
from fedvlm.distributed.flower.commands import LINK
from fedvlm.distributed.flower.invitation import read_invitation
from fedvlm.distributed.flower.outpost import Outpost
from fedvlm.distributed.flower.place import NAME, Place, SitePlan, read_place
from fedvlm.job.workers.processes import MODULE
from tests import flower, jobs
from tests.listeners import listed, tcp_listeners

pytestmark = pytest.mark.flower
METHODS = ("FedTV", "HEART-PFL", "Hermes", "APFL", "SCAFFOLD", "pFedMoAP")
MORE = {"HEART-PFL": ("TRAINER.HEART-PFL.AKT_PROXY", "holdout", "DATASET.SERVER_HOLDOUT", "2")}
KILLED = ("--trainer", "APFL", "--rounds", "3")  # the runs of which something is killed


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A federation of two sites, by the command."""
    flower.need()
    folder = tmp_path_factory.mktemp("flower") / "federation"
    code, text = flower.said(flower.started(
        "federation", "up", "--loopback", "2", "--federation", str(folder)))
    assert code == 0 and "2 sites are registered" in text, text
    try:
        yield read_place(folder)
    finally:
        network.down(read_place(folder))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that others are compared with after something was killed."""
    output = tmp_path_factory.mktemp("local")
    assert main(flower.words_of(output, None, *KILLED)) == 0
    return output


def until(true: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    end = time.monotonic() + flower.SECONDS
    while not true():
        assert time.monotonic() < end
        assert process is None or process.poll() is None, process.communicate()[0]
        time.sleep(0.1)


def rounds(output: Path) -> int:
    return max((len(p.read_text().splitlines()) for p in output.rglob("metrics.jsonl")), default=0)


@pytest.mark.parametrize("trainer", METHODS)
def test_a_run_over_tls_has_the_bits_of_the_local_engine(
    place: Place, tmp_path: Path, trainer: str
) -> None:
    more = ("--trainer", trainer, *MORE.get(trainer, ()))
    assert main(flower.words_of(tmp_path / "local", None, *more)) == 0
    assert main(flower.words_of(tmp_path / "away", place.folder, *more)) == 0
    flower.same(tmp_path / "away", tmp_path / "local", place)
    held_to_the_list(place)


def held_to_the_list(place: Place) -> None:
    """All that listens in a federation stands in the written list, with its address."""
    found = {
        (re.sub(r"^site\d+$", "site", processes.process_part(pid)), host)
        for pid, host, _ in tcp_listeners(processes.strays(place))
    }
    assert found == {(name, listed()[name]) for name in ("link", "site")}


def test_superlink_killed_is_said_and_the_run_goes_on_with_the_same_bits(
    place: Place, local: Path, tmp_path: Path
) -> None:
    words = flower.words_of(tmp_path, place.folder, *KILLED)
    run = flower.started(*words)
    until(lambda: rounds(tmp_path) > 1, run)
    os.kill(processes.pid_of(place, LINK), signal.SIGKILL)
    code, text = flower.said(run)
    assert code == 6, text
    assert "the SuperLink is not running: start it with fedvlm federation up" in text
    assert "is kept; run the same command again to continue" in text
    code, text = flower.said(flower.started("federation", "status", "--federation",
                                            str(place.folder)))
    assert code == 1 and "link is not running" in text
    code, text = flower.said(flower.started("federation", "up", "--federation", str(place.folder)))
    assert code == 0 and "site0 runs already" in text and "the SuperLink is running" in text
    code, text = flower.said(flower.started(*words))
    assert code == 0 and "resuming after round" in text, text
    flower.same(tmp_path, local, place)


def test_a_site_killed_ends_below_the_quorum_and_the_same_command_goes_on(
    place: Place, local: Path, tmp_path: Path
) -> None:
    """Its SuperNode says good-bye as it goes, so that it is not waited for."""
    words = flower.words_of(tmp_path, place.folder, *KILLED)
    run = flower.started(*words)
    until(lambda: rounds(tmp_path) > 1, run)
    os.kill(processes.pid_of(place, "site1"), signal.SIGKILL)
    code, text = flower.said(run)
    assert code == 6 and "site1: it is not connected to the SuperLink" in text, text
    code, text = flower.said(flower.started(*words))
    assert code == 0, text
    flower.same(tmp_path, local, place)


def test_a_key_that_is_not_registered_is_refused(place: Place, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    shutil.copy(place.keys / "ca.crt", keys)
    stranger = replace(place, folder=tmp_path, sites=(SitePlan("stranger"),))
    network._equip(stranger, stranger.sites[0])
    told: list[str] = []
    home = stranger.site("stranger")
    with Outpost([home], read_invitation(home / network.INVITATION), told.append) as post:
        until(lambda: told)
    assert "the SuperLink refuses this site's key: it is not admitted" in told[0], told
    text = post.log.read_text()
    assert outpost.LET_IN not in text and "2004" in text, text


def test_a_site_of_another_config_is_refused_by_the_names_of_its_keys(
    place: Place, tmp_path: Path
) -> None:
    words = flower.words_of(tmp_path / "run", place.folder)
    run = flower.started(*words)  # until the sites are there: then one is begun by hand
    until(lambda: list(tmp_path.rglob("config.yaml")) and rounds(tmp_path) > 0, run)
    run.kill()
    run.communicate()
    about = processes.about(place, "site0")
    processes.end(place, ["site0"])
    other = shutil.copytree(jobs.folder(tmp_path / "run"), tmp_path / "other")
    config = (other / "config.yaml").read_text()
    changed = re.sub(r"(?m)^  LR: \S+", "  LR: 0.5", config)
    assert changed != config
    (other / "config.yaml").write_text(changed)
    network.begin_site(place, "site0", [
        MODULE, str(other), str(place.states("site0")), "--clients", "0,1",
    ], os.environ | {"PYTHONPATH": str(jobs.REPOSITORY)}, about, print)
    network.sites_ready(place, ["site0"], flower.SECONDS)
    code, text = flower.said(flower.started(*words))
    assert code == 2 and "site0 cannot take part: the config differs in OPTIM.LR" in text, text


def test_down_leaves_no_process_and_no_port(place: Place) -> None:
    code, text = flower.said(flower.started("federation", "down", "--federation",
                                            str(place.folder)))
    assert code == 0 and "processes stopped" in text
    assert not processes.strays(place) and not any(p.pid for p in network.status(place))
    assert not network._listens(place.port) and (place.folder / NAME).is_file()
    code, text = flower.said(flower.started(*flower.words_of(place.folder, place.folder)))
    assert code == 2 and "the SuperLink is not running" in text
    assert not processes.names(place)
