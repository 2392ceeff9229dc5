"""In which order the runs of recipes are made, and which of them begin within a budget."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, groupby

import torch

from fedvlm.core.errors import plural
from fedvlm.recipes.outlay import GPU, READERS, few, outlay_of, speed_here, worth
from fedvlm.recipes.trial import Row, Trial
from fedvlm.sweep.cells import Cell
from fedvlm.sweep.run import Sweep

NAMED = 4  # rows that a line names
HOUR = 3600.0


@dataclass(frozen=True)
class PlannedRun:
    """A run that is to be made.

    Attributes:
        hours: that it should take; None where that is not known.
        judged: the hours are those of similar runs, not of the arithmetic.
    """

    trial: Trial
    row: Row
    cell: Cell
    hours: float | None
    judged: bool = False


def worths(trials: Iterable[Trial]) -> dict[int, float]:
    """Return how much an hour of each row can confirm, by the row's id (``outlay.worth``)."""
    return {id(row): worth([row], trial.confirmed(row)) for trial in trials for row in trial.rows
            if not row.why}


def by_worth(trials: Iterable[Trial], value: Mapping[int, float]) -> list[Trial]:
    """Return the recipes, that with the best row first, those that cannot run last.

    Of equal ones the order is as given.
    """
    return sorted(trials, key=lambda trial: -max(
        (value.get(id(row), 0.0) for row in trial.rows if not row.why and row.cells), default=-1.0))


def seeds_of(
    trials: Iterable[Trial], value: Mapping[int, float]
) -> Iterator[list[tuple[Trial, list[Cell]]]]:
    """Yield the runs seed by seed: the first seed of all recipes, then the second of all.

    Args:
        value: of a row, by its id: recipes with the best row come first, and in each the rows by
            their value. Of equal ones the order is the recipes' own.
    """
    trials = by_worth(trials, value)
    place = {id(cell): value.get(id(row), 0.0)
             for trial in trials for row in trial.rows for cell in row.cells}
    for at in range(max((len(t.plan.seeds) for t in trials), default=0)):
        pass_: list[tuple[Trial, list[Cell]]] = []
        for trial in trials:
            seed = trial.plan.seeds[at] if at < len(trial.plan.seeds) else None
            cells = sorted((c for c in trial.runnable if c.seed == seed),
                           key=lambda cell: -place[id(cell)])
            pass_ += [(trial, cells)] if cells else []
        if pass_:
            yield pass_


def turns_of(trials: Sequence[Trial], value: Mapping[int, float], jobs: int) -> list[PlannedRun]:
    """Return what is to be run, in the order in which it is."""
    sweeps = {id(t): Sweep(t.plan, t.runnable, jobs) for t in trials if t.runnable}
    due = {id(cell) for sweep in sweeps.values() for cell in sweep.to_do(retry=True)}
    rows = {id(cell): row for trial in trials for row in trial.rows for cell in row.cells}
    guess = {id(row): _hours(row) for row in rows.values()}
    turns = []
    for at_once in seeds_of(trials, value):
        for trial, cells in at_once:
            for cell in (c for c in cells if id(c) in due):
                row, seconds = rows[id(cell)], sweeps[id(trial)].pace.of(cell)
                hours = guess[id(row)] if seconds is None else seconds / HOUR
                turns.append(PlannedRun(trial, row, cell, hours, seconds is not None))
    return turns


def _hours(row: Row) -> float | None:
    """Return the hours of one run on this machine, by arithmetic; None where nothing is known."""
    outlay = outlay_of([row])
    if outlay is None or not row.cells:
        return None
    gpu = torch.cuda.is_available() and row.job is not None and row.job.cfg.DEVICE != "cpu"
    whole = outlay.hours(GPU, READERS) if gpu else outlay.hours(speed_here())
    return whole / len(row.cells)


def begin_within(turns: Sequence[PlannedRun], budget: float, jobs: int) -> list[bool]:
    """Return of each run whether it should begin within so many hours (``Sweep.fits``)."""
    begins, spent = [], 0.0
    for turn in turns:
        hours = turn.hours or 0.0
        begins.append(spent + (hours if turn.judged else 0.0) < budget)
        spent += hours / jobs if begins[-1] else 0.0
    return begins


def queue_rows(turns: Sequence[PlannedRun], begins: Sequence[bool] = ()) -> list[dict[str, object]]:
    """Return the order as a table, a line for what follows in one recipe and seed.

    Args:
        begins: of each run, whether it should begin within the budget; empty without a budget.
    """
    rows: list[dict[str, object]] = []
    for (_, seed, begun), group in groupby(
            zip(turns, begins or [True] * len(turns), strict=True),
            lambda pair: (id(pair[0].trial), pair[0].cell.seed, pair[1])):
        some = [turn for turn, _ in group]
        names = [f"{turn.row.method} on {turn.row.dataset}" for turn in some]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        rows.append({
            "recipe": some[0].trial.recipe.name, "seed": seed, "runs": len(some),
            "hours": added_hours(some), **({"begins": "yes" if begun else "no"} if begins else {}),
            "which": ", ".join(names[:NAMED]) + more})
    return rows


def budget_name(hours: float) -> str:
    """Return a budget in words."""
    return f"the budget of {hours:g} hour{'' if hours == 1 else 's'}"


def budget_words(
    turns: Sequence[PlannedRun], begins: Sequence[bool], budget: float, jobs: int
) -> str:
    """Return what the hours of a budget should buy."""
    paid = list(compress(turns, begins))
    numbers = sum({id(t.row): t.trial.confirmed(t.row) for t in paid}.values())
    return (f"{budget_name(budget)}: {len(paid)} of {plural(len(turns), 'run')} should "
            f"begin, for {numbers:.0f} published numbers; what has begun is finished, after about "
            f"{added_hours(paid, jobs)} hours")


def added_hours(turns: Sequence[PlannedRun], jobs: int = 1) -> str:
    """Return the hours of runs in words; + marks runs of which nothing is known, ? only such."""
    known = [turn.hours for turn in turns if turn.hours is not None]
    if not known:
        return "?" if turns else "0"
    return few(sum(known) / jobs) + "+" * (len(known) < len(turns))
