"""A federation's folder: who is in it, at which ports, and where keys, logs and states lie.

``federation.json`` says what ``fedvlm federation up`` made. Beside it: ``keys/`` (certificate, node
keys), ``logs/``, ``pids/``, ``flwr/`` (Flower's own home), ``link.db`` (the SuperLink's memory),
``<site>/`` of each site on this machine: its key, its invitation, the states of its clients. Only
its owner may look into it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.distributed.flower.invitation import host_port

FORMAT = "fedvlm-federation/1"
NAME, FOLDER = "federation.json", "federation"
HOST = "127.0.0.1"
ANY = ("0.0.0.0", "::")  # noqa: S104  # every address of a machine: listened at, never called
MOST = 64  # sites on one machine


@dataclass(frozen=True)
class SitePlan:
    """A site of a federation.

    Attributes:
        name: under which its key is registered.
        owner: its ``site.yaml``; empty: it gets a part of a run's clients.
        away: its process and data are on a machine of its own.
    """

    name: str
    owner: str = ""
    away: bool = False


@dataclass(frozen=True)
class Place:
    """A federation on this machine.

    Attributes:
        folder: its folder.
        flower: folder of Flower's commands.
        port: of the SuperLink.
        sites: in their order.
        mark: a word in the environment of all its processes.
        listen: ``host:port`` for sites of other machines; empty: there are none.
        reach: ``host:port`` under which they know it.
    """

    folder: Path
    flower: Path
    port: int
    sites: tuple[SitePlan, ...]
    mark: str
    listen: str = ""
    reach: str = ""

    @property
    def keys(self) -> Path:
        """Return the folder of certificates and public keys."""
        return self.folder / "keys"

    @property
    def home(self) -> Path:
        """Return Flower's own home: settings, bundles of the relay."""
        return self.folder / "flwr"

    @property
    def address(self) -> str:
        """Return the SuperLink's address."""
        return f"{HOST}:{self.port}"

    @property
    def hosts(self) -> list[str]:
        """Return the names of this machine that its certificate has to be for."""
        told = [host_port(address)[0] for address in (self.listen, self.reach) if address]
        return ["localhost", *(host for host in told if host not in ANY)]

    @property
    def here(self) -> list[SitePlan]:
        """Return the sites on this machine."""
        return [site for site in self.sites if not site.away]

    @property
    def invitations(self) -> Path:
        """Return the folder of what is handed to sites on other machines."""
        return self.folder / "invitations"

    def invitation(self, site: str) -> Path:
        """Return the file that is handed to a site on another machine."""
        return self.invitations / f"{site}.json"

    def log(self, name: str) -> Path:
        """Return where what a process says is kept."""
        return self.folder / "logs" / f"{name}.log"

    def public(self, site: str) -> Path:
        """Return the file with the public key of a site."""
        return self.keys / f"{site}.pub"

    def registered(self, site: str) -> Path:
        """Return the file with the number that the SuperLink gave to a site's key."""
        return self.keys / f"{site}.registered"

    def node(self, site: str) -> int:
        """Return the number that the SuperLink gave to a site's key; 0: it has none yet."""
        with contextlib.suppress(OSError, ValueError):
            return int(self.registered(site).read_text(encoding="utf-8"))
        return 0

    def site(self, site: str) -> Path:
        """Return the folder of a site on this machine."""
        return self.folder / site

    def states(self, site: str) -> Path:
        """Return the folder of the states of a site's clients."""
        return self.site(site) / "states"

    def write(self) -> None:
        """Write the plan.

        Raises:
            DataError: the folder cannot be written.
        """
        plain = asdict(self) | {"format": FORMAT, "flower": str(self.flower)}
        del plain["folder"]
        files.write_json(self.folder / NAME, plain)


def new_place(
    folder: Path, flower: Path, owners: Sequence[str], listen: str = "", reach: str = ""
) -> Place:
    """Return a new federation's place, its folders made and its plan written.

    Args:
        owners: for each site on this machine, see ``SitePlan.owner``.
        listen, reach: see ``Place``.

    Raises:
        ConfigError: the folder holds something else.
        DataError: it cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"'{folder}' is not a federation and not empty: give another --federation FOLDER")
    folder = folder.absolute()
    with files.explain_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        os.chmod(folder, 0o700)
        sites = tuple(SitePlan(f"site{i}", owner) for i, owner in enumerate(owners))
        place = Place(folder, flower, free_port(), sites, secrets.token_hex(8), listen, reach)
        for part in ("keys", "logs", "pids", "flwr", "empty", *(s.name for s in sites)):
            (folder / part).mkdir(mode=0o700)
    place.write()
    return place


def read_place(folder: Path) -> Place:
    """Return the federation in a folder.

    Raises:
        ConfigError: there is none.
        DataError: its plan is damaged.
    """
    folder = folder.absolute()  # processes have another folder
    path = folder / NAME
    if not path.is_file():
        raise ConfigError(
            f"there is no federation in '{folder}': begin one with fedvlm federation up --loopback "
            "2, or give --federation FOLDER"
        )
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        if plain["format"] != FORMAT:
            raise ValueError("format")
        sites = tuple(
            SitePlan(str(s["name"]), str(s["owner"]), bool(s.get("away"))) for s in plain["sites"])
        place = Place(
            folder, Path(plain["flower"]), int(plain["port"]), sites, str(plain["mark"]),
            str(plain.get("listen", "")), str(plain.get("reach", "")),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"'{path}' is damaged: end its processes (fedvlm federation down cannot any more), "
            "remove the folder and start again"
        ) from error
    return place


def free_port() -> int:
    """Return a port of this machine that no program has now."""
    with socket.create_server((HOST, 0)) as door:
        return int(door.getsockname()[1])


def split_evenly(clients: int, sites: int) -> str:
    """Return ranges of clients for sites, as equal as can be (``FED.SITES``)."""
    bounds = [clients * i // sites for i in range(sites + 1)]
    return ",".join(f"{a}-{b - 1}" if b - a > 1 else f"{a}" for a, b in zip(bounds, bounds[1:]))
