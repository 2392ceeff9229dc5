"""A tuning without processes and, for most tests, without runs: a point's score is a formula."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedvlm.cli.run._plan import plan_of
from fedvlm.cli.verbs import verbs
from fedvlm.sweep.cells import Cell
from fedvlm.sweep.plan import SweepPlan
from fedvlm.sweep.tune import run
from fedvlm.sweep.worker import Outcome

PLAN = ["--trainers", "FedProx", "FedAvg", "--datasets", "digits", "--shots", "2", "--backbone",
        "tiny", "--seeds", "101", "102", "--num-users", "2", "--rounds", "2", "--peft",
        "feature+head", "--name", "toy", "DATASET.VAL_SHOTS", "4"]
Answer = Callable[[Cell], dict[str, Any] | None]


def plan(*more: str, words: list[str] = PLAN) -> SweepPlan:
    """Return the plan of words, as ``fedvlm tune`` and ``fedvlm sweep`` read it."""
    return plan_of(verbs()["tune"].parser().parse_args([*words, *more]))


def formula(cell: Cell) -> dict[str, Any]:
    """Answer as a run would: best at rate 0.1 and for sgd; a client more or less right by luck."""
    config = cell.config
    far = abs(math.log10(float(config["OPTIM.LR"]) * 10))
    far += 0.2 * abs(math.log10(float(config.get("TRAINER.FEDPROX.MU", 0.1))))
    right = 450 - 60 * far - 10 * (config["OPTIM.NAME"] != "sgd")
    luck = [int(cell.digest[i], 16) for i in range(4)]
    return {"roles": ["head"], "trained": 10, "steps": 8, "cpu": 0.5,
            "clients": [(round(right / 4 + one), 125) for one in luck]}


class Stopped(Exception):
    """The tuning was killed."""


class FakePool:
    """Runs cells by ``answer``, one after another; ``limit`` runs until it is killed."""

    answer: Answer = staticmethod(formula)
    limit = 10**6
    failure = Outcome(3, "no luck", 0.1)  # of a cell without an answer

    def __init__(self, workers: Any, journal: Any, watcher: Any) -> None:
        self.journal, self.watcher, self.left = journal, watcher, list[Cell]()

    def add(self, cells: Any) -> None:
        self.left += cells

    def run(self, cells: Any) -> None:
        self.add(cells)
        for at in itertools.count():
            if not self.left:
                return
            if at >= self.limit:
                raise Stopped
            cell = self.left.pop(0)
            answer = self.answer(cell)
            outcome = Outcome(0, "", 0.25, None, answer) if answer else self.failure
            self.journal.add(cell, outcome)
            self.watcher.ended(cell, outcome)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakePool]:
    """Let tunings run in a ``FakePool``, whose answer and limit a test may set."""
    pool = type("Pool", (FakePool,), {})
    monkeypatch.setattr(run, "Scheduler", pool)
    return pool


def tuned(output: Path, budget: int, *more: str) -> run.Tuning:
    """Run a tuning; one that is stopped is returned as it stands."""
    tuning = run.Tuning(plan("--output-dir", str(output), *more), budget, 1)
    with contextlib.suppress(Stopped):
        tuning.run(1, ())
    return tuning


def trials(tuning: run.Tuning) -> dict[str, list[tuple[Any, ...]]]:
    """Return of each method what its trials are and scored."""
    return {
        study.entry.label: [
            (t.number, t.settings, t.score.groups if t.score else None, t.why, t.guess)
            for t in study.trials
        ] for study in tuning.studies
    }
