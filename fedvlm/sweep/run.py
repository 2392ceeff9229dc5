"""A sweep at work: what is to do, who is notified, what is printed at the end."""

from __future__ import annotations

import math
import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedvlm.console.grid import Grid, GridCell
from fedvlm.console.rows import clock
from fedvlm.console.screen import say
from fedvlm.core.errors import FedvlmError, plural
from fedvlm.report.collect import Collected, collect
from fedvlm.report.tables.table import Spec, tables
from fedvlm.runs.claim import tidy_finished
from fedvlm.runs.finished import find_finished
from fedvlm.sweep.cells import Cell
from fedvlm.sweep.plan import SweepPlan
from fedvlm.sweep.processes import Processes, deal_devices
from fedvlm.sweep.scheduler import CellWorkers, Scheduler
from fedvlm.sweep.state import (
    BEGUN,
    DONE,
    FAILED,
    QUEUED,
    RUNNING,
    TO_DO,
    CellState,
    Journal,
    Pace,
    states,
)
from fedvlm.sweep.worker import Outcome

COMMAND = ("python", "-m", "fedvlm", "table")


class Sweep:
    """The cells of a plan, or the part of them that ``only`` names, with their states.

    Raises:
        ConfigError: run folders that hold other runs.
    """

    def __init__(
        self, plan: SweepPlan, cells: Sequence[Cell], jobs: int, only: range | None = None
    ) -> None:
        self.plan, self.jobs, self.only = plan, jobs, only
        self.output = cells[0].output
        self.cells = [c for c in cells if only is None or c.number in only]
        self.journal = Journal(self.output, plan.name, None if only is None else only[0])
        self.states: dict[int, CellState] = states(self.cells, self.journal)
        self.pace = Pace()
        self.records = self.journal.records()
        self.pace.learn(self.records, self.cells)
        self.grid: Grid | None = None
        self.matrix: dict[tuple[str, str], GridCell] = {}
        self.waiting: list[Cell] = []
        self.begun = set[str]()  # data sets of cells that are done or were begun here

    # ---- before -----------------------------------------------------------------------------
    def to_do(self, retry: bool) -> list[Cell]:
        """Return the cells to run: not done, not running elsewhere, not failed unless ``retry``."""
        wanted = {TO_DO, BEGUN} | ({FAILED} if retry else set())
        return [c for c in self.cells if self.states[c.number].name in wanted]

    def count(self, state: str) -> int:
        """Return how many cells are in a state."""
        return sum(s.name == state for s in self.states.values())

    def rows(self) -> list[dict[str, Any]]:
        """Return the lines of ``--list``."""
        return [
            {"cell": c.number, "state": self.states[c.number].name, "dataset": c.dataset,
             "method": c.method, "seed": c.seed, "personal": self.states[c.number].value,
             "run folder": str(c.folder), "why": self.states[c.number].sentence or ""}
            for c in self.cells
        ]

    def dry_lines(self, retry: bool) -> list[str]:
        """Return what would be run, with estimates from what has run; nothing is written."""
        todo = self.to_do(retry)
        seconds, unknown = self.pace.left(todo, self.jobs)
        counts = [f"{self.count(s)} {s}" for s in (DONE, RUNNING, FAILED, BEGUN, TO_DO)
                  if self.count(s)]
        time = f"about {clock(seconds)} with {plural(self.jobs, 'job')}" if seconds else ""
        if unknown:
            hint = "unknown" if unknown == len(todo) else f"{unknown} more cells unknown"
            time += f"{', ' if time else ''}{hint} (no similar cell has run yet; --only "
            first = next(c.number for c in todo if self.pace.of(c) is None)
            time += f"{first} runs one)"
        peaks = [r["peak_mib"] for r in self.records if r.get("peak_mib")]
        workers = min(self.jobs, max(1, len(todo)))
        memory = (
            f"about {max(peaks) * workers / 1024:.1f} GiB with {plural(workers, 'worker')} "
            f"({max(peaks) / 1024:.1f} GiB in the largest so far)"
            if peaks else "unknown (no cell has run in this sweep)"
        )
        folders = [f"  {c.number}  {c}" for c in todo]
        return [
            f"sweep    {self.plan.name}: {plural(len(self.cells), 'cell')} ({', '.join(counts)})",
            f"to run   {len(todo)}", f"time     {time or 'nothing to do'}", f"memory   {memory}",
            f"folder   {self.journal.folder}", *folders, "dry run: nothing was written",
        ]

    # ---- running ----------------------------------------------------------------------------
    def run(
        self, threads: int, devices: Sequence[str], *, retry: bool, timeout: float = 0,
        until: float = math.inf,
    ) -> int:
        """Run what is to do; return 0, or 1 where cells have failed (now or before).

        Args:
            devices: see ``deal_devices``.
            until: of ``time.monotonic``; no cell begins then, nor one that should end later.

        Raises:
            ConfigError: a device that is not on this machine.
        """
        todo = self.to_do(retry)
        devices = deal_devices(devices, todo, self.jobs)
        for cell in self.cells:
            if self.states[cell.number].name == DONE:
                tidy_finished(cell.folder)
        self.compute(
            Processes(self.jobs, threads=threads, devices=devices, timeout=timeout), todo,
            f"{len(todo)} to run; {plural(self.jobs, 'job')}, {plural(threads, 'thread')} each"
            + (f", on {', '.join(devices)} in turn" if devices else ""),
            allowed=lambda cell: self.fits(cell, until),
        )
        return self.conclude()

    def fits(self, cell: Cell, until: float) -> bool:
        """Whether a cell may begin now (``run``): it should end by then, judged by similar ones."""
        return time.monotonic() + (self.pace.of(cell) or 0) < until

    def compute(
        self, workers: CellWorkers, todo: Sequence[Cell], words: str, *,
        lying: Sequence[Cell] = (), allowed: Callable[[Cell], bool] = lambda cell: True,
    ) -> None:
        """Run the cells ``todo`` with the screen taken.

        Args:
            words: how they are run, for the first line.
            lying: cells that the workers have already.
            allowed: see ``Scheduler``.
        """
        self.waiting = [*lying, *todo]
        self.begun = {c.dataset for c in self.cells if self.states[c.number].name == DONE}
        for cell in {(c.method, c.dataset): c for c in self.cells}.values():
            self._draw(cell)
        self.grid = Grid(
            f"sweep {self.plan.name}", self.matrix, lambda: self.pace.left(self.waiting, self.jobs)
        )
        self.grid.say(f"sweep {self.plan.name}: {plural(len(self.cells), 'cell')}, "
                      f"{self.count(DONE)} done, {words}")
        self.grid.start()
        try:
            Scheduler(workers, self.journal, self, allowed).run(todo)
        finally:
            self.grid.finish()

    def note(self, cell: Cell, state: CellState) -> None:
        """Note a cell's new state, and show it."""
        if self.states[cell.number] != state:
            self.states[cell.number] = state
            self._draw(cell)

    def _draw(self, cell: Cell) -> None:
        """Count the cells of a cell's row and column anew; what waits again has not failed."""
        place = (cell.method, cell.dataset)
        waiting = {c.number for c in self.waiting}
        here = [c.number for c in self.cells if (c.method, c.dataset) == place]
        states = [self.states[n] for n in here if n not in waiting or self.states[n].name != FAILED]
        count = Counter(state.name for state in states)
        self.matrix[place] = GridCell(
            len(here), count[DONE], count[FAILED], count[RUNNING],
            [state.value for state in states if state.value is not None], count[QUEUED],
        )

    def started(self, cell: Cell) -> None:
        """See ``Watcher``; the first cell of a data set may encode images for minutes."""
        if cell.dataset not in self.begun and self.grid is not None:
            self.grid.say(f"{cell} begins; its images are encoded first, unless they are cached "
                          f"(progress: {self.journal.log(cell)})")
        self.begun.add(cell.dataset)
        self.note(cell, CellState(RUNNING))

    def given_back(self, cell: Cell, words: str) -> None:
        """Say why a cell is not run by this command after all."""
        self.waiting = [c for c in self.waiting if c is not cell]
        self.note(cell, CellState(TO_DO))
        self.tell(f"{cell}: {words}", always=True)

    def tell(self, words: str, *, always: bool = False) -> None:
        """Show a message; the newest stays below the matrix."""
        if self.grid is not None and words:
            self.grid.say(words, always=always)
        if self.grid is not None and not always:
            self.grid.status = words

    def ended(self, cell: Cell, outcome: Outcome) -> None:
        """See ``Watcher``: the run folder says whether the cell is done."""
        self.waiting = [c for c in self.waiting if c is not cell]
        run = find_finished(cell.folder)
        if outcome.code == 0 and run is not None:
            value = run.value("personal")
            self.note(cell, CellState(DONE, value=value))
            self.pace.add(cell.dataset, cell.method, outcome.seconds)
            end = "done" if value is None else f"personal {value:.1f}"
        else:
            reason = outcome.sentence or f"no results in {cell.folder}"
            self.note(cell, CellState(FAILED, reason))
            end = f"failed: {reason}"
        assert self.grid is not None  # noqa: S101 (made before the pool)
        self.grid.say(
            f"{self.count(DONE)}/{len(self.cells)} {cell}: {end} ({outcome.seconds:.1f} s)",
            always=self.states[cell.number].name == FAILED,
        )

    # ---- after ------------------------------------------------------------------------------
    def conclude(self, more: Sequence[str] = ()) -> int:
        """Say what came of it all; return 0, or 1 where cells have failed."""
        failed = [c for c in self.cells if self.states[c.number].name == FAILED]
        running = self.count(RUNNING)
        lines = [f"sweep {self.plan.name}: {self.count(DONE)} of {len(self.cells)} cells done"]
        for sentence in dict.fromkeys(self.states[c.number].sentence for c in failed):
            same = [c for c in failed if self.states[c.number].sentence == sentence]
            lines += [f"failed: {', '.join(map(str, same))}: {sentence}",
                      f"  output: {self.journal.log(same[0])}"]
        if failed:
            lines.append(f"{len(failed)} failed: to run them again, add --retry-failed to the "
                         "same command")
        if running:
            lines.append(f"{running} are running in other processes")
        say(*lines, *more, *table_commands(self.plan, self.output))
        return 1 if failed else 0


