"""Parties and a coordinator that share no folder, over Flower: other addresses of this machine.

``make test-flower`` runs it. Each party has a folder, a home and a key of its own; what they hand
to each other are the two files that the commands write.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedvlm.distributed.flower import commands, network, processes
from fedvlm.distributed.flower.commands import LINK
from fedvlm.distributed.flower.outpost import read_status
from fedvlm.distributed.flower.place import Place, free_port, read_place
from tests import flower, jobs
from tests.job.sites.places import NAMES, WORDS, make
from tests.job.sites.test_parties import same
from tests.listeners import listed, tcp_listeners

pytestmark = pytest.mark.flower
CLINICS = ("clinic_a", "clinic_b")
FOREIGN = '''
from pathlib import Path
Path({proof!r}).write_text("was run")
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()

@app.query()
def query(message, context):
    return Message(RecordDict(), reply_to=message)
'''
ASKS = '''
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()

@app.main()
def main(grid, context):
    ask = [Message(RecordDict({{"frame": ConfigRecord()}}), dst_node_id=n.node_id,
                   message_type="query") for n in grid.get_nodes()]
    told = [r.error.reason if r.has_error() else "" for r in grid.send_and_receive(ask, timeout=90)]
    Path({proof!r} + ".tmp").write_text("|".join(told))
    Path({proof!r} + ".tmp").rename({proof!r})
'''


@dataclass
class Machines:
    """What the parties and the coordinator have.

    Attributes:
        parties: folder with a folder of each party, and the server's.
        place: the coordinator's federation.
        served: the parties' processes.
    """

    parties: Path
    place: Place
    served: dict[str, subprocess.Popen[str]]

    def yaml(self, name: str) -> Path:
        return self.parties / name / "site.yaml"

    def serve(self, name: str) -> None:
        """Let a party serve its site, with a home of its own."""
        folder = self.parties / name
        (folder / "home").mkdir(exist_ok=True)
        self.served[name] = subprocess.Popen(
            [sys.executable, "-m", "fedvlm", "site", "serve", "site.yaml", "--federation",
             f"{CLINICS[NAMES.index(name)]}.json", "CACHE_DIR", "cache"],
            cwd=folder, env=os.environ | {"PYTHONPATH": str(jobs.REPOSITORY), "HOME": str(
                folder / "home"), "OMP_NUM_THREADS": "1"},
            stdout=(folder / "log").open("w"), stderr=subprocess.STDOUT, text=True,
        )

    def log(self, name: str) -> str:
        return (self.parties / name / "log").read_text()

    def is_connected(self, name: str) -> bool:
        assert self.served[name].poll() is None, self.log(name)
        return "connected to" in self.log(name)

    def stop(self, name: str) -> None:
        process = self.served.pop(name)
        process.terminate()
        process.wait(flower.SECONDS)


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + flower.SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.2)


def nodes(folder: Path) -> list[str]:
    """The SuperNodes of a party that live."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.endswith(b"relay.node") for word in words) and any(
                word.startswith(os.fsencode(folder)) for word in words):
            found.append(path.parent.name)
    return found


def fedvlm(*words: str) -> str:
    code, text = flower.said(flower.started(*words))
    assert code == 0, text
    return text


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """Two parties that were admitted, and serve."""
    flower.need()
    parties = make(tmp_path_factory.mktemp("machines"))
    folder = tmp_path_factory.mktemp("coordinator") / "federation"
    where = ("--federation", str(folder))
    address = f"127.0.0.2:{free_port()}"
    assert "a site on another machine: run fedvlm site key there" in fedvlm(
        "federation", "up", "--listen", address, *where)
    out = Machines(parties, read_place(folder), {})
    try:
        for name, clinic in zip(NAMES, CLINICS, strict=True):
            fedvlm("site", "key", str(out.yaml(name)), "--name", clinic)
            said = fedvlm("federation", "admit", str(parties / name / f"{clinic}.pub"), *where)
            assert f"{clinic} is admitted by its key SHA256:" in said and address in said
            shutil.copy(folder / "invitations" / f"{clinic}.json", parties / name)
            out.serve(name)
        for name in NAMES:
            until(lambda name=name: out.is_connected(name))
        yield Machines(parties, read_place(folder), out.served)
    finally:
        for name in list(out.served):
            out.stop(name)
        network.down(read_place(folder))


def run(machines: Machines, output: Path, *more: str) -> tuple[int, str]:
    server = machines.parties / "server"
    return flower.said(flower.started(
        "run", "--engine", "sites", "--federation", str(machines.place.folder), "--site-file",
        str(server / "site.json"), "--images", str(server / "images"), "--output-dir",
        str(output), *WORDS, *more))


def test_parties_on_machines_of_their_own_have_the_bits_of_the_run_that_sees_all(
    machines: Machines, tmp_path: Path
) -> None:
    whole, away = tmp_path / "whole", tmp_path / "away"
    assert jobs.run(whole, "--trainer", "FedTV", "FED.SITES", "0,1") == 0
    code, text = run(machines, away, "--trainer", "FedTV")
    assert code == 0, text
    assert "clinic_a: clients 0" in text and "clinic_b: clients 1" in text
    same(machines.parties, away, whole)
    text = fedvlm("federation", "status", "--federation", str(machines.place.folder))
    assert text.count("a machine of its own") == 2 and "not connected" not in text
    assert f"as {CLINICS[0]}: connected" in fedvlm("site", "status", str(machines.yaml(NAMES[0])))
    door = machines.place.listen.partition(":")[0]
    told = {(processes.process_part(pid), host)
            for pid, host, _ in tcp_listeners(processes.strays(machines.place))}
    assert told == {("link", listed()["link"]), ("door", door)} and listed()["door"] == "--listen"
    nodes_ = [int(pid) for name in NAMES for pid in nodes(machines.parties / name)]
    served = [process.pid for process in machines.served.values()]
    told_ = {host for _, host, _ in tcp_listeners([*nodes_, *served])}
    assert len(nodes_) == 2 and told_ == {listed()["site"]}
    code, text = run(machines, tmp_path / "no", "--trainer", "PromptFL")
    assert code == 2 and "this method is not allowed (rule 'trainers')" in text, text


