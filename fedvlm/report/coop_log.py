"""Dassl's ``log.txt``, CoOp's and ours: the last result after the closing line, per seed.

The rule is that of CoOp's ``parse_test_res.py``: a line that says training has ended arms the
reader, and the last ``* keyword: number%`` after it counts. Its layouts too: ``EXP/seed1/log.txt``
(one experiment) or ``FOLDER/EXP/seed1/log.txt`` (several), at any depth.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fedvlm.errors import DataError

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
