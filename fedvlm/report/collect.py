"""Finished runs below a folder, as plain data: what every table, figure and page is made of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedvlm.console.nearest import nearest_path
from fedvlm.core.errors import DataError
from fedvlm.core.files import user_path
from fedvlm.core.stats import is_number
from fedvlm.runs.cells import ENDING, folders_of, runs_below
from fedvlm.runs.finished import FinishedRun, read_finished
from fedvlm.runs.verify.check import BEFORE, SEALED, one_digest_one_seed

SEEDS = ("seed", "data_seed")  # keys of a protocol that differ between the runs of one cell


@dataclass(frozen=True)
class Collected:
    """What lies below a folder.

    Attributes:
        runs: finished runs, sorted by path.
        unfinished: folders with a manifest and no results.
        problems: one message per run that is damaged; it is in none of the lists above.
    """

    runs: list[FinishedRun] = field(default_factory=list)
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


def run_folders(words: Iterable[str]) -> list[Path]:
    """Return the folders that words name; packs (``runs.cells``) stand for what they hold.

    Raises:
        DataError: one is no folder; the nearest there is gets named. A pack is damaged.
    """
    paths = [user_path(word) for word in words]
    for path in paths:
        if not (path.is_dir() or path.name.endswith(ENDING) and path.is_file()):
            raise DataError(f"{path} is not a folder that contains runs{nearest_path(path)}")
    return [folder for path in paths for folder in folders_of(path)]


def collect(folders: Sequence[Path]) -> Collected:
    """Read and check all run folders at or below the given ones, each once.

    A draft is one only where it is named itself, and its method's name says so. Packs
    (``runs.cells``), and folders of packs, stand for what they hold. What is damaged, or does
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
                _take(path, collected, named=path == folder)
    collected.runs.sort(key=lambda run: str(run.path))
    doubles = one_digest_one_seed([(run.path, run.digest, run.protocol) for run in collected.runs])
    collected.problems.extend(f"{path}: {why}; it is left out" for path, why in doubles.items())
    collected.runs[:] = [run for run in collected.runs if run.path not in doubles]
    return collected


def no_runs(folders: Sequence[Path], collected: Collected) -> DataError:
    """Return the error for folders without a finished run: what lies there instead."""
    journal = next((f for f in folders if (f / "plan.yaml").is_file()), None)
    if journal is not None:
        return DataError(f"{journal} is a sweep's journal, not its runs; give the "
                         f"OUTPUT_DIR of the sweep, {journal.parent.parent}")
    left = collected.unfinished
    there = [f"{len(left)} unfinished, first {left[0]}"] if left else []
    there += collected.problems[:2]
    seen = f" ({'; '.join(there)})" if there else ""
    return DataError(f"no finished run below {', '.join(map(str, folders))}{seen}; give a run "
                     "folder or OUTPUT_DIR")


def as_float(value: Any) -> float | None:
    """Return a finite number as a float; None for anything else that a file may hold."""
    return float(value) if is_number(value) and math.isfinite(value) else None


def _take(path: Path, collected: Collected, named: bool) -> None:
    try:
        run = read_finished(path)
    except DataError as error:
        collected.problems.append(str(error))
        return
    if run is None:
        collected.unfinished.append(path)
    elif run.draft and not named:
        collected.problems.append(
            f"{path} is a draft and left out; run the same without --draft for a result"
        )
    else:
        collected.runs.append(run)
