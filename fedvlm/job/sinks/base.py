"""Other programs get every round's numbers (``SINKS``, ``--sinks``).

A module of this folder that sets ``SINK`` to its name has one class that derives from ``Sink``, and
names the module of the other program (``PROGRAM``), which is installed as ``fedvlm[<name>]``.
Numbers only: no tensor reaches a sink. A sink that fails is dropped with one note, and the run goes
on.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvlm.console.screen import complain
from fedvlm.core.errors import ConfigError, did_you_mean, fold
from fedvlm.core.plugins import Plugins, own_class
from fedvlm.core.stats import mean
from fedvlm.job.results import summary

KINDS = Plugins("fedvlm.job.sinks", "SINK", "sink")


@dataclass(frozen=True)
class SinkStart:
    """What a sink knows of its run.

    Attributes:
        digest: the run's identity.
        config: flat.
        records: rounds that are done already, as a resumed run's; none at the beginning.
    """

    folder: Path
    digest: str
    config: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]


class Sink:
    """Takes one round after the other.

    Attributes:
        fresh: whether it has none of the rounds that are done already.
    """

    fresh: bool

    def __init__(self, module: Any, start: SinkStart) -> None:
        raise NotImplementedError

    def round(
        self, step: int, numbers: Mapping[str, float], spreads: Mapping[str, list[float]]
    ) -> None:
        """Take a round's numbers, and those that each client has, in no order."""

    def close(self) -> None:
        """Write what is left."""


class Sinks:
    """The sinks of one run, opened with its folder (``ConfigError``: unknown, or not installed)."""

    def __init__(self, names: Sequence[Any]) -> None:
        self.programs = {name: _program(name) for name in dict.fromkeys(map(_name, names))}
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
        start = SinkStart(folder, digest, config, records)
        for name, module in self.programs.items():
            try:
                self.open_ones[name] = own_class(KINDS.load(name), Sink)(module, start)
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
            screen.notes([f"sink {name} failed and is switched off: {_words(error)}"])


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return a round's numbers by tag: ``evaluation/personal``, ``training/loss``, ...

    Those of the clients are means (``training``) or sums (``traffic``, bytes).
    """
    trained = list(record.get("train", {}).values())
    names = dict.fromkeys(n for metrics in trained for n in metrics)
    values: dict[str, Any] = {f"evaluation/{k}": v for k, v in summary(record).items()}
    values |= {"validation/personal": record.get("val"), "validation/loss": record.get("val_loss")}
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
    known = KINDS.names()
    name = next((n for n in known if fold(n) == fold(str(word))), None)
    if name is None:
        near = did_you_mean(str(word), known)
        raise ConfigError(f"unknown sink '{word}'{near} (known: {', '.join(known)})")
    return name


def _program(name: str) -> Any:
    try:
        return importlib.import_module(KINDS.load(name).PROGRAM)
    except ImportError as error:
        raise ConfigError(
            f"--sinks {name} needs the package '{name}', which is not installed "
            f"({_words(error)}): pip install 'fedvlm[{name}]', or drop the sink"
        ) from None


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
