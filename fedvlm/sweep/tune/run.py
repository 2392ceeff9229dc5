"""A tuning at work: methods side by side, each of them trial by trial.

All methods of a plan get the same number of trials on the same sets and seeds. A trial is one run
for each of them, and runs of all methods wait in one queue, so that workers keep to their data.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedvlm.config.build import flat
from fedvlm.config.knobs import Knob, read_knobs
from fedvlm.console.rows import clock
from fedvlm.console.screen import complain, say
from fedvlm.core import files
from fedvlm.core.errors import ConfigError, FedvlmError, plural
from fedvlm.federation.cards import card_of, fields
from fedvlm.job.resolve import Job
from fedvlm.runs.identity import identity_digest, safe_name
from fedvlm.sweep.cells import Cell, Checker, combinations, jobs_of
from fedvlm.sweep.plan import PlanEntry, SweepPlan
from fedvlm.sweep.processes import Processes, Worker, deal_devices
from fedvlm.sweep.scheduler import Scheduler
from fedvlm.sweep.tune.origin import WORDS, Origins
from fedvlm.sweep.tune.progress import CLEAR
from fedvlm.sweep.tune.records import TrialRecords, TrialScore, ends_trial, join_scores, pool_scores
from fedvlm.sweep.tune.space import space_of
from fedvlm.sweep.tune.study import SearchTrial, Study, storage
from fedvlm.sweep.tune.tuned import write_tuned
from fedvlm.sweep.tune.values import load_schema
from fedvlm.sweep.worker import INTERRUPTED, Outcome

TASK = "fedvlm.sweep.tune.trial:score"


class Tuning:
    """The search for every method of a plan.

    Args:
        plan: methods, sets and seeds.
        budget: trials of each method.
        jobs: worker processes.

    Raises:
        FedvlmError: mistakes of the plan, all of them.
    """

    def __init__(self, plan: SweepPlan, budget: int, jobs: int) -> None:
        self.plan, self.budget, self.jobs = plan, budget, jobs
        self.checker, self.numbers = Checker(), itertools.count()
        self.place: dict[int, tuple[Study, SearchTrial]] = {}
        self.origins, self.unchecked = Origins(), dict[int, Job]()
        self.told = set[tuple[str, ...]]()
        self.configs: dict[str, dict[str, Any]] = {}
        self.first = self._first()
        output = next(iter(self.first.values()))[0].output
        self.folder = output / "tuning" / safe_name(plan.name)
        self.scheduler: Scheduler | None = None
        self.studies: list[Study] = []
        self.given: set[int] = set()
        self.ran = 0

    @property
    def tuned(self) -> Path:
        """Where the result is written."""
        return self.folder / "tuned.json"

    @property
    def backbones(self) -> set[str]:
        """The backbones of its runs."""
        return {str(c.config["MODEL.BACKBONE.NAME"]) for cells in self.first.values()
                for c in cells}

    def _first(self) -> dict[str, list[Cell]]:
        """Return the runs of each method's defaults; all mistakes of the plan show here."""
        first, mistakes = {}, dict[str, None]()
        for entry in self.plan.trainers:
            try:
                first[entry.label] = self._cells(entry, {})
                knobs_of(entry)
            except FedvlmError as error:
                mistakes |= dict.fromkeys(
                    f"tuning {self.plan.name}: {entry.label}: {line}"
                    for line in str(error).splitlines()
                )
        if mistakes:
            raise ConfigError("\n".join(mistakes))
        return first

    def _cells(self, entry: PlanEntry, settings: dict[str, str]) -> list[Cell]:
        """Return a trial's runs.

        Raises:
            FedvlmError: a config that cannot be.
        """
        plan = replace(self.plan, trainers=(replace(entry, tuned=settings),))
        cells = []
        for combination in combinations(plan):
            for job in jobs_of(plan, combination):
                self.configs.setdefault(entry.label, flat(job.cfg))
                cells.append(self.checker.cell(next(self.numbers), combination, job))
                self.unchecked[cells[-1].number] = job
        return sorted(cells, key=lambda cell: plan.seeds.index(cell.seed))

    # ---- running ----------------------------------------------------------------------------
    def run(self, threads: int, devices: Sequence[str], timeout: float = 0) -> int:
        """Run what is to do, write the result; return 0, or 1 where a method could not be tuned.

        Raises:
            ConfigError: a device that is not on this machine.
            KeyboardInterrupt: what has been scored is kept.
        """
        devices = deal_devices(devices, [c for cs in self.first.values() for c in cs], self.jobs)
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        self.records = TrialRecords(self.folder)
        self.records.mend()
        if self.records.damaged:
            complain(f"{self.records.path}: {self.records.damaged} damaged lines are ignored; "
                     "their runs are repeated", prefix="note")
        if self.records.bare:
            complain(f"{self.records.path}: {self.records.bare} runs do not record their images, "
                     "weights and source code; they are used as they are", prefix="note")
        store = storage(self.folder / "optuna.log")
        self.studies = [Study(entry, self.budget, store) for entry in self.plan.trainers]
        each = len(next(iter(self.first.values())))
        say(f"tuning {self.plan.name}: {plural(len(self.studies), 'method')}, "
            f"{plural(self.budget, 'trial')} with {plural(each, 'run')} each; "
            f"{plural(self.jobs, 'job')}, {plural(threads, 'thread')} each; folder {self.folder}")
        workers = Processes(self.jobs, threads=threads, devices=devices, timeout=timeout,
                            start=partial(Worker, task=TASK))
        self.scheduler = Scheduler(workers, self, self)
        waiting = [cell for study in self.studies for cell in self._advance(study)]
        self.scheduler.run(waiting)
        return self._conclude()

    def _advance(self, study: Study) -> list[Cell]:
        """Return runs of a method that a worker may begin now: of one seed of its next trial."""
        while not study.failure:
            if not study.trials or study.trials[-1].ended:
                if study.done:
                    break
                self._begin(study)
                continue
            missing = self._settle(study, study.trials[-1])
            if missing:
                new = [cell for cell in missing if cell.number not in self.given]
                self.given |= {cell.number for cell in new}
                return new
        return []

    def _begin(self, study: Study) -> None:
        trial = study.ask()
        try:
            trial.cells = (self.first[study.entry.label] if trial.number == 0
                           else self._cells(study.entry, trial.settings))
        except FedvlmError as error:  # two keys that do not go together
            self._end(study, trial, str(error))
        self._forget_others(trial)
        self.place |= {cell.number: (study, trial) for cell in trial.cells}

    def _forget_others(self, trial: SearchTrial) -> None:
        """Forget the lines of a trial's runs that were made of other images, weights or source."""
        for cell in trial.cells:
            job = self.unchecked.pop(cell.number)
            keys = self.records.strange(cell, partial(self.origins.of, job.cfg))
            if keys and (cell.method, *keys) not in self.told:
                self.told.add((cell.method, *keys))
                complain(f"{cell.method}: runs of {self.records.path} were made with other "
                         f"{' and other '.join(WORDS[key] for key in keys)} than now: they are "
                         "repeated", prefix="note")

    def _settle(self, study: Study, trial: SearchTrial) -> list[Cell]:
        """Return the runs that a trial lacks, of one seed; end it where it lacks none.

        It has ended as well when a run has no score, or when it is clearly behind the best so far
        on the seeds that have run.
        """
        each = len(trial.cells) // len(self.plan.seeds)
        lines: list[dict[str, Any]] = []
        trial.parts = []
        for at in range(0, len(trial.cells), each):
            cells = trial.cells[at:at + each]
            there = self.records.of(cells)
            lines += there
            bad = next((line for line in there if "clients" not in line), None)
            if bad is None and len(there) < len(cells):
                known = {line["config"] for line in there}
                return [cell for cell in cells if cell.digest not in known]
            trial.seconds = sum(float(line["seconds"]) for line in lines)
            if bad is not None:
                self._open(study, trial, lines[0])
                self._end(study, trial, str(bad["sentence"]))
                return []
            trial.parts.append(pool_scores(there))
            if at + each < len(trial.cells) and self._hopeless(study, trial):
                self._end(study, trial, trial.why)
                return []
        trial.score = join_scores(trial.parts)
        self._open(study, trial, lines[0])
        self._end(study, trial, "")
        return []

    def _hopeless(self, study: Study, trial: SearchTrial) -> bool:
        """Say whether a trial is behind the best so far by more than ``CLEAR`` standard errors."""
        best = study.best
        if best is None or best.score is None:
            return False
        so_far = join_scores(best.parts[:len(trial.parts)])
        gap, error = join_scores(trial.parts).behind(so_far)
        if not gap > CLEAR * error:
            return False
        trial.guess = best.score.value - gap
        trial.why = f"dropped {gap:.1f} behind trial {best.number}"
        return True

    def _open(self, study: Study, trial: SearchTrial, line: dict[str, Any]) -> None:
        """Make the space of a method from what its first run trained."""
        if trial.number > 0:
            return
        if "roles" not in line:
            study.failure = str(line["sentence"])
            return
        entry = study.entry
        config = self.configs[entry.label]
        fixed = {*self.plan.common, *entry.settings, *self.plan.override}
        study.space = space_of(knobs_of(entry), line["roles"], config, fixed)
        trial.params = study.space.point(config)

    def _end(self, study: Study, trial: SearchTrial, why: str) -> None:
        trial.why = why
        best = study.best
        value = f"{trial.score.value:.2f} %" if trial.score else f"no score ({why})"
        beside = f" (best {best.score.value:.2f} %, trial {best.number})" if best and best.score \
            else ""
        say(f"{study.entry.label} trial {trial.number}: {value}{beside}, {trial.seconds:.1f} s")
        if self.scheduler is not None:  # the rest of its runs need not be run
            numbers = {cell.number for cell in trial.cells}
            left = self.scheduler.left
            self.scheduler.left = [cell for cell in left if cell.number not in numbers]

    # ---- what the scheduler tells -----------------------------------------------------------
    def log(self, cell: Cell) -> Path:
        """Return where a run's screen goes."""
        return self.folder / "logs" / f"{safe_name(cell.method)}-{cell.digest[:12]}.txt"

    def add(self, cell: Cell, outcome: Outcome) -> None:
        """Write down what became of a run, its screen only where it failed."""
        self.ran += 1
        if outcome.code != INTERRUPTED:
            self.records.add(cell, self.place[cell.number][1].number, outcome)
        if outcome.code == 0:
            self.log(cell).unlink(missing_ok=True)

    def started(self, cell: Cell) -> None:
        """See ``Watcher``."""

    def ended(self, cell: Cell, outcome: Outcome) -> None:
        """See ``Watcher``: let the method's next runs begin when this one's seed is complete."""
        study, trial = self.place[cell.number]
        if trial.ended or study.failure:
            return  # a run of a trial that ended without it
        if not ends_trial(outcome.code):
            study.failure = outcome.sentence or "interrupted"
            complain(f"{study.entry.label}: {study.failure}; output: {self.log(cell)}")
            return
        assert self.scheduler is not None  # noqa: S101 (made before the first run)
        self.scheduler.add(self._advance(study))

    # ---- after ------------------------------------------------------------------------------
    def _conclude(self) -> int:
        with files.explain_errors(self.folder / "optuna.log"):
            for study in self.studies:
                study.journal()
        entries = [e for study in self.studies
                   if (e := entry_of(study, self.configs[study.entry.label])) is not None]
        failed = {s.entry.label: s.failure or "no trial has a score" for s in self.studies
                  if s.failure or s.best is None}
        write_tuned(self.tuned, {
            "plan": self.plan.content(), "budget": self.budget,
            "digest": identity_digest({k: v for k, v in self.plan.content().items()
                                       if k != "name"}),
            "entries": entries, "failed": failed,
        })
        for label, why in failed.items():
            complain(f"{label}: {why}")
        seconds = sum(trial.seconds for s in self.studies for trial in s.trials)
        say(f"tuning {self.plan.name}: {len(entries)} of {len(self.studies)} methods tuned, "
            f"{plural(self.ran, 'run')} now, {clock(seconds)} of work in all",
            f"the result: {self.tuned}",
            f"sweeps take it: fedvlm sweep PLAN.yaml --tuned {self.tuned}")
        return 1 if failed else 0


