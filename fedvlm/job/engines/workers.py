"""Worker processes compute the clients (``FED.ENGINE workers``).

The driver is the ordinary job: folder, console, metrics, results. With workers it keeps of its
clients the versions that it accepted; their states lie in ``workers/`` of the run's folder (or with
workers at addresses, which its ``--states`` names), and so does what every worker says.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from yacs.config import CfgNode

from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.rows.away import AwayStore
from fedvlm.core.threads import usual_threads
from fedvlm.distributed.policy import Policy
from fedvlm.distributed.pool.engine import PoolEngine
from fedvlm.distributed.sockets.carrier import Addressed, Begun
from fedvlm.distributed.sockets.stream import UNIX, host_port, read_token
from fedvlm.federation.local.images import Absent
from fedvlm.job.build import Built, pick_device
from fedvlm.job.engines.base import ClientSide, Tell, refuse_memory
from fedvlm.job.engines.processes import (
    core_count,
    run_id,
    serve_command,
    size_of,
    worker_environment,
)
from fedvlm.job.engines.states import PLACE
from fedvlm.job.inputs import Inputs
from fedvlm.job.sites.party import config_plain, shared_facts
from fedvlm.runs.folder import RunFolder

ENGINE = "workers"
START = 600.0  # seconds for workers to be built
REACH = 120.0  # seconds for those at addresses to be there
EVER = 30 * 86400.0  # seconds for an answer: a worker that dies is heard of without
AWAIT = 5.0  # seconds before workers at addresses are asked again


class Workers(ClientSide):
    """Workers; see ``ClientSide``."""

    built: Built
    engine: PoolEngine
    carrier: Addressed | Begun

    def check(self, inputs: Inputs | None) -> None:
        """See ``ClientSide.check``."""
        refuse_memory(self.cfg, inputs)
        fed = self.cfg.FED
        if bool(fed.WORKERS_AT) != bool(fed.TOKEN_FILE):
            raise ConfigError(
                "--workers-at and --token-file go together: the file holds the secret that the "
                "workers were begun with"
            )
        if fed.WORKERS_AT and fed.WORKERS:
            raise ConfigError("--workers begins processes, --workers-at reaches others: keep one")
        for address in _addresses(self.cfg):
            if not address.startswith(UNIX):
                host_port(address)
        if fed.TOKEN_FILE:
            read_token(fed.TOKEN_FILE)

    @contextlib.contextmanager
    def connect(self, built: Built, folder: RunFolder, tell: Tell) -> Iterator[None]:
        """See ``ClientSide.connect``."""
        federation, run = built.federation, run_id(folder)
        plain = config_plain(built.cfg)
        federation.clients.store = AwayStore(None)
        self.built, self.carrier = built, self.workers_of(folder.path, tell)
        self.engine = PoolEngine(
            self.carrier, plain, federation.engine.chunk,
            Policy(deadline=EVER, wait=AWAIT if built.cfg.FED.WORKERS_AT else 0.0), run, tell,
            layout=federation.engine.sites, beside=shared_facts(built.identity),
        )
        self.ask = self.engine.template
        # A question for a client's images is refused here.
        federation.meter = None
        federation.batcher = Absent(
            federation.roster, int(built.cfg.DATALOADER.TRAIN_X.BATCH_SIZE), "the driver"
        )
        try:
            yield
        finally:
            self.carrier.close()
            with contextlib.suppress(DataError, OSError):  # of the last session; never read back
                (folder.path / PLACE).mkdir(exist_ok=True)
                files.write_json(folder.path / PLACE / "frames.json", dict(self.engine.traffic))

    def meet(self) -> None:
        """See ``ClientSide.meet``."""
        self.carrier.open(REACH if isinstance(self.carrier, Addressed) else START)
        for words in self.carrier.absent():
            self.engine.say(words)
        federation = self.built.federation
        self.engine.meet(federation.plan.clients, START)
        self.engine.join(federation)

    def workers_of(self, folder: Path, tell: Tell) -> Addressed | Begun:
        """Return the carrier to a run's workers; those that are begun here are under way.

        Args:
            folder: of the run; its ``config.yaml`` is there.
        """
        cfg = self.cfg
        if cfg.FED.WORKERS_AT:
            return Addressed(_addresses(cfg), read_token(cfg.FED.TOKEN_FILE))
        place = folder / PLACE
        place.mkdir(exist_ok=True)
        count, threads = size_of(cfg)
        usual = usual_threads({cfg.MODEL.BACKBONE.NAME}, os.environ, core_count())
        if threads != usual and pick_device(cfg.DEVICE).type == "cpu":
            tell(
                f"{count} workers of {threads} thread(s) each, where --engine local takes {usual}: "
                f"last bits may differ from its; OMP_NUM_THREADS={threads} makes both alike"
            )
        return self.begin(folder, place, count, partial(worker_environment, cfg, threads))

    def begin(
        self, folder: Path, place: Path, count: int, environ: Callable[[int], Mapping[str, str]]
    ) -> Begun:
        """Begin worker processes.

        Args:
            folder: of the run.
            place: of their states and logs.
            environ: number of a worker -> its environment.
        """
        return Begun(partial(_command, folder, place), count, place, environ)


def _addresses(cfg: CfgNode) -> list[str]:
    return [word.strip() for word in cfg.FED.WORKERS_AT.split(",") if word.strip()]


def _command(folder: Path, place: Path, slot: int, handle: int) -> Sequence[str]:
    return serve_command(["--run", str(folder), "--states", str(place), "--handle", str(handle)])
