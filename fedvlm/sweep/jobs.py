"""Workers that are jobs of a batch system: submitted, watched, and never submitted twice.

``submitted.jsonl`` in the sweep's folder says which cells lie in which job, so that the same
command finds its jobs again. Before a submission it says what is meant, under a mark that the jobs'
name bears: whoever was killed before the ids were written finds them by it. What became of a cell
its run folder and the journal say, as ever.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedvlm.core import files
from fedvlm.core.errors import FedvlmError
from fedvlm.core.signals import delay_stops, saying, shield_children
from fedvlm.runs.manifest import now
from fedvlm.runs.metrics import read_metrics
from fedvlm.sweep.cells import Cell
from fedvlm.sweep.queue import PENDING, RUNNING, JobQueue, Resources
from fedvlm.sweep.run import Sweep
from fedvlm.sweep.scheduler import AttemptLog, Ending, Watcher
from fedvlm.sweep.state import FAILED, QUEUED, CellState
from fedvlm.sweep.state import RUNNING as HELD
from fedvlm.sweep.task import Task, is_done
from fedvlm.sweep.worker import INTERRUPTED, Outcome

POLL = {"slurm": 15.0, "local": 1.0}  # seconds between two looks
SURE = 2  # looks without a job until it counts as ended: files of a node come late
HINTS = {
    "reached its time limit too often": "raise --slurm-time or --slurm-requeues",
    "TIMEOUT": "raise --slurm-time", "OUT_OF_MEMORY": "raise --slurm-mem",
}
RETURNED = ("CANCELLED", "NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED")  # nobody's mistake

Key = tuple[str, str]  # a cell in journals: run folder, digest of its config


@dataclass
class Submission:
    """A job and the cells that lie in it."""

    job: str
    cells: list[Cell]
    state: str = PENDING
    missing: int = 0


@dataclass
class QueuedJobs:
    """The jobs of a sweep's cells in a queue (``scheduler.CellWorkers``).

    Args:
        chunk: cells of a job.
        threads: of its worker; 0: as many as it has processors.
        timeout: of a cell, see ``Task``.
        poll: seconds between two looks; None: the queue's own.
    """

    sweep: Sweep
    queue: JobQueue
    resources: Resources
    chunk: int = 1
    threads: int = 0
    timeout: float = 0
    poll: float | None = None
    live: list[Submission] = field(default_factory=list)
    returned: int = 0
    _found: int = 0  # jobs of submissions that were cut off
    _shown: bool = False
    _looks: int = 0
    _before: dict[Key, dict[str, Any]] = field(default_factory=dict)
    _summary: str = ""

    @property
    def path(self) -> Path:
        """What was submitted, a line per job."""
        return self.sweep.journal.folder / "submitted.jsonl"

    @property
    def busy(self) -> bool:
        """Whether a job has a cell that has not ended."""
        return bool(self.live)

    # ---- the whole --------------------------------------------------------------------------
    def run(self, retry: bool) -> int:
        """Submit what is to do and watch it to its end; return 0, or 1 where cells are not done.

        Raises:
            KeyboardInterrupt: jobs of a queue that stays go on; others are ended.
        """
        sweep, rest = self.sweep, self.find(retry)
        count = -(-len(rest) // self.chunk)
        usual = len(self.live) + count if self.queue.stays else 1
        sweep.jobs = max(1, self.resources.at_once or usual)
        lying = [cell for submission in self.live for cell in submission.cells]
        words = f"{len(rest)} to run in {count} {self.queue.name} job{'s' * (count != 1)}" + (
            f", {len(self.live)} jobs are in the queue already" if self.live else "")
        try:
            sweep.compute(self, rest, words, lying=lying)
        except KeyboardInterrupt as stop:
            raise saying(stop, self._last_words()) from None
        lost = f"{self.returned} returned by the queue: the same command submits them again"
        return max(sweep.conclude([lost] if self.returned else []), int(self.returned > 0))

    def find(self, retry: bool) -> list[Cell]:
        """Return the cells to submit; jobs of an earlier command that are still there are live.

        Raises:
            FedvlmError: the queue does not answer.
        """
        self._before = self.sweep.journal.last()
        earlier = self._earlier()
        states = self.queue.states() if earlier else {}
        if states is None:
            raise self._silent()
        todo = self.sweep.to_do(retry)
        # ``RUNNING`` files of nodes that died stay: the queue knows better
        todo += [c for c in self.sweep.cells
                 if self.sweep.states[c.number].name == HELD and _key(c) in earlier]
        lying: dict[str, list[Cell]] = {}
        rest: list[Cell] = []
        for cell in sorted(todo, key=lambda c: c.number):
            job, when = earlier.get(_key(cell), ("", ""))
            lies = job in states and not self._failed_since(cell, when)
            (lying.setdefault(job, []) if lies else rest).append(cell)
        self.live = [Submission(job, cells) for job, cells in lying.items()]
        return rest

    def _failed_since(self, cell: Cell, submitted: str) -> bool:
        """Say whether a cell has failed in its job, which goes on with others of its chunk."""
        attempt = self._before.get(_key(cell), {})
        failed = self.sweep.states[cell.number].name == FAILED
        return failed and str(attempt.get("ended", "")) > submitted

    def _earlier(self) -> dict[Key, tuple[str, str]]:
        """Return cell -> the job that it was last submitted in, of this kind of queue, and when."""
        files.end_line(self.path)
        rows = read_metrics(self.path)[0] if self.path.exists() and self.queue.stays else []
        rows = [row for row in rows if row.get("launch") == self.queue.name]
        lines = Counter(row["mark"] for row in rows if "mark" in row and "tasks" not in row)
        over = {row["mark"] for row in rows if row.get("over")}
        for row in [row for row in rows if "tasks" in row and row["mark"] not in over]:
            if lines[row["mark"]] < len(row["tasks"]):
                rows += self._recover(row)
        return {
            (name, digest): (str(row["job"]), str(row["submitted"]))
            for row in rows for name, digest in row.get("cells", ())
        }

    def _recover(self, intent: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Write down the jobs of a submission that ended before it did so; return the lines.

        Raises:
            FedvlmError: the queue does not answer.
        """
        jobs = self.queue.marked(intent["mark"])
        if jobs is None:
            raise self._silent()
        rows = [
            self._line(job, intent["mark"], intent["submitted"], intent["tasks"][at])
            for at, job in sorted(jobs.items())
        ]
        over = {"mark": intent["mark"], "launch": self.queue.name, "over": True}
        files.append_line(self.path, "\n".join(map(json.dumps, [*rows, over])))
        self._found += len(jobs)
        return rows

    def _line(self, job: str, mark: str, when: str, cells: Sequence[Key]) -> dict[str, Any]:
        return {
            "job": job, "launch": self.queue.name, "submitted": when, "mark": mark,
            "cells": list(cells),
        }

    def _silent(self) -> FedvlmError:
        return FedvlmError(
            f"{self.queue.name} cannot list the jobs of {self.path} (squeue failed): "
            "try again later, or two jobs may run the same cell"
        )

    def give(self, left: list[Cell], log: AttemptLog, watcher: Watcher) -> None:
        """Submit as many jobs as may be in the queue."""
        if not self._shown:
            self._show(left)
        jobs = -(-len(left) // self.chunk)
        if not self.queue.stays:  # nothing else holds them back
            jobs = max(0, (self.resources.at_once or 1) - len(self.live))
        cells, left[:] = left[: jobs * self.chunk], left[jobs * self.chunk :]
        if cells:
            self._submit([Submission("", cells[i : i + self.chunk])
                          for i in range(0, len(cells), self.chunk)])

    def _show(self, left: Sequence[Cell]) -> None:
        """Show what is in the queue, and what waits to be."""
        self._shown = True
        if self._found:
            self.sweep.tell(
                f"{self._found} jobs of an interrupted submission were found in the queue"
            )
        for cell in (*(cell for s in self.live for cell in s.cells), *left):
            self.sweep.note(cell, CellState(QUEUED))

    def _submit(self, chosen: list[Submission]) -> None:
        sweep = self.sweep
        tasks = [
            Task(sweep.plan.name, sweep.output.absolute(), tuple(s.cells),
                 self.threads or self.resources.cpus, self.timeout)
            for s in chosen
        ]
        mark, when = secrets.token_hex(4), now()
        with delay_stops():  # a job that nobody wrote down would be submitted again
            if self.queue.stays:
                files.append_line(self.path, json.dumps({
                    "mark": mark, "launch": self.queue.name, "submitted": when,
                    "tasks": [[_key(cell) for cell in s.cells] for s in chosen],
                }))
            # Ctrl-C would end sbatch, too, of which nobody could say then what it did
            with shield_children() if self.queue.stays else contextlib.nullcontext():
                ids = self.queue.submit(tasks, mark)
            for submission, job in zip(chosen, ids, strict=True):
                submission.job = job
            self.live += chosen
            files.append_line(self.path, "\n".join(json.dumps(
                self._line(s.job, mark, now(), [_key(cell) for cell in s.cells])
            ) for s in chosen))

    def stop(self) -> None:
        """End the jobs; those of a queue that stays go on."""
        if not self.queue.stays:
            self.queue.cancel([s.job for s in self.live])

    def close(self) -> None:
        """Jobs need no farewell."""

    def _last_words(self) -> str:
        if not self.queue.stays:
            return "finished cells and rounds are saved; the same command resumes"
        ids = [s.job for s in self.live]
        heads = sorted({job.partition("_")[0] for job in ids})
        return (
            f"{len(ids)} jobs stay in the queue: the same command watches them again, "
            f"scancel {' '.join(heads)} cancels them"
        )

    # ---- one look ---------------------------------------------------------------------------
    def look(self) -> Iterator[Ending]:
        """Look once at the queue, then at what is written; a job is believed gone at the second."""
        if self._looks:
            time.sleep(POLL[self.queue.name] if self.poll is None else self.poll)
        self._looks += 1
        states = self.queue.states()
        last = self.sweep.journal.last()
        for submission in self.live:
            if states is not None:
                state = states.get(submission.job)
                submission.missing = 0 if state else submission.missing + 1
                submission.state = state or submission.state
            for cell in list(submission.cells):
                attempt = last.get(_key(cell))
                if attempt is None or attempt == self._before.get(_key(cell)):
                    continue
                self._before[_key(cell)] = attempt
                if attempt["code"] != INTERRUPTED:
                    yield self._ending(submission, cell, _outcome(attempt), written=True)
            if submission.missing >= SURE:
                for cell in list(submission.cells):
                    yield from self._lost(submission, cell)
            for at, cell in enumerate(submission.cells):
                runs = at == 0 and submission.state == RUNNING
                self.sweep.note(cell, CellState(HELD if runs else QUEUED))
        self.live = [s for s in self.live if s.cells]
        self._say(states)

    def _ending(
        self, submission: Submission, cell: Cell, outcome: Outcome, *, written: bool
    ) -> Ending:
        submission.cells.remove(cell)
        return Ending(cell, outcome, written)

    def _lost(self, submission: Submission, cell: Cell) -> Iterator[Ending]:
        """End a cell whose job is gone without a word about it."""
        if is_done(cell):
            yield self._ending(submission, cell, Outcome(0, "", 0.0), written=True)
            return
        end = self.queue.end_of(submission.job)
        words = f"its {self.queue.name} job {submission.job} ended: {end}"
        if end.startswith(RETURNED):
            submission.cells.remove(cell)
            self.sweep.given_back(cell, words)
            self.returned += 1
            return
        hint = next((hint for word, hint in HINTS.items() if word in end), "")
        outcome = Outcome(1, f"{words}{f' ({hint})' if hint else ''}", 0.0)
        yield self._ending(submission, cell, outcome, written=False)

    def _say(self, states: dict[str, str] | None) -> None:
        """Show what the queue says of the jobs, when that changes."""
        counts = Counter(s.state.lower() for s in self.live)
        summary = ", ".join(f"{n} {state}" for state, n in sorted(counts.items()))
        summary = f"{self.queue.name} jobs: {summary}" if summary else ""
        if states is None:
            summary = f"{self.queue.name} does not answer; the jobs continue"
        if summary != self._summary:
            self._summary = summary
            self.sweep.tell(summary)


def _key(cell: Cell) -> Key:
    return cell.key, cell.digest


def _outcome(attempt: dict[str, Any]) -> Outcome:
    return Outcome(
        int(attempt["code"]), str(attempt.get("sentence", "")), float(attempt["seconds"]),
        attempt.get("peak_mib"),
    )

