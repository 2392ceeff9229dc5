"""Finished runs below a folder, as plain data: what every table, figure and page is made of."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fedvlm.config.keys import default_schema
from fedvlm.config.sections import read_keys
from fedvlm.core.errors import DataError
from fedvlm.core.spelling import text_of_cell
from fedvlm.runs.cells import folders_of, runs_below
from fedvlm.runs.identity import read_json, whole_results
from fedvlm.runs.metrics import read_metrics
from fedvlm.runs.verify.check import BEFORE, SEALED, UNSEALED, glance, one_digest_one_seed

SEEDS = ("seed", "data_seed")  # keys of a protocol that differ between the runs of one cell
_PARTITION = {"client", "domain", "part", "class", "images"}  # columns of partition.csv


@dataclass(frozen=True)
class Run:
    """One finished run.

    Attributes:
        path: its folder.
        protocol, results, info: sections of ``results.json`` (``info`` is ``run_info``).
        digest: the run's identity digest.
        seal: ``sealed``, or ``unsealed`` where nothing vouches for its files (made before that).
    """

    path: Path
    protocol: Mapping[str, Any]
    results: Mapping[str, Any]
    info: Mapping[str, Any]
    digest: str = ""
    seal: str = UNSEALED

    @property
    def method(self) -> str:
        """The method's name with trainable set and tag: ``FedAvg [prompt+lora] (tag)``."""
        peft, tag = self.protocol.get("peft", ""), self.protocol.get("tag", "")
        trainable = f" [{peft}]" if peft else ""
        return f"{self.protocol['trainer']}{trainable}" + (f" ({tag})" if tag else "")

    @property
    def last(self) -> Mapping[str, Any]:
        """The last round's record: the headline."""
        return dict(self.results["last"])

    @property
    def seconds(self) -> float:
        """Wall time of the run, of its last session."""
        return float(self.info.get("seconds_this_session") or 0)

    def section(self, name: str) -> Mapping[str, Any]:
        """Return a section of the results (``zero_shot``); empty where the run has none such."""
        section = self.results.get(name)
        return section if isinstance(section, Mapping) else {}

    def totals(self) -> Mapping[str, Any]:
        """Return the totals of the whole run; empty where it names none."""
        totals = self.info.get("totals")
        return totals if isinstance(totals, Mapping) else {}

    def notes(self) -> list[str]:
        """Return what the run says of itself, ``not comparable with papers`` above all."""
        notes = self.info.get("notes")
        return [str(note) for note in notes] if isinstance(notes, list) else []

    def value(self, metric: str) -> float | None:
        """Return a number: ``personal`` of the last round, or ``zero_shot.personal`` and the like.

        None where the run has none such.
        """
        part, _, rest = metric.partition(".")  # names of the last round may have a dot
        section, name = (part, rest) if part in self.results and rest else ("last", metric)
        number = self.section(section).get(name)
        return float(number) if isinstance(number, int | float) else None

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

    def identity_config(self) -> dict[str, Any]:
        """Return the config that changes the run's numbers, flat: ``OPTIM.LR`` -> 0.005.

        Of an older run, too, only what counts today.

        Raises:
            DataError: the manifest cannot be read, or names none.
        """
        try:
            return read_keys(dict(self.manifest()["identity"]["config"]), default_schema())
        except (KeyError, TypeError, ValueError) as error:
            raise DataError("the manifest names no config") from error


@dataclass(frozen=True)
class Collected:
    """What lies below a folder.

    Attributes:
        runs: finished runs, sorted by path.
        unfinished: folders with a manifest and no results.
        problems: one sentence per run that is damaged; it is in none of the lists above.
    """

    runs: list[Run] = field(default_factory=list)
    unfinished: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def notes(self) -> list[str]:
        """Return what is to be said before anything is made of the runs."""
        return [*self.problems, *self.bare()]

    def bare(self) -> list[str]:
        """Return a note that counts the runs without seal, if there are any."""
        bare = [run for run in self.runs if run.seal != SEALED]
        if not bare:
            return []
        which = f"{bare[0].path}{' and others' if len(bare) > 1 else ''}"
        return [f"{len(bare)} of {len(self.runs)} run(s) have {BEFORE}: {which}"]


def collect(folders: Sequence[Path]) -> Collected:
    """Read and check all run folders at or below the given ones, each once.

    Packs (``runs.cells``), and folders of packs, stand for what they hold. What is damaged, or does
    not follow from its clients' rows, is a problem and no run (``runs.verify``).

    Raises:
        DataError: a folder does not exist, or a pack is damaged.
    """
    collected = Collected()
    seen: set[Path] = set()
    for folder in (place for path in folders for place in folders_of(path)):
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder with runs; give a run folder or OUTPUT_DIR")
        for path in runs_below(folder):
            if path.resolve() not in seen:
                seen.add(path.resolve())
                _take(path, collected)
    collected.runs.sort(key=lambda run: str(run.path))
    doubles = one_digest_one_seed([(run.path, run.digest, run.protocol) for run in collected.runs])
    collected.problems.extend(f"{path}: {why}; it is left out" for path, why in doubles.items())
    collected.runs[:] = [run for run in collected.runs if run.path not in doubles]
    return collected


def read_partition(folder: Path) -> list[dict[str, str]]:
    """Return the rows of a run folder's ``partition.csv``.

    Raises:
        DataError: it cannot be read, or has other columns.
    """
    path = folder / "partition.csv"
    try:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            reader = csv.DictReader(file)
            lacking = _PARTITION - set(reader.fieldnames or ())
            rows = [{k: text_of_cell(v or "") for k, v in row.items()} for row in reader]
    except OSError as error:
        raise DataError(f"cannot read {path} ({error.strerror})") from error
    if lacking:
        raise DataError(f"{path} lacks the columns {', '.join(sorted(lacking))}")
    return rows


def finite(value: Any) -> float | None:
    """Return a finite number as a float; None for anything else that a file may hold."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and math.isfinite(value) else None


def _take(path: Path, collected: Collected) -> None:
    file = path / "results.json"
    if file.exists() and not file.is_file():  # a pipe would never end
        collected.problems.append(f"{file} is no plain file: the run is left out")
        return
    if not file.exists():
        collected.unfinished.append(path)
        return
    record = whole_results(read_json(file))
    good = record is not None and isinstance(record["results"].get("last"), dict)
    if record is None or not good or "trainer" not in record["protocol"]:
        collected.problems.append(f"{file} is damaged or of another version: it is left out")
        return
    verdict = glance(path, record)
    if verdict.damage:
        collected.problems.append(f"{verdict.sentence()}; the run is left out")
        return
    collected.runs.append(
        Run(path, record["protocol"], record["results"], record["run_info"],
            record["identity_digest"], verdict.seal)
    )


def _load(path: Path, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
