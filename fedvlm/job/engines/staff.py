"""Who computes the clients of a run: this process, or workers (``FED.ENGINE workers``).

The driver is the ordinary job: folder, console, metrics, results. With workers it keeps of its
clients the versions that it accepted; their states lie in ``workers/`` of the run's folder (or with
workers at addresses, which its ``--states`` names), and so does what every worker says.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from yacs.config import CfgNode

from fedvlm.config.engines import FLOWER, FLOWER_SIM, LOCAL, SITES, WORKERS, of_parties
from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.repository import PACKAGE
from fedvlm.core.threads import given_threads, usual_threads
from fedvlm.distributed.flower.commands import find_flower, find_ray
from fedvlm.distributed.flower.simulation import Simulated
from fedvlm.distributed.pool.engine import PoolEngine
from fedvlm.distributed.pool.store import PoolAway
from fedvlm.distributed.server.policy import Policy
from fedvlm.distributed.sockets.carrier import Addressed, Begun
from fedvlm.distributed.sockets.stream import UNIX, host_port, read_token
from fedvlm.evaluation.evaluator import Ask
from fedvlm.federation.local.images import Absent
from fedvlm.federation.rounds import FedState
from fedvlm.job.build import Built, pick_device
from fedvlm.job.engines import flower
from fedvlm.job.engines.states import NAME, PLACE, RUN
from fedvlm.job.inputs import GivenInputs, Inputs
from fedvlm.job.sites.parties import Parties, check_sites
from fedvlm.job.sites.party import config_plain, shared_facts
from fedvlm.runs.folder import RunFolder

START = 600.0  # seconds for workers to be built
REACH = 120.0  # seconds for those at addresses to be there
EVER = 30 * 86400.0  # seconds for an answer: a worker that dies is heard of without
AWAIT = 5.0  # seconds before workers at addresses are asked again
READS = {  # key -> its flag, and the engines that read it
    "WORKERS": ("--workers", WORKERS, FLOWER_SIM), "WORKERS_AT": ("--workers-at", WORKERS),
    "SITES_AT": ("--sites-at", SITES), "SITE_FILE": ("--site-file", SITES),
    "TOKEN_FILE": ("--token-file", WORKERS, SITES), "FEDERATION": ("--federation", FLOWER, SITES),
}
Tell = Callable[[str], None]


class Staff(Protocol):
    """Whoever computes the clients."""

    def meet(self) -> None:
        """Be ready for the first request."""
        ...

    def resume(self, state: FedState | None) -> FedState | None:
        """Return the state that a run goes on from; clients may be taken in again."""
        ...

    @property
    def ask(self) -> Ask:
        """The clients' half of the reference without training (``ClientMeter.template``)."""
        ...


class Here:
    """This process; see ``Staff``."""

    def __init__(self, built: Built) -> None:
        self.ask: Ask = built.meter.template

    def meet(self) -> None:
        """See ``Staff.meet``."""

    def resume(self, state: FedState | None) -> FedState | None:
        """See ``Staff.resume``."""
        return state


class Away:
    """Workers; see ``Staff``."""

    def __init__(self, built: Built, engine: PoolEngine, carrier: Addressed | Begun) -> None:
        self.built, self.engine, self.carrier = built, engine, carrier
        self.ask: Ask = engine.template

    def meet(self) -> None:
        """See ``Staff.meet``.

        Raises:
            ConfigError: nobody is there, or one is of another run; says why.
        """
        self.carrier.open(REACH if isinstance(self.carrier, Addressed) else START)
        for words in self.carrier.absent():
            self.engine.say(words)
        federation = self.built.federation
        self.engine.meet(federation.plan.clients, START)
        self.engine.join(federation)

    def resume(self, state: FedState | None) -> FedState | None:
        """See ``Staff.resume``."""
        return state