def test_a_site_runs_no_app_from_the_wire(machines: Machines, tmp_path: Path) -> None:
    """An app that somebody submits to the SuperLink; it answers with the installed relay alone."""
    app, proofs = tmp_path / "app", (tmp_path / "client", tmp_path / "server")
    (app / "foreign").mkdir(parents=True)
    (app / "foreign" / "__init__.py").touch()
    (app / "foreign" / "c.py").write_text(FOREIGN.format(proof=str(proofs[0])))
    (app / "foreign" / "s.py").write_text(ASKS.format(proof=str(proofs[1])))
    (app / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "foreign"\nversion = "1.0"\nlicense = "Apache-2.0"\ndependencies = []\n'
        '[tool.flwr.app]\npublisher = "stranger"\n[tool.flwr.app.components]\n'
        'serverapp = "foreign.s:app"\nclientapp = "foreign.c:app"\n[tool.flwr.app.config]\n')
    commands.flwr(machines.place, "run", str(app), LINK)
    until(proofs[1].exists)
    assert proofs[1].read_text() == "the relay failed|the relay failed"  # it is no frame
    assert not proofs[0].exists()
    assert not list(machines.parties.rglob("foreign")) and not list(machines.parties.rglob("*.fab"))


def test_a_site_that_is_killed_takes_its_supernode_with_it(machines: Machines) -> None:
    folder = machines.parties / NAMES[1]
    assert len(nodes(folder)) == 1
    machines.served[NAMES[1]].kill()
    until(lambda: not nodes(folder))
    machines.stop(NAMES[1])
    machines.serve(NAMES[1])
    until(lambda: read_status(folder).get("state") == "connected")


def test_who_is_dismissed_stays_outside_and_comes_back_with_another_key(
    machines: Machines,
) -> None:
    folder, where = machines.parties / NAMES[1], ("--federation", str(machines.place.folder))
    fedvlm("federation", "dismiss", CLINICS[1], *where)
    until(lambda: "not connected: its key is refused" in machines.log(NAMES[1]))
    machines.stop(NAMES[1])
    assert not nodes(folder)
    key = folder / f"{CLINICS[1]}.pub"
    code, text = flower.said(flower.started("federation", "admit", str(key), *where))
    assert code == 2 and "was dismissed, and the SuperLink takes no key twice" in text
    fedvlm("site", "key", str(machines.yaml(NAMES[1])), "--name", CLINICS[1], "--anew")
    fedvlm("federation", "admit", str(key), *where)
    code, text = flower.said(flower.started(
        "site", "serve", str(machines.yaml(NAMES[1])), "--federation",
        str(folder / f"{CLINICS[1]}.json")))
    assert code == 2 and "the invitation is for the key SHA256:" in text
    shutil.copy(machines.place.invitation(CLINICS[1]), folder)
    machines.serve(NAMES[1])
    until(lambda: "connected to" in machines.log(NAMES[1]))


KEYS = """
import datetime, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import keys
from cryptography import x509
folder = Path(sys.argv[2])
cert = lambda n: x509.load_pem_x509_certificate((folder / n).read_bytes())
keys.DAYS = 10
assert keys.main(folder, ["localhost", "127.0.0.2"], ["site0"]) == ("", "")
root, leaf = cert("ca.crt"), cert("link.pem")
leaf.verify_directly_issued_by(root)
keys.DAYS = 365
word, why = keys.main(folder, ["localhost"], [])
assert word == "link" and why.startswith("it ends on "), (word, why)
assert cert("ca.crt") == root and cert("link.pem") != leaf
cert("link.pem").verify_directly_issued_by(root)
assert keys.main(folder, ["localhost", "::1"], []) == ("", "")
assert keys.main(folder, ["host.example"], []) == ("link", "it is not for host.example")
(folder / "ca.key").unlink()
assert keys.main(folder, ["other.example"], [])[0] == "ca" and cert("ca.crt") != root
cert("link.pem").verify_directly_issued_by(cert("ca.crt"))
keys.YEARS = keys.DAYS = 0
(folder / "ca.crt").unlink()
keys.main(folder, ["localhost"], [])
keys.YEARS, keys.DAYS = 10, 365
word, why = keys.main(folder, ["localhost"], [])
assert word == "ca" and why.startswith("it ended on "), (word, why)
assert all((folder / n).stat().st_mode & 0o77 == 0 for n in ("ca.key", "link.key", "site0"))
"""


def test_certificates_that_do_not_do_any_more_are_made_anew(
    machines: Machines, tmp_path: Path
) -> None:
    done = subprocess.run(
        [str(machines.place.flower / "python"), "-c", KEYS,
         str(Path(commands.__file__).parent), str(tmp_path)],
        capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
