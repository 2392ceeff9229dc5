"""Secure sums of three sites over Flower: TLS, real processes; what arrives at the coordinator.

``make test-flower`` runs it, as ``test_machines``; the reference goes over the Unix sockets.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from fedvlm.cli.main import main
from fedvlm.distributed.carriers import Carrier
from fedvlm.distributed.flower import network, processes
from fedvlm.distributed.flower.carrier import Flower
from fedvlm.distributed.flower.place import Place, read_place
from fedvlm.distributed.sockets.sites import SiteSockets
from fedvlm.distributed.sums.masks import to_fixed
from fedvlm.distributed.wire import Frame, pack, unpack
from tests import flower, jobs
from tests.distributed.grid import leaks
from tests.job.sites import places

pytestmark = pytest.mark.flower
pytest.importorskip("cryptography")
SITES = ("site0", "site1", "site2")
ONE_ROUND = ("--trainer", "APFL", "--num-users", "3", "--rounds", "1", *flower.QUICK)
SUMS = (*ONE_ROUND, "FED.SECURE_SUM", "True")
LOSS = 3 * 2.0**-41  # of three sites: half a step of 2^-40 each


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three parties of one client each, and a coordinator."""
    flower.need()
    folder = tmp_path_factory.mktemp("parties")
    words = ("--demo", "--partition", "disjoint", "--num-users", "3", "--shots", "2")
    assert main(["site", "make", "--split", "0,1,2", "--to", str(folder), *words]) == 0
    for name in SITES:
        (folder / name / "site.yaml").write_text(places.RULES)
    return folder


@pytest.fixture
def place(parties: Path) -> Iterator[Place]:
    """Their federation, which is up when a test begins."""
    up(parties)
    try:
        yield read_place(parties / "federation")
    finally:
        network.down(read_place(parties / "federation"))


def up(parties: Path) -> None:
    files = [str(parties / name / "site.yaml") for name in SITES]
    code, text = flower.said(flower.started(
        "federation", "up", *files, "--federation", str(parties / "federation")))
    assert code == 0 and "3 sites in it" in text, text


@contextmanager
def at_sockets(parties: Path) -> Iterator[str]:
    """The same sites at Unix sockets; yields ``--sites-at``."""
    ports = [parties / "sockets" / name for name in SITES]
    served = [subprocess.Popen(
        [sys.executable, "-m", "fedvlm", "site", "serve", str(parties / name / "site.yaml"),
         "--listen", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(jobs.REPOSITORY), "OMP_NUM_THREADS": "1"},
    ) for name, port in zip(SITES, ports, strict=True)]
    try:
        yield ",".join(map(str, ports))
    finally:
        for process in served:
            process.terminate()
            process.wait(flower.SECONDS)


def run(
    parties: Path, output: Path, *words: str
) -> tuple[int, list[tuple[str, Frame]]]:
    """Run a coordinator in this process; return its exit code, and what it and the sites sent."""
    carried: list[tuple[str, Frame]] = []

    def tapped(kind: type[Carrier]) -> None:
        plain = kind.ask

        def ask(self: Carrier, frames: Mapping[str, bytes], seconds: float) -> object:
            out = plain(self, frames, seconds)
            carried.extend((s, unpack(v)) for some in (frames, out) for s, v in some.items()
                           if isinstance(v, bytes))
            return out

        patch.setattr(kind, "ask", ask)

    with pytest.MonkeyPatch.context() as patch:
        for kind in (Flower, SiteSockets):
            tapped(kind)
        server = parties / "server"
        code = main(["run", "--engine", "sites", "--site-file", str(server / "site.json"),
                     "--images", str(server / "images"), "--output-dir", str(output),
                     *places.WORDS, *words])
    return code, carried


def of_server(output: Path) -> dict[str, torch.Tensor]:
    return {n: v for n, v in jobs.state(output).items() if n.startswith("server|w|")}