def check_engine(cfg: CfgNode, inputs: Inputs | None) -> None:
    """Refuse what an engine cannot do, before data are read.

    Raises:
        ConfigError: such a key.
    """
    fed = cfg.FED
    for key, (flag, *engines) in READS.items():
        if fed[key] and fed.ENGINE not in engines:
            raise ConfigError(f"{flag} {fed[key]}: add --engine {' or '.join(engines)}, which "
                              "reads it")
    if fed.ENGINE == LOCAL:
        return
    if of_parties(cfg):
        check_sites(cfg)
        return
    if isinstance(inputs, GivenInputs):
        raise ConfigError(
            f"--engine {fed.ENGINE}: other processes cannot read data that a program holds in "
            "memory; write them as a folder of images, or use the local engine"
        )
    if fed.ENGINE == FLOWER:
        flower.check_flower(cfg)
        return
    if fed.ENGINE == FLOWER_SIM:
        find_ray()
        return
    if bool(fed.WORKERS_AT) != bool(fed.TOKEN_FILE):
        raise ConfigError(
            "--workers-at and --token-file go together: the file holds the secret that the workers "
            "were begun with"
        )
    if fed.WORKERS_AT and fed.WORKERS:
        raise ConfigError("--workers begins processes, --workers-at reaches others: keep one")
    for address in _addresses(cfg):
        if not address.startswith(UNIX):
            host_port(address)
    if fed.TOKEN_FILE:
        read_token(fed.TOKEN_FILE)


def missing(ray: bool) -> str:
    """Return what of Flower is not installed, and how to mend it; empty: it is there.

    Args:
        ray: what its simulation needs, too.
    """
    try:
        find_ray() if ray else find_flower()
    except ConfigError as error:
        return str(error)
    return ""


@contextlib.contextmanager
def employed(
    built: Built, folder: RunFolder, tell: Tell, parties: Parties | None = None
) -> Iterator[Staff]:
    """Let the engine of the config compute the clients of a run, and end its processes after it.

    Args:
        tell: hears what goes wrong with workers or sites, a sentence each.
        parties: the sites of the run, where it has them.

    Raises:
        ConfigError: no worker can be begun or reached.
    """
    federation = built.federation
    if parties is not None:
        parties.employ(built, folder.path, tell)
        yield parties
        return
    if built.cfg.FED.ENGINE == LOCAL:
        yield Here(built)
        return
    run = run_id(folder)
    if built.cfg.FED.ENGINE == FLOWER:
        threads = flower.threads_of_site(built.cfg, os.environ, _cores())
        with flower.federated(
            built, folder, run, _serve, partial(_environ, built.cfg, threads), tell
        ) as sites:
            yield sites
        return
    plain = config_plain(built.cfg)
    federation.clients.store = PoolAway()
    carrier = workers_of(built.cfg, folder.path, tell)
    engine = PoolEngine(
        carrier, plain, federation.engine.chunk,
        Policy(deadline=EVER, wait=AWAIT if built.cfg.FED.WORKERS_AT else 0.0), run, tell,
        layout=federation.engine.sites, beside=shared_facts(built.identity),
    )
    # Whoever asks for a client's images here is refused.
    federation.meter = None
    federation.batcher = Absent(
        federation.roster, int(built.cfg.DATALOADER.TRAIN_X.BATCH_SIZE), "the driver"
    )
    try:
        yield Away(built, engine, carrier)
    finally:
        carrier.close()
        with contextlib.suppress(DataError, OSError):  # of the last session; nothing reads it back
            (folder.path / PLACE).mkdir(exist_ok=True)
            files.write_json(folder.path / PLACE / "frames.json", dict(engine.traffic))


