"""What has become of a sweep's cells, read from the run folders, and the sweep's own journal.

The run folders decide: a cell is done because its ``results.json`` is there and belongs to the
same config. The journal (``cells.jsonl``, one line per attempt that ended) adds what a run folder
cannot tell: that an attempt failed and why, its seconds and memory. From those ``Pace`` says how
long the rest of the sweep should take.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.stats import mean
from fedvlm.job.identity import present_config
from fedvlm.runs.finished import find_finished
from fedvlm.runs.identity import (
    identity_difference,
    identity_digest,
    read_manifest,
    safe_name,
    shorten_lines,
)
from fedvlm.runs.lock import holder
from fedvlm.runs.manifest import now
from fedvlm.runs.metrics import read_metrics
from fedvlm.sweep.cells import Cell
from fedvlm.sweep.worker import Outcome

DONE, RUNNING, FAILED, BEGUN, TO_DO = "done", "running", "failed", "begun", "to do"
QUEUED = "queued"  # in a batch system; no folder says so
HOLDS = " holds another run"


@dataclass(frozen=True)
class CellState:
    """A cell's state, with its failure's sentence or its headline number."""

    name: str
    sentence: str = ""
    value: float | None = None


class Journal:
    """The sweep's folder: ``OUTPUT_DIR/sweeps/<name>``.

    Args:
        output: OUTPUT_DIR.
        name: of the sweep.
        part: number of the first cell of an ``--only`` part, which has a file of its own: many
            of them may write at once.
    """

    def __init__(self, output: Path, name: str, part: int | None = None) -> None:
        self.folder = output / "sweeps" / safe_name(name)
        self.path = self.folder / ("cells.jsonl" if part is None else f"cells-{part}.jsonl")

    def prepare(self, plan: dict[str, Any]) -> None:
        """Make the folder and write the resolved plan.

        Raises:
            DataError: it cannot be written.
        """
        with files.explain_errors(self.folder):
            (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        files.write_text(
            self.folder / "plan.yaml", yaml.safe_dump(plan, sort_keys=False, allow_unicode=True)
        )
        self.mend()

    def mend(self) -> None:
        """End a line that a kill cut: the next one is whole."""
        files.end_line(self.path)

    def log(self, cell: Cell) -> Path:
        """Return where the cell's screen output goes."""
        text = f"{cell.dataset}-{cell.method}-seed{cell.seed}"
        plain = re.sub(r"[^\w.=+-]+", "_", text).replace("_-", "-")[:100].lstrip(".-")
        return self.folder / "logs" / f"{plain}-{cell.digest[:8]}.txt"

    def add(self, cell: Cell, outcome: Outcome) -> None:
        """Append an attempt."""
        about = {"cell": cell.key, "config": cell.digest, "dataset": cell.dataset,
                 "method": cell.method, "ended": now()}
        told = {k: v for k, v in asdict(outcome).items() if k != "answer"}
        files.append_line(self.path, json.dumps(about | told))

    def records(self) -> list[dict[str, Any]]:
        """Return all attempts, oldest first within a file; damaged lines are passed over."""
        keys = {"cell", "config", "code", "seconds", "ended"}
        parts = sorted(self.folder.glob("cells*.jsonl"))
        records = [r for part in parts for r in read_metrics(part)[0] if keys <= set(r)]
        return sorted(records, key=lambda r: str(r["ended"]))

    def last(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Return (cell, config) -> its last attempt."""
        return {(r["cell"], r["config"]): r for r in self.records()}


def states(cells: Sequence[Cell], journal: Journal) -> dict[int, CellState]:
    """Return cell number -> state.

    Raises:
        ConfigError: run folders that hold another run; one line per difference.
    """
    last, result = journal.last(), {}
    mistakes: dict[str, list[str]] = {}  # what differs -> sentences
    for cell in cells:
        try:
            result[cell.number] = cell_state(cell, last.get((cell.key, cell.digest)))
        except (ConfigError, DataError) as error:
            mistakes.setdefault(str(error).partition(HOLDS)[2] or str(error), []).append(str(error))
    if mistakes:
        raise ConfigError("\n".join(
            first + (f" (and {len(more)} more cells alike)" if more else "")
            for first, *more in mistakes.values()
        ))
    return result


def cell_state(cell: Cell, attempt: dict[str, Any] | None) -> CellState:
    """Return a cell's state; ``attempt`` is its last line of the journal.

    Raises:
        ConfigError: its folder holds a run of another config.
        DataError: its folder cannot be read as a run, or is damaged.
    """
    folder = cell.folder
    manifest = read_manifest(folder) if folder.is_dir() else None
    if manifest is not None:
        config = present_config(
            str(cell.config["TRAINER.NAME"]), manifest["identity"].get("config", {})
        )
        if identity_digest(config) != cell.digest:
            difference = shorten_lines(identity_difference(config, cell.config))
            raise ConfigError(
                f"{cell}: '{folder}'{HOLDS}; settings that differ (existing "
                f"-> this plan): {difference}; choose a tag or another output-dir"
            )
        run = find_finished(folder)
        if run is not None:
            run.check()
            return CellState(DONE, value=run.value("personal"))
    if holder(folder):
        return CellState(RUNNING)
    if attempt is not None and attempt["code"] not in (0, 130):
        return CellState(FAILED, str(attempt.get("sentence", "")))
    return CellState(TO_DO if manifest is None else BEGUN)


class Pace:
    """Seconds of finished cells; a cell is judged by those of its data set and method.

    Where a method has not run on a data set yet, the data set's mean stands in, times the method's
    mean ratio to it on the others.
    """

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], list[float]] = defaultdict(list)

    def add(self, dataset: str, method: str, seconds: float) -> None:
        """Take one measurement."""
        self.seconds[dataset, method].append(seconds)

    def learn(self, records: Iterable[Mapping[str, Any]], cells: Sequence[Cell]) -> None:
        """Take the journal's whole attempts; of cells that it lacks, what their results say."""
        rest = {(c.key, c.digest): c for c in cells}
        for record in records:
            cell = rest.pop((record["cell"], record["config"]), None)
            if record["code"] == 0 and cell is not None:
                self.add(cell.dataset, cell.method, float(record["seconds"]))
        for cell in rest.values():
            run = find_finished(cell.folder)
            if run is not None and run.seconds:
                self.add(cell.dataset, cell.method, run.seconds)

    def of(self, cell: Cell) -> float | None:
        """Return the seconds that a cell should take; None where nothing comparable has run."""
        seconds = self.seconds.get((cell.dataset, cell.method))
        if seconds:
            return mean(seconds)
        usual = self._usual(cell.dataset)
        if usual is None:
            return None
        ratio = mean(
            (mean(v) or 0.0) / there for (d, m), v in self.seconds.items()
            if m == cell.method and (there := self._usual(d))
        )
        return usual * (1.0 if ratio is None else ratio)

    def left(self, cells: Iterable[Cell], jobs: int) -> tuple[float, int]:
        """Return (seconds for the cells that can be judged, number of those that cannot)."""
        estimates = [self.of(cell) for cell in cells]
        seconds = [s for s in estimates if s is not None]
        return sum(seconds) / max(1, min(jobs, len(estimates))), len(estimates) - len(seconds)

    def _usual(self, dataset: str) -> float | None:
        """Return the mean over the methods of their means on a data set."""
        return mean(mean(v) for (d, _), v in self.seconds.items() if d == dataset)
