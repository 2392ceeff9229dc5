"""Rounds' numbers for W&B: files in ``<run folder>/wandb``, offline without ``WANDB_MODE``."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

from fedvlm.job.sinks.base import Sink, SinkStart

SINK = "wandb"
PROGRAM = "wandb"


class WeightsAndBiases(Sink):
    """One W&B run id per run folder.

    Offline each session of a resumed run leaves a folder of its own under that id, and a round
    that was done again is in both.
    """

    def __init__(self, module: Any, start: SinkStart) -> None:
        """Open the run, or go on with it."""
        self.fresh = not (start.folder / "wandb").exists()
        place = f"{start.digest} {start.folder.resolve()}"
        name = [str(start.config.get(k)) for k in ("TRAINER.NAME", "DATASET.NAME", "SEED")]
        self.run = module.init(
            project="fedvlm", name=" ".join(name), dir=str(start.folder), resume="allow",
            id=hashlib.sha256(place.encode()).hexdigest()[:16], config=dict(start.config),
            mode=os.environ.get("WANDB_MODE") or "offline",
            settings=module.Settings(console="off", silent=True),
        )

    def round(
        self, step: int, numbers: Mapping[str, float], spreads: Mapping[str, list[float]]
    ) -> None:
        """See ``Sink``; the clients' numbers are left out."""
        self.run.log(dict(numbers), step=step)

    def close(self) -> None:
        """See ``Sink``."""
        self.run.finish()
