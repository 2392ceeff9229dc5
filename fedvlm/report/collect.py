"""Finished runs below a folder, as plain data: what every table, figure and page is made of.

Mean and spread over seeds.

Dassl's ``log.txt``, CoOp's and ours: the last result after the closing line, per seed.

The rule is that of CoOp's ``parse_test_res.py``: a line that says training has ended arms the
reader, and the last ``* keyword: number%`` after it counts. Its layouts too: ``EXP/seed1/log.txt``
(one experiment) or ``FOLDER/EXP/seed1/log.txt`` (several), at any depth.
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fedvlm.core.errors import DataError
from fedvlm.runs.identity import read_results
from fedvlm.runs.metrics import read_metrics

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


def mean(values: Sequence[float]) -> float | None:
    """Return the arithmetic mean; None of no values."""
    return statistics.fmean(values) if values else None


def sample_std(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (divisor n - 1); None for fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else None


def population_std(values: Sequence[float]) -> float | None:
    """Return the population standard deviation (divisor n), as CoOp's script prints it."""
    return statistics.pstdev(values) if values else None


def t_interval(values: Sequence[float], level: float = 0.95) -> float | None:
    """Return half the width of Student's t-interval of the mean; None for fewer than two values.

    ``mean +- t_interval`` covers the mean of a normal distribution with probability ``level``.
    """
    spread = sample_std(values)
    if spread is None:
        return None
    from scipy.stats import t  # a second to import: only where it is asked for

    quantile = float(t.ppf((1 + level) / 2, len(values) - 1))
    return quantile * spread / math.sqrt(len(values))


NAME = "log.txt"
RESULT = "=> result"
# Dassl; older Dassl, as MaPLe's and PromptSRC's; federated forks: "Finish training: 3 user"
_END = re.compile(r"(?:Finish|Finished) training(?:: .*)?")
_LINE = re.compile(r"\s*\*\s+([A-Za-z]\w*):\s*([-+.\deE]+)%\s*")


@dataclass(frozen=True)
class Experiment:
    """The seeds of one setting.

    Attributes:
        name: its folder, relative to the one that was read; ``.`` for that one.
        seeds: seed folder's name -> keyword -> percent.
    """

    name: str
    seeds: dict[str, dict[str, float]] = field(default_factory=dict)

    def values(self, keyword: str) -> list[float]:
        """Return a number of all seeds that have it."""
        return [found[keyword] for found in self.seeds.values() if keyword in found]


def parse_log(lines: Iterable[str], test_log: bool = False) -> dict[str, float]:
    """Return keyword -> percent (``accuracy``, ``error``, ``macro_f1``); empty if never armed.

    Args:
        lines: of one log.
        test_log: arm at ``=> result`` too, for logs of ``--eval-only``. A training log has such
            lines after every validation, so that a run that was cut would count.
    """
    armed, found = False, {}
    for line in lines:
        text = line.strip()
        if _END.fullmatch(text) or (test_log and text == RESULT):
            armed = True
        elif armed and (match := _LINE.fullmatch(line)):
            value = _number(match.group(2))
            if value is not None:
                found[match.group(1)] = value
    return found


def read_logs(folder: Path, test_log: bool = False) -> tuple[list[Experiment], list[str]]:
    """Return the experiments below a folder, by name, and a note per log left out.

    Raises:
        DataError: no such folder, or no log with a result.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder with logs; give the one above seed1/{NAME}")
    found: dict[str, Experiment] = {}
    notes: list[str] = []
    for here, below, files in os.walk(folder):
        below.sort()
        path = Path(here)
        if NAME not in files:
            continue
        later = sorted(f for f in files if f.startswith(f"{NAME}-"))
        if later:
            notes.append(f"{path}: {', '.join(later)} beside {NAME} not read (neither does "
                         "parse_test_res.py)")
        numbers = _read(path / NAME, test_log, notes)
        if numbers:
            name = str(path.parent.relative_to(folder)) if path != folder else "."
            found.setdefault(name, Experiment(name)).seeds[path.name] = numbers
    if not found:
        raise DataError(
            f"{folder}: no {NAME} with a result below it"
            + (f" ({'; '.join(notes[:3])})" if notes else "; results of ours are read without "
               "--logs: fedvlm table OUTPUT")
        )
    return [found[name] for name in sorted(found)], notes


def _read(path: Path, test_log: bool, notes: list[str]) -> dict[str, float]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        notes.append(f"{path} cannot be read ({error.strerror}): left out")
        return {}
    numbers = parse_log(lines, test_log)
    if not numbers:
        advice = "" if test_log or RESULT not in (line.strip() for line in lines) else (
            "; with --test-log its last '=> result' counts"
        )
        notes.append(f"{path} has no result after 'Finish training': left out{advice}")
    return numbers


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None