def table_commands(plan: SweepPlan, output: Path) -> list[str]:
    """Return the ``fedvlm table`` commands that show a sweep's runs: one, or one per data set.

    One shows all, data sets of other protocols in tables of their own. Where the runs of some data
    set share no table, the others are named one by one. A command is tried before it is named.
    """
    cols = ("dataset", "shots") if len(plan.shots) > 1 else ("dataset",)
    more = ("--cols", *cols) if len(cols) > 1 else ()
    whole = shlex.join([*COMMAND, str(output), *more])
    try:
        runs = collect([output])
    except FedvlmError:
        return []
    if not runs.runs:
        return []
    if _works(runs, Spec(cols=cols)):
        return [f"table of the runs: {whole}"]
    names = sorted({str(run.protocol.get("dataset")) for run in runs.runs})
    good = [n for n in names if _works(runs, Spec(cols=cols, where=(("dataset", n),)))]
    each = [
        shlex.join([*COMMAND, str(output), "--where", f"dataset={name}", *more]) for name in good
    ]
    why = f"the runs of {', '.join(n for n in names if n not in good)} have different protocols"
    return [f"tables of the runs ({why}: see {whole}):", *(f"  {words}" for words in each)]


def _works(runs: Collected, spec: Spec) -> bool:
    try:
        tables(runs, spec)
    except FedvlmError:
        return False
    return True