def knobs_of(entry: PlanEntry) -> tuple[Knob, ...]:
    """Return what an entry's method declares as its knobs.

    Raises:
        ConfigError: its card names keys that are none.
    """
    trainer, schema = load_schema(entry.name, named=True)
    return read_knobs(fields(card_of(entry.name)).get("Knobs", ""), trainer.name, schema)


def entry_of(study: Study, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a method's part of ``tuned.json``; None without a score.

    Args:
        study: the method's.
        config: of the method's defaults, whose values are named where they won.
    """
    best = study.best
    if best is None or best.score is None or study.failure:
        return None
    entry = study.entry
    trials = [
        {"settings": t.settings, "seconds": round(t.seconds, 3),
         "cells": [cell.digest for cell in t.cells]} | (
            {"score": round(t.score.value, 4), "error": round(t.score.error, 4)}
            | _behind(t.score, best.score) if t.score else {"why": t.why}
        ) for t in study.trials
    ]
    knobs = study.space.knobs if study.space else ()
    values = best.settings if best.number else {k.key: str(config[k.key]) for k in knobs}
    return {
        "label": entry.label, "trainer": entry.name, "settings": dict(entry.settings),
        "values": values, "trial": best.number, "score": round(best.score.value, 4),
        "error": round(best.score.error, 4), "images": best.score.images,
        "space": [str(knob) for knob in knobs],
        "trials": trials,
    }


def _behind(score: TrialScore, best: TrialScore) -> dict[str, float]:
    gap, error = score.behind(best)
    return {"behind": round(gap, 4), "behind_error": round(error, 4)}
