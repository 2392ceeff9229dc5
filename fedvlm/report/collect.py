"""Finished runs below a folder, as plain data: what every table, figure and page is made of."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fedvlm.errors import DataError
from fedvlm.run_identity import read_results
from fedvlm.run_metrics import read_metrics

SEEDS = ("seed", "data_seed")  # keys of a protocol that differ between the runs of one cell


@dataclass(frozen=True)
class Run:
    """One finished run.

    Attributes:
        path: its folder.
        protocol, results, info: sections of ``results.json`` (``info`` is ``run_info``).
        digest: the run's identity digest.
    """

    path: Path
    protocol: Mapping[str, Any]
    results: Mapping[str, Any]
    info: Mapping[str, Any]
    digest: str = ""

    @property
    def method(self) -> str:
        """The method's name with trainable set and tag: ``FedAvg [prompt+lora] (tag)``."""
        peft, tag = self.protocol.get("peft", ""), self.protocol.get("tag", "")
        chosen = f" [{peft}]" if peft else ""
        return f"{self.protocol['trainer']}{chosen}" + (f" ({tag})" if tag else "")

    @property
    def last(self) -> Mapping[str, Any]:
        """The last round's record: the headline."""
        return dict(self.results["last"])

    def value(self, metric: str) -> float | None:
        """Return a number: ``personal`` of the last round, or ``zero_shot.personal`` and the like.

        None where the run has none such.
        """
        part, _, rest = metric.partition(".")  # names of the last round may have a dot
        section, name = (self.results[part], rest) if part in self.results and rest else (
            self.results.get("last"), metric)
        found = section.get(name) if isinstance(section, Mapping) else None
        return float(found) if isinstance(found, int | float) else None

    def rounds(self) -> list[dict[str, Any]]:
        """Return the records of all rounds, round 0 first."""
        return read_metrics(self.path / "metrics.jsonl")[0]

    def config(self) -> dict[str, Any]:
        """Return the resolved config, nested as in ``config.yaml``.

        Raises:
            DataError: it cannot be read.
        """
        return dict(_load(self.path / "config.yaml", yaml.safe_load))

    def manifest(self) -> dict[str, Any]:
        """Return ``manifest.json``.

        Raises:
            DataError: it cannot be read.
        """
        return dict(_load(self.path / "manifest.json", json.loads))


@dataclass(frozen=True)
class Collected:
    """What lies below a folder.

    Attributes:
        runs: finished runs, sorted by path.
        unfinished: folders with a manifest and no results.
        problems: one sentence per file that cannot be read.
    """

    runs: list[Run] = field(default_factory=list)
    unfinished: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def collect(folders: Sequence[Path]) -> Collected:
    """Read all run folders at or below the given ones, each once.

    Raises:
        DataError: a folder does not exist.
    """
    found = Collected()
    seen: set[Path] = set()
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder with runs; give a run folder or OUTPUT_DIR")
        for here, below, files in os.walk(folder):
            below[:] = sorted(b for b in below if b != "state" and not b.startswith("."))
            path = Path(here)
            if "manifest.json" in files or "results.json" in files:
                if path.resolve() not in seen:
                    seen.add(path.resolve())
                    _take(path, found)
                below.clear()
    found.runs.sort(key=lambda run: str(run.path))
    return found


def _take(path: Path, found: Collected) -> None:
    file = path / "results.json"
    if not file.exists():
        found.unfinished.append(path)
        return
    record = read_results(file)
    good = record is not None and isinstance(record["results"].get("last"), dict)
    if record is None or not good or "trainer" not in record["protocol"]:
        found.problems.append(f"{file} is damaged or of another version: it is left out")
        return
    found.runs.append(
        Run(path, record["protocol"], record["results"], record["run_info"],
            record["identity_digest"])
    )


def _load(path: Path, parse: Any) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
