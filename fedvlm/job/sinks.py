"""Sinks: other programs that get every round's numbers (``SINKS``, ``--sinks``).

TensorBoard's events lie in ``<run folder>/tensorboard``, W&B's files in ``<run folder>/wandb``
(offline unless ``WANDB_MODE`` says otherwise). Numbers only: no tensor reaches a sink. A sink that
fails is dropped with one note, and the run goes on.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedvlm.console.screen import complain
from fedvlm.core.errors import ConfigError, did_you_mean, fold
from fedvlm.core.stats import mean
from fedvlm.job.results import summary


@dataclass(frozen=True)
class Start:
    """What a sink knows of its run.

    Attributes:
        folder: the run folder.
        digest: the run's identity.
        config: flat.
        records: rounds that are done already, as a resumed run's; none at the beginning.
    """

    folder: Path
    digest: str
    config: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]


class Sink(Protocol):
    """Takes one round after the other."""

    fresh: bool  # whether it has none of the rounds that are done already

    def round(
        self, step: int, numbers: Mapping[str, float], spreads: Mapping[str, list[float]]
    ) -> None:
        """Take a round's numbers, and those that each client has, in no order."""

    def close(self) -> None:
        """Write what is left."""


class TensorBoard:
    """Scalars, the clients' numbers as histograms, the config as text."""

    def __init__(self, module: Any, start: Start) -> None:
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


class WeightsAndBiases:
    """One W&B run id per run folder.

    Offline each session of a resumed run leaves a folder of its own under that id, and a round
    that was done again is in both.
    """

    def __init__(self, module: Any, start: Start) -> None:
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


@dataclass(frozen=True)
class Kind:
    """A kind of sink: the optional package, what is imported of it, and what is made."""

    package: str
    module: str
    make: Callable[[Any, Start], Sink]


KINDS = {
    "tensorboard": Kind("tensorboard", "torch.utils.tensorboard", TensorBoard),
    "wandb": Kind("wandb", "wandb", WeightsAndBiases),
}


class Sinks:
    """The sinks of one run: made before anything is built, opened with the run folder.

    Args:
        names: ``SINKS``.

    Raises:
        ConfigError: an unknown sink, or its package is not installed.
    """

    def __init__(self, names: Sequence[Any]) -> None:
        self.modules = {name: _module(name) for name in dict.fromkeys(map(_name, names))}
        self.open_ones: dict[str, Sink] = {}
        self.screens: Sequence[Any] = ()

    def open(
        self, folder: Path, digest: str, config: Mapping[str, Any],
        records: Sequence[Mapping[str, Any]], screens: Sequence[Any],
    ) -> None:
        """Open all; one that has no earlier round of a resumed run gets them now.

        Args:
            screens: have ``notes``, for a sink that fails.
        """
        self.screens = screens
        start = Start(folder, digest, config, records)
        for name, module in self.modules.items():
            try:
                self.open_ones[name] = KINDS[name].make(module, start)
                for record in records if self.open_ones[name].fresh else ():
                    self._send(name, record)
            except Exception as error:  # another program's: the run is worth more
                self._drop(name, error)

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Send a round's record to all that are open."""
        for name in list(self.open_ones):
            try:
                self._send(name, record)
            except Exception as error:  # as above
                self._drop(name, error)

    def close(self) -> None:
        """Close all; twice is harmless."""
        for name in list(self.open_ones):
            try:
                self.open_ones.pop(name).close()
            except Exception as error:  # as above
                complain(f"sink {name} did not close: {_words(error)}", prefix="note")

    def _send(self, name: str, record: Mapping[str, Any]) -> None:
        self.open_ones[name].round(int(record["round"]), numbers(record), spreads(record))

    def _drop(self, name: str, error: Exception) -> None:
        self.open_ones.pop(name, None)
        for screen in self.screens:
            screen.notes([f"sink {name} failed and gets no more numbers: {_words(error)}"])


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return a round's numbers by tag: ``evaluation/personal``, ``training/loss``, ...

    Those of the clients are means (``training``) or sums (``traffic``, bytes).
    """
    trained = list(record.get("train", {}).values())
    names = dict.fromkeys(n for metrics in trained for n in metrics)
    values: dict[str, Any] = {f"evaluation/{k}": v for k, v in summary(record).items()}
    values["validation/personal"] = record.get("val")
    for name in names:
        values[f"training/{name}"] = mean(m[name] for m in trained if _finite(m.get(name)))
    for way in ("bytes_up", "bytes_down"):
        values[f"traffic/{way}"] = sum(record.get(way, {}).values())
    values |= {f"work/{name}": value for name, value in record.get("counters", {}).items()}
    values["work/seconds"] = record.get("seconds")
    values["work/participants"] = len(record.get("participants", ()))
    values["work/dropped"] = len(record.get("dropped", ()))
    return {name: float(value) for name, value in values.items() if _finite(value)}


def spreads(record: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the numbers that each client has: test accuracy and training loss."""
    numbers = {
        "clients/accuracy": [row.get("accuracy") for row in record.get("clients", ())],
        "clients/loss": [metrics.get("loss") for metrics in record.get("train", {}).values()],
    }
    finite = {name: [float(v) for v in values if _finite(v)] for name, values in numbers.items()}
    return {name: values for name, values in finite.items() if values}


def _name(word: Any) -> str:
    name = next((n for n in KINDS if fold(n) == fold(str(word))), None)
    if name is None:
        near = did_you_mean(str(word), KINDS)
        raise ConfigError(f"SINKS (--sinks) has no '{word}'{near} (known: {', '.join(KINDS)})")
    return name


def _module(name: str) -> Any:
    kind = KINDS[name]
    try:
        return importlib.import_module(kind.module)
    except ImportError as error:
        raise ConfigError(
            f"--sinks {name} needs the package '{kind.package}', which this Python lacks "
            f"({_words(error)}): pip install 'fedvlm[{name}]', or drop the sink"
        ) from None


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