def run_id(folder: RunFolder) -> str:
    """Return the name under which workers keep a run's states: random, written when it begins.

    Runs of two output folders may have one place for states. A run that was begun before there were
    such names has that of its identity and the end of its path.

    Raises:
        DataError: the name cannot be read or written, or is none.
    """
    place = folder.path / PLACE
    with files.explain_errors(place / NAME):
        place.mkdir(exist_ok=True)
        if (place / NAME).is_file():
            name = (place / NAME).read_text(encoding="utf-8", errors="replace").strip()
            if not RUN.fullmatch(name):
                raise DataError(
                    f"'{place / NAME}' is damaged: its name of the run is that of the folder with "
                    "states at the workers"
                )
            return name
        words = json.dumps([folder.digest, *folder.path.parts[-7:]])
        name = hashlib.sha256(words.encode()).hexdigest()
        if not (place / name).is_dir() and not any((folder.path / "state").glob("round_*")):
            name = secrets.token_hex(32)
        files.write_text(place / NAME, name + "\n")
    return name


def workers_of(cfg: CfgNode, folder: Path, tell: Tell) -> Addressed | Begun:
    """Return the carrier to a run's workers; those that are begun here are under way.

    Args:
        folder: of the run; its ``config.yaml`` is there.
    """
    if cfg.FED.WORKERS_AT:
        return Addressed(_addresses(cfg), read_token(cfg.FED.TOKEN_FILE))
    place = folder / PLACE
    place.mkdir(exist_ok=True)
    count, threads = size_of(cfg)
    usual = usual_threads({cfg.MODEL.BACKBONE.NAME}, os.environ, _cores())
    if threads != usual and pick_device(cfg.DEVICE).type == "cpu":
        tell(
            f"{count} workers of {threads} thread(s) each, where --engine local takes {usual}: "
            f"last bits may differ from its; OMP_NUM_THREADS={threads} makes both alike"
        )
    environ = partial(_environ, cfg, threads)
    if cfg.FED.ENGINE == FLOWER_SIM:
        return Simulated(partial(_listening, folder, place), count, place, environ)
    return Begun(partial(_command, folder, place), count, place, environ)


def size_of(cfg: CfgNode) -> tuple[int, int]:
    """Return how many workers, and the threads of each.

    ``FED.WORKERS`` 0: one per GPU, or per group of as many cores as the work can use.
    """
    count, backbones = int(cfg.FED.WORKERS), {cfg.MODEL.BACKBONE.NAME}
    if not count:
        devices = torch.cuda.device_count() if _spreads(cfg) else 0
        count = devices or max(1, _cores() // usual_threads(backbones, os.environ, _cores()))
    return count, usual_threads(backbones, os.environ, _cores(), count)


def _spreads(cfg: CfgNode) -> bool:
    """Say whether each worker gets a GPU of its own."""
    return cfg.DEVICE in ("auto", "cuda") and torch.cuda.is_available()


def _addresses(cfg: CfgNode) -> list[str]:
    return [word.strip() for word in cfg.FED.WORKERS_AT.split(",") if word.strip()]


def _command(folder: Path, place: Path, slot: int, handle: int) -> Sequence[str]:
    return _serve(["--run", str(folder), "--states", str(place), "--handle", str(handle)])


def _listening(folder: Path, place: Path, where: Sequence[str]) -> Sequence[str]:
    return _serve(["--run", str(folder), "--states", str(place), *where])


def _serve(words: Sequence[str]) -> list[str]:
    """Return the command of a worker."""
    return [sys.executable, "-m", "fedvlm", "site", "serve", *words]


def _environ(cfg: CfgNode, threads: int, slot: int) -> Mapping[str, str]:
    """Return the environment of a worker: its threads, its GPU, and where this fedvlm lies."""
    out = dict(os.environ)
    above = str(PACKAGE.parent)
    out["PYTHONPATH"] = os.pathsep.join([above, *filter(None, [out.get("PYTHONPATH")])])
    if given_threads(out) is None:
        out["OMP_NUM_THREADS"] = str(threads)
    if _spreads(cfg):
        visible = [w for w in out.get("CUDA_VISIBLE_DEVICES", "").split(",") if w]
        count = torch.cuda.device_count()
        names = visible or [str(i) for i in range(count)]
        out["CUDA_VISIBLE_DEVICES"] = names[slot % len(names)]
    return out


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
