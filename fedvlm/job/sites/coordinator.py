"""The coordinator's side: a run whose clients are all at sites; it has no image of theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from fedvlm.core.errors import ConfigError
from fedvlm.core.progress import Progress
from fedvlm.data.own.site import SiteFile
from fedvlm.distributed.carriers import Carrier
from fedvlm.distributed.facts import digest
from fedvlm.distributed.server.policy import Policy
from fedvlm.distributed.server.remote import RemoteEngine
from fedvlm.job.build import Built, build_run, chunk_of
from fedvlm.job.inputs import ServerInputs
from fedvlm.job.sites.party import config_plain
from fedvlm.job.sites.sums import engine_of

WAIT = 600.0  # seconds for all sites to be there


@dataclass
class Coordinator:
    """A run that may begin: its server's side, and the engine that asks the sites.

    Attributes:
        built: ``global`` is measured on the public test set of the server's file, if it has one;
            everything of clients comes from their sites.
    """

    built: Built
    engine: RemoteEngine


def coordinate(
    cfg: CfgNode, file: SiteFile, folder: Path, carrier: Carrier, run_id: str,
    policy: Policy | None = None, say: Callable[[str], None] = lambda words: None,
    progress: Progress | None = None, seconds: float = WAIT,
) -> Coordinator:
    """Meet the sites, build the server's side of what they say, and join both.

    Args:
        cfg: of the run; the sites' must be the same.
        file: class names, templates, perhaps a public test set and the server's own images.
        folder: where those are.
        run_id: hex digits; sites keep the run's states under it.
        say: hears what goes wrong with sites.
        seconds: to wait for all of them.

    Raises:
        ConfigError: ``file`` has clients, a site refuses or differs, clients have no site, or the
            method wants server images that are not there.
    """
    check_file(file)
    engine = engine_of(cfg)(
        carrier, config_plain(cfg), policy=policy or Policy(), run_id=run_id, say=say
    )
    engine.meet(int(cfg.FED.CLIENTS), seconds)
    built = build_run(cfg, progress, inputs=inputs_of(engine, file, folder))
    join_sites(engine, built)
    return Coordinator(built, engine)


def check_file(file: SiteFile) -> None:
    """Refuse a server's file that has images of clients.

    Raises:
        ConfigError: it has.
    """
    if file.clients:
        raise ConfigError(
            f"the server's site file contains images of clients {sorted(file.clients)[:8]}, which "
            "must stay at their sites (fedvlm site make without --client writes a file for a "
            "server)"
        )


def inputs_of(
    engine: RemoteEngine, file: SiteFile, folder: Path, forgotten: Mapping[str, Any] | None = None
) -> ServerInputs:
    """Return what the server's side of a run is built of, once the sites were met."""
    told = sorted([sorted(map(int, site["clients"])), site["data"]]
                  for site in engine.members.welcomes().values())
    return ServerInputs(file, folder, engine.members.roster(), digest(told), forgotten)


def join_sites(engine: RemoteEngine, built: Built) -> None:
    """Let the clients of a run be at the sites that were met.

    Raises:
        ConfigError: as ``RemoteEngine.join``.
    """
    engine.chunk = chunk_of(built.cfg, built.model, built.federation.trainer)
    built.federation.meter = None
    engine.join(built.federation)
