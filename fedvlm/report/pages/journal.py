"""What sweeps say of themselves: their plan, and the attempts that ended in no result."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fedvlm.core.errors import DataError, fold
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.metrics import read_metrics
from fedvlm.runs.names import is_finished

INTERRUPTED = 130  # an attempt that was stopped is no failure


@dataclass(frozen=True)
class SweepJournal:
    """A sweep's folder below an OUTPUT_DIR.

    Attributes:
        name: of the sweep.
        output: OUTPUT_DIR.
        plan: text of its ``plan.yaml``; empty where it has none.
        datasets, trainers: labels of the plan.
        cells: how many runs the plan asks for; per_cell: for each method on each data set.
        attempts: run folder below OUTPUT_DIR -> its last attempt.
    """

    name: str
    output: Path
    plan: str = ""
    datasets: tuple[str, ...] = ()
    trainers: tuple[str, ...] = ()
    cells: int = 0
    per_cell: int = 0
    attempts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def failed(self) -> list[Mapping[str, Any]]:
        """Return the last attempts that failed and left no results."""
        return [
            one for key, one in self.attempts.items()
            if one["code"] not in (0, INTERRUPTED)
            and not is_finished(self.output / key)
        ]

    def labels(self, runs: Iterable[FinishedRun]) -> dict[str, dict[str, str]]:
        """Return, for data sets and for methods, the plan's label -> the name in the results."""
        labels: dict[str, dict[str, str]] = {"dataset": {}, "method": {}}
        names = {}
        for run in runs:
            names[run.path.resolve()] = (str(run.protocol.get("dataset")), run.method)
        for key, one in self.attempts.items():
            pair = names.get((self.output / key).resolve())
            if pair:
                labels["dataset"][str(one["dataset"])], labels["method"][str(one["method"])] = pair
        for at, (kind, words) in enumerate((("dataset", self.datasets),
                                            ("method", self.trainers))):
            folded = {fold(pair[at]): pair[at] for pair in names.values()}
            for word in words:
                labels[kind].setdefault(word, folded.get(fold(word), word))
        return labels


def journals(folders: Sequence[Path]) -> tuple[list[SweepJournal], list[str]]:
    """Return the journals of the OUTPUT_DIRs given, and a message per plan that cannot be read."""
    every, problems = [], []
    for output in folders:
        for folder in sorted((output / "sweeps").glob("*/")):
            plan, text = {}, ""
            try:
                text = (folder / "plan.yaml").read_text(encoding="utf-8")
                plan = yaml.safe_load(text)
            except (OSError, ValueError, yaml.YAMLError) as error:
                problems.append(f"cannot read {folder / 'plan.yaml'}: "
                                f"{' '.join(str(error).split())}")
            every.append(_journal(folder, output, plan if isinstance(plan, dict) else {}, text))
    return every, problems


def _journal(folder: Path, output: Path, plan: Mapping[str, Any], text: str) -> SweepJournal:
    labels = [
        tuple(str(one.get("label", "")) for one in plan.get(part) or () if isinstance(one, dict))
        for part in ("datasets", "trainers")
    ]
    axes = plan.get("axes")
    sizes = [len(labels[0]), len(labels[1]), len(plan.get("seeds") or ())]
    sizes += [len(plan.get("shots") or ()) or 1]
    sizes += [len(v) for v in axes.values()] if isinstance(axes, dict) else []
    return SweepJournal(
        str(plan.get("name") or folder.name), output, text, labels[0], labels[1],
        math.prod(sizes), math.prod(sizes[2:]), _attempts(folder),
    )


def _attempts(folder: Path) -> dict[str, Mapping[str, Any]]:
    records = []
    for file in sorted(folder.glob("cells*.jsonl")):
        try:
            records += read_metrics(file)[0]
        except DataError:  # damaged: the run folders still say what is done
            continue
    good = [r for r in records if {"cell", "code", "dataset", "method"} <= set(r)]
    good.sort(key=lambda r: str(r.get("ended", "")))
    return {str(r["cell"]): r for r in good}