def test_sums_over_flower_are_those_over_sockets_and_what_arrives_is_masked(
    parties: Path, place: Place, tmp_path: Path
) -> None:
    """Bit for bit; and the plain mean's but for the stated loss and a rounding of float32."""
    away, plain, near = tmp_path / "away", tmp_path / "plain", tmp_path / "near"
    at = ("--federation", str(place.folder))
    (code, single), (again, arrived) = (run(parties, to, *at, *words) for to, words in (
        (plain, ONE_ROUND), (away, SUMS)))
    assert code == again == 0
    network.down(place)  # one process serves a site
    with at_sockets(parties) as ports:
        assert run(parties, near, "--sites-at", ports, *SUMS)[0] == 0
    ours, theirs, mean = of_server(away), of_server(near), of_server(plain)
    assert ours and ours.keys() == theirs.keys() == mean.keys()
    assert jobs.records(away) == jobs.records(near)
    for name, v in mean.items():
        assert torch.equal(ours[name], theirs[name]), name
        gap = (ours[name].double() - v.double()).abs()
        assert bool((gap <= LOSS + 2.0**-23 * v.double().abs()).all()), name

    ops = [frame.op for _, frame in arrived]
    assert ops.count("masked") == 3 and ops.count("unmasked") == 3 and "worked" not in ops
    updates = {site: frame.trees for site, frame in single if frame.op == "worked"}
    start = {site: next(iter(frame.trees.values())) for site, frame in single if frame.op == "work"}
    whole = sum(float(trees["told/0"]["weight"].sum()) for trees in updates.values())
    secret = dict[str, torch.Tensor]()
    for site, trees in updates.items():
        part = float(trees["told/0"]["weight"][0]) / whole
        for name, v in trees["up/0"].items():
            move = v[0].double() - start[site][name].double()
            coded = torch.from_numpy(to_fixed((part * move).numpy()).view(np.int64))
            secret |= {f"{name} of {site}": v[0], f"move of {name} of {site}": move,
                       f"coded {name} of {site}": coded}
    assert {what.split()[-1] for what in secret} == {*SITES} and len(secret) == 9 * len(mean)
    assert leaks(secret, [pack(frame) for _, frame in single])  # it finds them where they are
    assert leaks(secret, [pack(frame) for _, frame in arrived]) == []
    for site, frame in arrived:
        if frame.op == "masked":
            vector = frame.trees["sum"]["sum"].numpy()
            bits = np.unpackbits(vector.view(np.uint8)).mean()
            assert abs(bits - 0.5) < 6 * 0.5 / (64 * len(vector)) ** 0.5, site


def test_below_the_threshold_the_run_ends_with_a_sentence(
    parties: Path, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With three sites nobody may drop out, whatever the quorum; with all three it goes on."""
    words = ("--federation", str(place.folder), *SUMS, "--rounds", "2", "FED.ASK.RETRIES", "0",
             "FED.UNRELIABLE.QUORUM", "0.5")
    plain, asked = Flower.ask, list[str]()

    def ask(self: Flower, frames: Mapping[str, bytes], seconds: float) -> object:
        ops = {(f.op, f.values.get("round")) for f in map(unpack, frames.values())}
        if ("mask", 2) in ops and not asked:
            asked.append("site2")
            os.kill(processes.pid_of(place, "site2"), signal.SIGKILL)
        return plain(self, frames, seconds)

    with monkeypatch.context() as patch:
        patch.setattr(Flower, "ask", ask)
        assert run(parties, tmp_path, *words)[0] == 6
    said = " ".join(capsys.readouterr().err.split())
    assert "round 2: 2 of 3 sites sent a sum, and a secure sum takes 3 of them (site2: " in said
    assert "the state of round 1 is kept; run the same command again to continue" in said
    up(parties)
    code, arrived = run(parties, tmp_path, *words)
    assert code == 0 and "worked" not in [frame.op for _, frame in arrived]
    assert [record["round"] for record in jobs.records(tmp_path)][-1] == 2
