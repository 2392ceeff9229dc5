"""Clients of a simulation at sites behind Flower (``FED.ENGINE flower``).

The federation was begun by ``fedvlm federation up``; its sites get a part of the clients each
(``FED.SITES``), and a resident worker that has built this very run and keeps their states. The
driver is the ordinary job.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from yacs.config import CfgNode

from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import user_path
from fedvlm.core.threads import usual_threads
from fedvlm.core.trees import State
from fedvlm.distributed.flower import processes
from fedvlm.distributed.flower.carrier import Flower
from fedvlm.distributed.flower.commands import LINK
from fedvlm.distributed.flower.network import (
    begin_worker,
    down,
    errand,
    refuse_busy,
    up,
    workers_ready,
)
from fedvlm.distributed.flower.place import FOLDER, Place, even, read_place
from fedvlm.distributed.server.policy import Policy
from fedvlm.distributed.server.remote import RemoteEngine
from fedvlm.distributed.sockets.stream import UNIX
from fedvlm.distributed.store import AwayStore
from fedvlm.evaluation.evaluator import Ask
from fedvlm.federation.clients import AWAY
from fedvlm.federation.local.images import Absent
from fedvlm.federation.plan import parse_sites
from fedvlm.federation.rounds import FedState
from fedvlm.job.build import Built
from fedvlm.job.engines.states import SITE
from fedvlm.job.sites.parties import policy_of as sites_policy
from fedvlm.job.sites.party import config_plain, shared_facts
from fedvlm.runs.folder import RunFolder
from fedvlm.runs.identity import identity_digest

START = 600.0  # seconds for workers to be built
REACH = 120.0  # seconds for sites to be at the SuperLink
Tell = Callable[[str], None]
Words = Callable[[Sequence[str]], list[str]]


class SitesAway(AwayStore):
    """What the driver has of its clients: rows that say they are at their sites."""

    def get(
        self, ids: Sequence[int], versions: Sequence[int]
    ) -> list[tuple[list[int], State]]:
        """See ``ClientStore.get``."""
        return [(list(ids), {AWAY + SITE: {}})] if ids else []

    def put(self, round_: int, ids: Sequence[int], state: State) -> None:
        """Keep nothing.

        Raises:
            ConfigError: a checkpoint of another engine.
        """
        if list(state) != [AWAY + SITE]:
            raise ConfigError(
                "this run was begun with another --engine, whose states of clients are not at the "
                "sites: go on with that one, or begin anew under another --tag"
            )


class Federated:
    """Sites behind Flower; see ``Staff``.

    Args:
        begin: lets the sites' workers run.
    """

    def __init__(
        self, built: Built, engine: RemoteEngine, carrier: Flower, begin: Callable[[], None]
    ) -> None:
        self.built, self.engine, self.carrier, self._begin = built, engine, carrier, begin
        self.ask: Ask = engine.template

    def meet(self) -> None:
        """See ``Staff.meet``.

        Raises:
            ConfigError: a site is not there, or has another config; says why.
        """
        self._begin()
        self.carrier.open(REACH)
        away = self.carrier.absent()
        if away:
            raise ConfigError("\n".join(away))
        federation = self.built.federation
        self.engine.meet(federation.plan.clients, REACH)
        self.engine.join(federation)

    def resume(self, state: FedState | None) -> FedState | None:
        """See ``Staff.resume``."""
        return state


def check_flower(cfg: CfgNode) -> Place:
    """Return the federation of a config, before data are read.

    Raises:
        ConfigError: there is none, ``FED.SITES`` does not fit it, or another run is using it.
    """
    place = read_place(user_path(cfg.FED.FEDERATION or FOLDER))
    if place.listen or any(site.owner for site in place.sites):
        raise ConfigError(
            f"the sites of '{place.folder}' have data of their own: --engine sites --federation "
            f"{cfg.FED.FEDERATION or FOLDER} asks them"
        )
    count, clients = len(place.sites), int(cfg.FED.CLIENTS)
    parts = max(parse_sites(cfg.FED.SITES, clients), default=0) + 1 if cfg.FED.SITES else 0
    if parts != count:
        has = f"FED.SITES {cfg.FED.SITES} is of {parts}" if parts else "it gets no clients yet"
        some = f": say FED.SITES {even(clients, count)}" if clients >= count else (
            f", more than there are clients ({clients})")
        raise ConfigError(
            f"the federation in '{place.folder}' has {count} sites and {has}{some}")
    if not processes.pid_of(place, LINK):
        raise ConfigError(
            f"the SuperLink does not run: fedvlm federation up --federation {place.folder}")
    refuse_busy(place)
    return place


@contextlib.contextmanager
def loopback(folder: Path, count: int, say: Tell) -> Iterator[Callable[[], set[int]]]:
    """Have a federation of ``count`` sites on this machine; yield what tells its processes' ids.

    Raises:
        ConfigError: Flower is not installed, or a process does not start.
    """
    place = up(folder, [""] * count, say)
    try:
        yield partial(processes.strays, place)
    finally:
        down(place)


@contextlib.contextmanager
def federated(
    built: Built, folder: RunFolder, run: str, command: Words,
    environ: Callable[[int], Mapping[str, str]], tell: Tell,
) -> Iterator[Federated]:
    """Let sites behind Flower compute the clients of a run; they stay when it ends.

    Args:
        run: the run's name at its sites.
        command: the words after ``site serve`` -> the command of a worker.
        environ: threads and number of a worker -> its environment.
    """
    federation, place = built.federation, check_flower(built.cfg)
    carrier = Flower(place, tell)
    engine = RemoteEngine(
        carrier, config_plain(built.cfg), federation.engine.chunk, policy_of(built.cfg), run, tell,
        beside=shared_facts(built.identity), remedy="",
    )
    layout = list(federation.engine.sites)
    federation.engine, federation.clients.store = engine, SitesAway()
    # Whoever asks for a client's images here is refused.
    federation.meter = None
    federation.batcher = Absent(
        federation.roster, int(built.cfg.DATALOADER.TRAIN_X.BATCH_SIZE), "the driver"
    )

    def begin() -> None:
        refuse_busy(place)  # again: another run may have come while this one was built
        about = errand(folder.path.resolve(), identity_digest(built.identity))
        _begin(place, folder.path.resolve(), about, layout, command, environ, tell)

    try:
        yield Federated(built, engine, carrier, begin)
    finally:
        carrier.close()
        with contextlib.suppress(DataError, OSError):  # of the last session; nothing reads it back
            files.write_json(folder.path / "frames.json", dict(engine.traffic))


def policy_of(cfg: CfgNode) -> Policy:
    """Return what is done about sites that do not answer well: all are needed, unless said."""
    return replace(sites_policy(cfg), quorum=float(cfg.FED.UNRELIABLE.QUORUM) or 1.0)


def _begin(
    place: Place, run: Path, about: str, layout: Sequence[int], command: Words,
    environ: Callable[[int], Mapping[str, str]], tell: Tell,
) -> None:
    """Let a worker of this run be at each site.

    Raises:
        ConfigError: one cannot be built; its last line is shown.
    """
    for number, site in enumerate(place.sites):
        mine = [str(c) for c, at in enumerate(layout) if at == number]
        words = command([
            "--run", str(run), "--clients", ",".join(mine), "--states",
            str(place.states(site.name).resolve()), "--listen", UNIX + str(place.worker(site.name)),
            "--token-file", str(place.token(site.name).resolve()),
        ])
        begin_worker(place, site.name, words, dict(environ(number)), about, tell)
    workers_ready(place, [site.name for site in place.sites], START)


def threads_of_site(cfg: CfgNode, environ: Mapping[str, str], cores: int) -> int:
    """Return a worker's threads: as many as the local engine takes, so that bits are its."""
    return usual_threads({cfg.MODEL.BACKBONE.NAME}, environ, cores)
