"""Worker processes behind Flower's simulation (``FED.ENGINE flower-sim``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from fedvlm.distributed.flower.commands import find_ray
from fedvlm.job.engines.base import refuse_memory
from fedvlm.job.engines.workers import Workers
from fedvlm.job.inputs import Inputs
from fedvlm.job.workers.processes import worker_command
from fedvlm.job.workers.simulation import RayCarrier

ENGINE = "flower-sim"


class SimulatedWorkers(Workers):
    """Workers whose frames go through Flower and Ray; see ``ClientSide``."""

    def check(self, inputs: Inputs | None) -> None:
        """See ``ClientSide.check``."""
        refuse_memory(self.cfg, inputs)
        find_ray()

    def begin(
        self, folder: Path, place: Path, count: int, environ: Callable[[int], Mapping[str, str]]
    ) -> RayCarrier:
        """See ``Workers.begin``."""
        return RayCarrier(partial(_listening, folder, place), count, place, environ)


def _listening(folder: Path, place: Path, where: Sequence[str]) -> Sequence[str]:
    return worker_command(folder, place, *where)
