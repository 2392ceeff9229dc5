"""Worker processes compute the clients (``FED.ENGINE workers``).

The driver is the ordinary job: folder, console, metrics, results. With workers it keeps of its
clients the versions that it accepted; their states lie in ``workers/`` of the run's folder, and so
does what every worker says.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from fedvlm.core import files
from fedvlm.core.errors import DataError
from fedvlm.core.rows.away import AwayStore
from fedvlm.core.threads import usual_threads
from fedvlm.distributed.server.policy import Policy
from fedvlm.job.build import Built, pick_device
from fedvlm.job.engines.base import ClientSide, Tell, leave_images, refuse_memory
from fedvlm.job.engines.states import PLACE
from fedvlm.job.inputs import Inputs
from fedvlm.job.sites.party import config_plain, shared_facts
from fedvlm.job.workers.carrier import WorkerProcesses
from fedvlm.job.workers.engine import PoolEngine
from fedvlm.job.workers.processes import (
    core_count,
    run_id,
    size_of,
    worker_command,
    worker_environment,
)
from fedvlm.runs.folder import RunFolder

ENGINE = "workers"
START = 600.0  # seconds for workers to be built


class Workers(ClientSide):
    """Workers; see ``ClientSide``."""

    built: Built
    engine: PoolEngine
    carrier: WorkerProcesses

    def check(self, inputs: Inputs | None) -> None:
        """See ``ClientSide.check``."""
        refuse_memory(self.cfg, inputs)

    @contextlib.contextmanager
    def connect(self, built: Built, folder: RunFolder, tell: Tell) -> Iterator[None]:
        """See ``ClientSide.connect``."""
        federation, run = built.federation, run_id(folder)
        plain = config_plain(built.cfg)
        federation.clients.store = AwayStore(None)
        self.built = built
        self.carrier = self.workers_of(folder.path, tell)
        self.engine = PoolEngine(
            self.carrier, plain, federation.engine.chunk,
            Policy(deadline=float(self.cfg.FED.ASK.SECONDS), wait=0.0), run, tell,
            layout=federation.engine.sites, beside=shared_facts(built.identity),
        )
        self.ask = self.engine.template
        leave_images(built)
        try:
            yield
        finally:
            self.carrier.close()
            with contextlib.suppress(DataError, OSError):  # of the last session; never read back
                (folder.path / PLACE).mkdir(exist_ok=True)
                files.write_json(folder.path / PLACE / "frames.json", dict(self.engine.traffic))

    def meet(self) -> None:
        """See ``ClientSide.meet``."""
        self.carrier.open(START)
        federation = self.built.federation
        self.engine.meet(federation.plan.clients, START)
        self.engine.join(federation)

    def workers_of(self, folder: Path, tell: Tell) -> WorkerProcesses:
        """Return the carrier to a run's workers, which are under way; ``config.yaml`` is there."""
        cfg = self.cfg
        place = folder / PLACE
        place.mkdir(exist_ok=True)
        count, threads = size_of(cfg)
        chunk = self.built.federation.engine.chunk  # a worker, which sees other cards, cuts by it
        usual = usual_threads({cfg.MODEL.BACKBONE.NAME}, os.environ, core_count())
        if threads != usual and pick_device(cfg.DEVICE, cfg.FAST).type == "cpu":
            tell(
                f"{count} workers of {threads} thread(s) each, but --engine local uses {usual}: "
                f"the last bits may differ; with OMP_NUM_THREADS={threads} both are identical"
            )
        return WorkerProcesses(partial(_command, folder, place, chunk), count, place,
                               partial(worker_environment, cfg, threads), tell,
                               float(cfg.FED.ASK.SECONDS))


def _command(folder: Path, place: Path, chunk: int, slot: int, handle: int) -> Sequence[str]:
    return worker_command(folder, place, "--handle", str(handle), "--chunk", str(chunk))
