"""One run of a trial, in a worker: trained as any run, scored on validation images, nothing kept.

No test image is read, no run folder is opened. The score is that of the personal models after the
last round, final fine-tuning included, each on its own client's validation images: what
``personal`` is of test images.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from fedvlm.core.errors import ConfigError, DivergedError
from fedvlm.data.federated import FederatedData
from fedvlm.federation.rounds import Event, RoundFinished
from fedvlm.federation.server import Measure
from fedvlm.job.build import complete_run, prepare_run
from fedvlm.job.flags import parse
from fedvlm.job.identity import identity_config
from fedvlm.job.inputs import Inputs
from fedvlm.job.resolve import resolve
from fedvlm.job.run import threads_of
from fedvlm.models.adapt.peft import role_of
from fedvlm.runs.identity import identity_digest
from fedvlm.sweep.tune.origin import read_origin


def score(words: list[str], digest: str, inputs: Inputs | None) -> dict[str, Any]:
    """Train a run and return what its validation images say.

    Args:
        words: the run's command line, after ``fedvlm``.
        digest: of its config.
        inputs: keeps data and towers.

    Returns:
        ``roles`` of the trained tensors, ``trained`` numbers, ``origin`` (``origin.py``), ``steps``
        taken, ``cpu`` seconds of this process, and ``clients``: (right, images) of each; with
        ``diverged``, a message, none of the last three.

    Raises:
        ConfigError, DataError: as the run itself.
    """
    began = time.process_time()
    (job,) = resolve(parse(words[1:])).jobs
    if identity_digest(identity_config(job.cfg)) != digest:
        raise RuntimeError("the trial's command line and its plan give different configs")
    with threads_of(job.cfg):
        prepared = prepare_run(job.cfg, inputs=inputs)
        if not any(len(client.val) for client in prepared.data.clients):
            raise ConfigError(
                f"{prepared.data.name}: this split has no validation images to tune on; set "
                "DATASET.VAL_SHOTS above 0"
            )
        prepared.data = without_tests(prepared.data)
        built = complete_run(prepared)
        federation = built.federation
        listener = _Last()
        federation.subscribers.append(listener)
        sizes = federation.p0.values()
        about = {"roles": sorted({role_of(name) for name in federation.p0}),
                 "trained": sum(tensor.numel() for tensor in sizes),
                 "origin": read_origin(built.identity, job.cfg.TRAINER.NAME)}
        try:
            federation.run(None)
        except DivergedError as error:
            return about | {"diverged": str(error)}
    cpu = round(time.process_time() - began, 3)
    return about | {"steps": listener.steps, "cpu": cpu, "clients": listener.rows}


def without_tests(data: FederatedData) -> FederatedData:
    """Return the clients' images without any test image: none is read, none is encoded."""
    none = data.global_test[:0]
    clients = [replace(client, test=none) for client in data.clients]
    return replace(data, clients=clients, global_test=none, new_test=none, others=[])


class _Last:
    """Listens for the last round."""

    def __init__(self) -> None:
        self.steps, self.rows = 0, list[tuple[int, int]]()

    def __call__(self, event: Event) -> None:
        """Count steps; after the last round, ask for every client's right answers."""
        if not isinstance(event, RoundFinished):
            return
        self.steps += int(event.counters.get("steps", 0))
        if event.round == event.total_rounds:
            rows = event.rows(list(event.roster.members), Measure(split="val"))
            counts = ((int(row["correct"] or 0), int(row["n"] or 0)) for row in rows)
            self.rows = [(right, images) for right, images in counts if images]
