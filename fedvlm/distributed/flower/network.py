"""A federation on this machine: the SuperLink over TLS, the door for others, and the sites here.

Each site here is one process that begins a SuperNode of its own (``outpost``), as sites on other
machines are once they were admitted; those come by the door (``door``). All of it can be done again
at any time: what runs is left alone, what is missing is begun.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedvlm.core import files
from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.repository import PACKAGE
from fedvlm.distributed.flower import commands, outpost, processes
from fedvlm.distributed.flower.carrier import APP, copy_modules
from fedvlm.distributed.flower.commands import LINK
from fedvlm.distributed.flower.invitation import Invitation, PublicKey, host_port
from fedvlm.distributed.flower.place import HOST, NAME, Place, SitePlan, new_place, read_place
from fedvlm.runs import lock

Say = Callable[[str], None]
START = 180.0  # seconds for a process to be ready
DOOR = "door"  # among the processes
INVITATION = "invitation.json"  # in the folder of a site here
DOOR_PARTS = (*APP, "distributed/flower/invitation.py", "distributed/flower/door.py")
READY = "ready at"  # what a site says when it is built
SHARED = (  # printed as a SuperLink begins
    "only on a machine of your own: Flower does not authenticate other users of this machine, "
    "and apps that they submit run as you"
)
_RUN = re.compile("(.+) #[0-9a-f]{12}")


@dataclass(frozen=True)
class Part:
    """A process of a federation, as ``status`` has it.

    Attributes:
        name: ``link``, ``door``, ``site0``.
        pid: 0 where it does not run.
        where: its address, or how its SuperNode is connected.
        about: what it was begun for.
    """

    name: str
    pid: int
    where: str
    about: str = ""


def up(folder: Path, owners: Sequence[str], say: Say, listen: str = "", reach: str = "") -> Place:
    """Let a federation run, but for the processes of its sites; return its place.

    Args:
        owners: for each site here its ``site.yaml``, or nothing where it gets a part of a run's
            clients; none: of the federation that is there.
        listen: ``host:port`` for sites on other machines; empty: as before.
        reach: ``host:port`` under which they know it; empty: as it listens.

    Raises:
        ConfigError: another federation is there, Flower is not, or a process ends at once.
        FedvlmError: a command of Flower fails.
        DataError: the folder cannot be written.
    """
    place = _place(folder, owners, say, listen, reach or listen)
    _renew(place, say)
    with files.explain_errors(place.home):
        place.home.mkdir(exist_ok=True)
        (place.home / "config.toml").write_text(commands.settings(place))
    _link(place, say)
    for here in place.here:
        _equip(place, here)
    for site in place.sites:
        register(place, site)
    if place.listen:
        _door(place, say)
    return place


def _equip(place: Place, site: SitePlan) -> None:
    """Give a site here its key and its invitation; its public key is noted to be registered."""
    home, old = place.site(site.name), place.keys / site.name
    with files.explain_errors(home):
        home.mkdir(mode=0o700, exist_ok=True)
        if old.is_file() and not (home / outpost.FOLDER).exists():  # where 0.1 kept it
            (home / outpost.FOLDER).mkdir(mode=0o700)
            old.rename(home / outpost.FOLDER / outpost.KEY)
            shutil.copyfile(place.public(site.name), home / outpost.FOLDER / f"{outpost.KEY}.pub")
    key = outpost.make_pair(place.flower, home, site.name)
    files.write_text(place.public(site.name), f"{key.line} {site.name}\n")
    invitation(place, key, place.address).write(home / INVITATION)


def invitation(place: Place, key: PublicKey, address: str) -> Invitation:
    """Return what the site with a key has to know to reach the SuperLink at an address."""
    return Invitation(
        key.name, address, (place.keys / "ca.crt").read_text(encoding="utf-8"), key.fingerprint)


def _place(folder: Path, owners: Sequence[str], say: Say, listen: str, reach: str) -> Place:
    if not (folder / NAME).is_file():
        flower = commands.find_flower()
        version = commands.version_of(flower)
        if version and not version.startswith(commands.TESTED):
            say(f"Flower {version}: tested is {commands.TESTED}")
        return new_place(folder, flower, owners, listen, reach)
    place = read_place(folder)
    there = [site.owner for site in place.here]
    if owners and list(owners) != there:
        whose = f" ({', '.join(filter(None, there))})" if any(there) else ""
        raise ConfigError(
            f"'{folder}' is a federation of {len(there)} other sites{whose}: end it (fedvlm "
            "federation down) and give another --federation FOLDER"
        )
    if listen and (listen, reach) != (place.listen, place.reach):
        processes.end(place, [DOOR])
        place = replace(place, listen=listen, reach=reach)
        place.write()
        away = [site.name for site in place.sites if site.away]
        if away:
            say(f"{', '.join(away)}: their invitations name another address; fedvlm federation "
                "admit writes new ones")
    for part in status(place):
        if part.pid:
            say(f"{part.name} runs already: process {part.pid}, {part.where}")
    return place


def _renew(place: Place, say: Say) -> None:
    """Make certificates that are not there or do not do any more; end what has the old ones."""
    word, why = commands.make_keys(place.flower, place.keys, place.hosts, ())
    if not word:
        return
    say(f"a new certificate of the SuperLink was made: {why}")
    sites = [site.name for site in place.here] if word == "ca" else []
    processes.end(place, [DOOR, *sites])
    processes.end(place, [LINK])
    away = [site.name for site in place.sites if site.away]
    if word == "ca" and away:
        say(f"{', '.join(away)}: they need new invitations (fedvlm federation admit)")


def _link(place: Place, say: Say) -> None:
    """Let the SuperLink run; what one left that was killed is ended first.

    Raises:
        ConfigError: it ends at once, or its port is another program's.
    """
    if processes.pid_of(place, LINK):
        return
    processes.end(place, [LINK])
    if _listens(place.port):
        raise ConfigError(
            f"another program listens at {place.address}, the SuperLink's port: end it, or begin "
            "another --federation FOLDER"
        )
    keys = place.keys
    processes.begin(place, LINK, [
        str(place.flower / "flower-superlink"), "--host", HOST, "--port", str(place.port),
        "--ssl-ca-certfile", str(keys / "ca.crt"), "--ssl-certfile", str(keys / "link.pem"),
        "--ssl-keyfile", str(keys / "link.key"), "--enable-supernode-auth",
        "--disable-runtime-dependency-installation", "--database", str(place.folder / "link.db"),
    ], commands.environ(place), place.folder / "empty")
    _await(place, LINK, HOST, place.port, "the SuperLink did not start")
    say(f"the SuperLink is running: process {processes.pid_of(place, LINK)}, TLS at "
        f"{place.address}")
    say(SHARED)


def _door(place: Place, say: Say) -> None:
    """Let the door for other machines stand open (``ConfigError``: it cannot listen there)."""
    if processes.pid_of(place, DOOR):
        return
    processes.end(place, [DOOR])
    host, port = host_port(place.listen)
    if _listens(port, host):
        raise ConfigError(f"another program listens at {place.listen}: end it, or give another "
                          "--listen HOST:PORT")
    parts = place.folder / DOOR
    copy_modules(parts, DOOR_PARTS)
    place.log(DOOR).unlink(missing_ok=True)
    processes.begin(place, DOOR, [
        str(place.flower / "python"), "-m", "fedvlm.distributed.flower.door", str(place.keys),
        place.address, host, str(port),
    ], commands.environ(place) | {"PYTHONPATH": str(parts)}, place.folder / "empty")
    _await(place, DOOR, host, port, f"the door cannot listen at {place.listen}")
    say(f"the door for sites on other machines is open: process {processes.pid_of(place, DOOR)}, "
        f"TLS at {place.listen}")


def _await(place: Place, name: str, host: str, port: int, failed: str) -> None:
    """Wait until a process that was begun listens (``ConfigError``: it ends, or never does)."""
    until = time.monotonic() + START
    while not (processes.pid_of(place, name) and _listens(port, host)):
        if not processes.pid_of(place, name) or time.monotonic() > until:
            log = place.log(name)
            raise ConfigError(f"{failed}: {processes.tail(log)}; its log is {log}")
        time.sleep(0.2)


def _listens(port: int, host: str = HOST) -> bool:
    any_ = {"0.0.0.0": HOST, "::": "::1"}  # noqa: S104
    try:
        socket.create_connection((any_.get(host, host), port), 1.0).close()
    except OSError:
        return False
    return True


def register(place: Place, site: SitePlan) -> None:
    """Tell the SuperLink a site's public key, once; note the node that it made of it.

    Where it knows the key already (who registered it was killed before the note), it is asked.

    Raises:
        FedvlmError: it is refused, or no node is told.
    """
    if place.node(site.name):
        return
    key = place.public(site.name)
    try:
        told = commands.flwr(place, "supernode", "register", str(key), LINK, "--name", site.name)
        node = told.get("node-id", "")
    except FedvlmError:
        node = commands.node_of(place, key)
        if not node:
            raise
    files.write_text(place.registered(site.name), f"{node}\n")
    if not place.node(site.name):
        raise FedvlmError(f"Flower registered {site.name} but gave no number of its node; use "
                          f"Flower {commands.TESTED} does")


def down(place: Place) -> int:
    """End all processes of a federation; return how many there were.

    Keys, the SuperLink's memory and the states of the sites' clients stay in the folder.

    Raises:
        FedvlmError: a process does not end.
    """
    others = [n for n in processes.names(place) if n != LINK]
    count = processes.end(place, others) + processes.end(place, [LINK])
    left = processes.strays(place)  # by whoever was begun by them
    if left:
        count += len(left)
        processes.end(place, sorted({processes.process_part(pid) for pid in left}))
    return count


def status(place: Place) -> list[Part]:
    """Return all processes of a federation on this machine, those too that do not run."""
    out = [Part(LINK, processes.pid_of(place, LINK), f"TLS at {place.address}")]
    if place.listen:
        out.append(Part(DOOR, processes.pid_of(place, DOOR), f"TLS at {place.listen}"))
    for site in place.here:
        pid = processes.pid_of(place, site.name)
        state = outpost.read_status(place.site(site.name)).get("state", "") if pid else ""
        out.append(Part(site.name, pid, str(state) or "-", processes.about(place, site.name)))
    return out


def errand(run: Path, identity: str) -> str:
    """Return what a site works on for a run: its folder, and the digest of what it is.

    The folder alone does not say it: a run that was deleted can begin there as another one.
    """
    return f"{run} #{identity[:12]}"


def run_of(about: str) -> str:
    """Return the folder of the run that a site was begun for; empty: for an owner's file."""
    told = _RUN.fullmatch(about)
    return told[1] if told else ""


