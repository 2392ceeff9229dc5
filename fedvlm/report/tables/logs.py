"""``fedvlm table --logs``: a table of Dassl's ``log.txt`` files, CoOp's and ours.

A log is read as CoOp's ``parse_test_res.py`` reads it: a line that says training has ended arms the
reader, and the last ``* keyword: number%`` after it counts. Its layouts too: ``EXP/seed1/log.txt``
(one experiment) or ``FOLDER/EXP/seed1/log.txt`` (several), at any depth. The table has one row per
experiment and one column per keyword.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedvlm.core.errors import DataError
from fedvlm.core.stats import mean, population_std
from fedvlm.report.tables.cells import AVERAGE, average, cell_of
from fedvlm.report.tables.metrics import DEFINED
from fedvlm.report.tables.table import ReportTable

FILE = "log.txt"
RESULT = "=> result"
FIRST = ("accuracy", "error", "macro_f1")  # columns, before any others
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

    def values(self, keyword: str) -> dict[str, float]:
        """Return a number of all seeds that have it, by seed folder."""
        return {seed: numbers[keyword] for seed, numbers in self.seeds.items()
                if keyword in numbers}


def parse_log(lines: Iterable[str], test_log: bool = False) -> dict[str, float]:
    """Return keyword -> percent (``accuracy``, ``error``, ``macro_f1``); empty if never armed.

    Args:
        lines: of one log.
        test_log: arm at ``=> result`` too, for logs of ``--eval-only``. A training log has such
            lines after every validation, so that a run that was cut would count.
    """
    armed, numbers = False, {}
    for line in lines:
        text = line.strip()
        if _END.fullmatch(text) or (test_log and text == RESULT):
            armed = True
        elif armed and (match := _LINE.fullmatch(line)):
            value = _number(match.group(2))
            if value is not None:
                numbers[match.group(1)] = value
    return numbers


def read_logs(folder: Path, test_log: bool = False) -> tuple[list[Experiment], list[str]]:
    """Return the experiments below a folder, by name, and a note per log left out.

    Raises:
        DataError: no such folder, or no log with a result.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder with logs; give the one above seed1/{FILE}")
    experiments: dict[str, Experiment] = {}
    notes: list[str] = []
    for here, below, files in os.walk(folder):
        below.sort()
        path = Path(here)
        if FILE not in files:
            continue
        later = sorted(f for f in files if f.startswith(f"{FILE}-"))
        if later:
            notes.append(f"{path}: {', '.join(later)} beside {FILE} not read (neither does "
                         "parse_test_res.py)")
        numbers = _read(path / FILE, test_log, notes)
        if numbers:
            name = str(path.parent.relative_to(folder)) if path != folder else "."
            experiments.setdefault(name, Experiment(name)).seeds[path.name] = numbers
    if not experiments:
        raise DataError(
            f"{folder}: no {FILE} with a result below it"
            + (f" ({'; '.join(notes[:3])})" if notes else "; results of ours are read without "
               "--logs: fedvlm table OUTPUT")
        )
    return [experiments[name] for name in sorted(experiments)], notes


def logs_table(
    folder: Path, *, test_log: bool = False, ci: bool = False, digits: int = 1, command: str = "",
) -> ReportTable:
    """Return mean and spread over the seeds of every experiment below a folder.

    The spread is ours (divisor n - 1); what ``parse_test_res.py`` prints, the population's, is
    told in the notes. Several experiments get an average row (its ``--multi-exp``).

    Raises:
        DataError: see ``read_logs``.
    """
    experiments, problems = read_logs(folder, test_log)
    keywords = {k: None for e in experiments for numbers in e.seeds.values() for k in numbers}
    columns = [k for k in FIRST if k in keywords] + sorted(k for k in keywords if k not in FIRST)
    cells = [
        [cell_of(k, one.values(k), len(one.seeds), ci, digits) for k in columns]
        for one in experiments
    ]
    most = max(cell.n for line in cells for cell in line)
    cells = [[replace(c, fewer=0 < c.n < most) for c in line] for line in cells]
    rows = [folder.resolve().name if one.name == "." else one.name for one in experiments]
    notes = [_as_coop(row, list(one.values("accuracy").values()))
             for row, one in zip(rows, experiments, strict=True) if one.values("accuracy")]
    if any(cell.fewer for line in cells for cell in line):
        notes.insert(0, f"† fewer than {most} seeds")
    if len(experiments) > 1:
        cells.append([average(column, ci) for column in zip(*cells, strict=True)])
        rows.append(AVERAGE)
    return ReportTable(
        tuple(columns), "experiment", tuple(rows), tuple(columns), tuple(map(tuple, cells)),
        _caption(folder, experiments, columns, ci, most, command), (*notes, *problems), ci, most,
    )


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
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _as_coop(row: str, values: Sequence[float]) -> str:
    return (f"{row}: parse_test_res.py prints accuracy: {mean(values):.2f}% +- "
            f"{population_std(values):.2f}% (population standard deviation, n = {len(values)})")


def _caption(
    folder: Path, experiments: Sequence[Experiment], columns: Sequence[str], ci: bool, most: int,
    command: str,
) -> str:
    words = [f"{k}: {DEFINED[k].words}" if k in DEFINED else k for k in columns]
    kind = "half the 95 % t-interval of the mean" if ci else "sample standard deviation"
    parts = ["; ".join(words) + " (%)", f"Mean ± {kind} over n = {most} logs"]
    if len(experiments) > 1:
        parts.append("Average: mean over experiments of the means, its spread that of the seeds "
                     "which all have")
    parts.append(f"From the logs below {folder}, which name no protocol: whether the rows are "
                 "comparable was not checked")
    if command:
        parts.append(f"Made by: {command}")
    return ". ".join(parts) + "."
