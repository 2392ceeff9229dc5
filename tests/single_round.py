"""A round of a method in ``check``'s small world: two clients, a step of each local epoch."""

from __future__ import annotations

from fedvlm.check.world import CheckWorld, Setup, Trajectory
from fedvlm.federation.trainer import Trainer

CLIENTS, BATCH = 2, 8  # a batch holds all of a client's images


def single_round(world: CheckWorld, trainer: type[Trainer], rounds: int = 1) -> Trajectory:
    """Return what came of ``rounds`` rounds of two clients."""
    return world.record(trainer, Setup(
        splits=world.splits[:CLIENTS], batch=BATCH, chunk=CLIENTS, rounds=rounds, momentum=0.0,
        cosine=False,
    ))