def refuse_busy_federation(place: Place) -> None:
    """Refuse a federation whose sites work for a run that is under way in another process.

    Raises:
        ConfigError: names that run and its process.
    """
    for site in place.here:
        run = run_of(processes.about(place, site.name))
        owner = lock.holder(Path(run)) if run else {}
        if owner and owner["pid"] != os.getpid():
            raise ConfigError(
                f"the sites of '{place.folder}' work for the run in '{run}' (process "
                f"{owner['pid']} on {owner.get('host')}, since {owner.get('since')}): wait for it "
                "or stop it, or begin another federation (fedvlm federation up --loopback "
                f"{len(place.sites)} --federation FOLDER){lock.way_out(Path(run))}"
            )


def begin_site(
    place: Place, site: str, words: Sequence[str], environ: Mapping[str, str], about: str, say: Say
) -> bool:
    """Let a site's process run for ``about``; return whether it was begun now.

    One that works for something else is ended first.

    Args:
        words: after ``python -m``; the file of its invitation comes behind them.
    """
    if processes.pid_of(place, site) and processes.about(place, site) == about:
        return False
    if processes.end(place, [site]):
        say(f"{site}: its process served another run and was ended")
    place.log(site).unlink(missing_ok=True)
    invited = str(place.site(site) / INVITATION)
    processes.begin(place, site, [sys.executable, "-m", *words, "--federation", invited],
                    environ, Path(os.getcwd()), about)
    return True


def serve_owners(place: Place, say: Say) -> None:
    """Let each site here that has an owner be served, and connected.

    Raises:
        ConfigError: one cannot be begun; its last line is shown.
    """
    environ = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    begun = [site.name for site in place.here if begin_site(
        place, site.name, ["fedvlm", "site", "serve", site.owner], environ, site.owner, say)]
    sites_ready(place, begun, START)
    for name in begun:
        say(f"{name}: its process runs, {processes.pid_of(place, name)}")


def sites_ready(place: Place, sites: Sequence[str], seconds: float) -> None:
    """Wait until sites say that they are built and connected.

    Raises:
        ConfigError: one ends before; its last line is shown.
        FedvlmError: it takes longer.
    """
    until = time.monotonic() + seconds
    for site in sites:
        log = place.log(site)
        while not all(word in processes.tail(log, 50) for word in (READY, outpost.CONNECTED)):
            if not processes.pid_of(place, site):
                raise ConfigError(f"the process of {site} did not start: {processes.tail(log)}; "
                                  f"its log is {log}")
            if time.monotonic() > until:
                raise FedvlmError(f"{site} is not ready after {seconds:g} s: "
                                  f"{processes.tail(log)}; its log is {log}")
            time.sleep(0.1)
