"""Rounds' numbers for TensorBoard: events in ``<run folder>/tensorboard``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedvlm.job.sinks.base import Sink, SinkStart

SINK = "tensorboard"
PROGRAM = "torch.utils.tensorboard"


class TensorBoard(Sink):
    """Scalars, the clients' numbers as histograms, the config as text."""

    def __init__(self, module: Any, start: SinkStart) -> None:
        """Open the event file; events of rounds that are done again are purged."""
        folder, first = start.folder / "tensorboard", len(start.records)
        self.fresh = not any(folder.glob("*tfevents*"))
        purge = None if self.fresh else first
        self.writer = module.SummaryWriter(log_dir=str(folder), purge_step=purge)
        if self.fresh or first == 0:
            lines = [f"    {key}: {value}" for key, value in start.config.items()]
            self.writer.add_text("config", "\n".join(lines), 0)

    def round(
        self, step: int, numbers: Mapping[str, float], spreads: Mapping[str, list[float]]
    ) -> None:
        """See ``Sink``."""
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)
        for name, values in spreads.items():
            self.writer.add_histogram(name, np.asarray(values), step)
        self.writer.flush()

    def close(self) -> None:
        """See ``Sink``."""
        self.writer.close()
