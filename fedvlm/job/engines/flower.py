"""Clients of a simulation at sites behind Flower (``FED.ENGINE flower``).

The federation was begun by ``fedvlm federation up``; its sites get a part of the clients each
(``FED.SITES``): a process that has built this very run and keeps their states. The driver is the
ordinary job.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from yacs.config import CfgNode

from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import user_path
from fedvlm.core.rows.away import AwayStore
from fedvlm.core.threads import usual_threads
from fedvlm.distributed.flower import processes
from fedvlm.distributed.flower.carrier import Flower
from fedvlm.distributed.flower.commands import LINK, find_flower
from fedvlm.distributed.flower.network import (
    begin_site,
    down,
    errand,
    refuse_busy_federation,
    sites_ready,
    up,
)
from fedvlm.distributed.flower.place import FOLDER, Place, read_place, split_evenly
from fedvlm.distributed.server.remote import RemoteEngine
from fedvlm.federation.plan import parse_sites
from fedvlm.job.build import Built
from fedvlm.job.engines.base import ClientSide, Tell, leave_images, refuse_memory
from fedvlm.job.engines.states import SITE
from fedvlm.job.inputs import Inputs
from fedvlm.job.sites.parties import policy_of
from fedvlm.job.sites.party import config_plain, shared_facts
from fedvlm.job.workers.processes import (
    MODULE,
    core_count,
    run_id,
    worker_environment,
)
from fedvlm.runs.folder import RunFolder
from fedvlm.runs.identity import identity_digest

ENGINE = "flower"
START = 600.0  # seconds for workers to be built
REACH = 120.0  # seconds for sites to be at the SuperLink


class AtSitesOfFlower(ClientSide):
    """Sites behind Flower that get a part of the clients each; see ``ClientSide``."""

    built: Built
    engine: RemoteEngine
    carrier: Flower
    begin: Callable[[], None]  # lets the sites' workers run

    def check(self, inputs: Inputs | None) -> None:
        """See ``ClientSide.check``."""
        refuse_memory(self.cfg, inputs)
        check_flower(self.cfg)

    @contextlib.contextmanager
    def connect(self, built: Built, folder: RunFolder, tell: Tell) -> Iterator[None]:
        """See ``ClientSide.connect``: the sites' processes stay when the run ends."""
        run, cfg = run_id(folder), built.cfg
        federation, place = built.federation, check_flower(cfg)
        self.built, self.carrier = built, Flower(place, tell)
        # As many as the local engine takes, so that bits are its.
        threads = usual_threads({cfg.MODEL.BACKBONE.NAME}, os.environ, core_count())
        all_needed = float(cfg.FED.UNRELIABLE.QUORUM) or 1.0  # unless said
        self.engine = RemoteEngine(
            self.carrier, config_plain(cfg), federation.engine.chunk,
            replace(policy_of(cfg), quorum=all_needed), run, tell,
            beside=shared_facts(built.identity), remedy="",
        )
        self.ask = self.engine.template
        layout = list(federation.engine.sites)
        federation.engine, federation.clients.store = self.engine, AwayStore(SITE)
        leave_images(built)

        def begin() -> None:
            refuse_busy_federation(place)  # again: a run may have begun meanwhile
            about = errand(folder.path.resolve(), identity_digest(built.identity))
            _begin(place, folder.path.resolve(), about, layout,
                   partial(worker_environment, cfg, threads), tell)

        self.begin = begin
        try:
            yield
        finally:
            self.carrier.close()
            with contextlib.suppress(DataError, OSError):  # of the last session; never read back
                files.write_json(folder.path / "frames.json", dict(self.engine.traffic))

    def meet(self) -> None:
        """See ``ClientSide.meet``."""
        self.begin()
        self.carrier.open(REACH)
        away = self.carrier.absent()
        if away:
            raise ConfigError("\n".join(away))
        federation = self.built.federation
        self.engine.meet(federation.plan.clients, REACH)
        self.engine.join(federation)


def why_not_installed() -> str:
    """Return that Flower is not installed, and how to mend it; empty: it is."""
    try:
        find_flower()
    except ConfigError as error:
        return str(error)
    return ""


def check_flower(cfg: CfgNode) -> Place:
    """Return the federation of a config, before data are read.

    Raises:
        ConfigError: there is none, ``FED.SITES`` does not fit it, or another run is using it.
    """
    place = read_place(user_path(cfg.FED.FEDERATION or FOLDER))
    if place.listen or any(site.owner for site in place.sites):
        raise ConfigError(
            f"the sites of '{place.folder}' have their own data: use --engine sites "
            f"--federation {cfg.FED.FEDERATION or FOLDER}"
        )
    count, clients = len(place.sites), int(cfg.FED.CLIENTS)
    parts = max(parse_sites(cfg.FED.SITES, clients), default=0) + 1 if cfg.FED.SITES else 0
    if parts != count:
        has = f"FED.SITES {cfg.FED.SITES} defines {parts}" if parts else "no clients for them"
        some = f": set FED.SITES {split_evenly(clients, count)}" if clients >= count else (
            f", more than there are clients ({clients})")
        raise ConfigError(
            f"the federation in '{place.folder}' has {count} sites and {has}{some}")
    if not processes.pid_of(place, LINK):
        raise ConfigError(
            "the SuperLink is not running: start it with fedvlm federation up --federation "
            f"{place.folder}")
    refuse_busy_federation(place)
    return place


@contextlib.contextmanager
def loopback(folder: Path, count: int, say: Tell) -> Iterator[Callable[[], set[int]]]:
    """Have ``count`` sites on this machine; yield what tells process ids (else ``ConfigError``)."""
    place = up(folder, [""] * count, say)
    try:
        yield partial(processes.strays, place)
    finally:
        down(place)


def _begin(
    place: Place, run: Path, about: str, layout: Sequence[int],
    environ: Callable[[int], Mapping[str, str]], tell: Tell,
) -> None:
    """Let each site work for its clients of this run (``ConfigError``: the last line of one)."""
    for number, site in enumerate(place.sites):
        mine = ",".join(str(c) for c, at in enumerate(layout) if at == number)
        states = place.states(site.name).resolve()
        words = [MODULE, str(run), str(states), "--clients", mine]
        begin_site(place, site.name, words, environ(number), about, tell)
    sites_ready(place, [site.name for site in place.sites], START)
