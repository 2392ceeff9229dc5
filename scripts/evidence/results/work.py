"""Methods that chose their local work, beside the same methods with local work held equal.

Tables hold it equal, so that who takes more steps is not called better. A lane whose methods had
it searched says what that hides: each of its runs is paired with the run of an earlier lane that
has the same method, data and protocol but for local work and what a method is tuned in.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from scipy.stats import kendalltau

from evidence.results.claims import (
    by_set,
    difference,
    pairs_of,
    place_of,
    seeds_of,
    side_of,
    steps_ratio,
)
from evidence.results.lanes import Lane, bare
from evidence.results.standing import PERSONAL, named
from fedvlm.config.families import NOT_OWN, OWN
from fedvlm.config.federation import WORK, local_work
from fedvlm.config.keys import default_schema
from fedvlm.core.stats import mean
from fedvlm.report.statistics.contrast import Contrast
from fedvlm.report.tables.check import FREE
from fedvlm.runs.finished import FinishedRun

FEWEST = 3  # methods whose order is compared


@dataclass(frozen=True)
class Choice:
    """A method with local work of its choice and with that which its table holds.

    Attributes:
        method: label; held, chosen: local work a round, in words.
        before, after: mean personal accuracy with each, over the same pairs, in percent.
        difference: after minus before; steps: local steps after in times those before.
    """

    method: str
    held: str
    chosen: str
    before: float
    after: float
    difference: Contrast
    steps: float | None

    @property
    def name(self) -> str:
        """The label without what is trained, which the rows of a table share."""
        return bare(self.method)


def choices(lane: Lane, others: Sequence[Lane]) -> list[Choice]:
    """Return the lane's methods that have twins in other lanes, the highest mean first.

    Empty where no method's local work differs from its twins'.
    """
    if len({_work(run) for run in lane.runs}) < 2:
        return []  # all the same, so none chose it
    twins = {_twin(run): run for other in others for run in other.runs}
    pairs: dict[str, list[tuple[FinishedRun, FinishedRun]]] = {}
    for run in lane.runs:
        other = twins.get(_twin(run))
        if other is not None:
            pairs.setdefault(run.method, []).append((other, run))
    rows = [row for method, several in pairs.items() if (row := _choice(method, several))]
    if all(row.held == row.chosen for row in rows):
        return []
    return sorted(rows, key=lambda row: -row.after)


def sentences(rows: Sequence[Choice]) -> list[str]:
    """Return what methods chose, whom it moved and how far their order changed."""
    if not rows:
        return []
    chosen = Counter(row.chosen for row in rows)
    words = ", ".join(f"{work} by {n}" for work, n in sorted(chosen.items()))
    up, down = ([row.name for row in rows if row.difference.apart == sign] for sign in (1, -1))
    out = [f"Tuned local work of {len(rows)} methods: {words}. Compared with the same "
           f"method at fixed local work, significantly better: {len(up)}{named(up, len(up))}; "
           f"significantly worse: {len(down)}{named(down, len(down))}."]
    if len(rows) >= FEWEST:
        order = float(kendalltau([row.before for row in rows], [row.after for row in rows])[0])
        first = max(rows, key=lambda row: row.before)
        out.append(f"Highest mean with fixed local work: {first.name}, {first.before:.1f}; "
                   f"with tuned: {rows[0].name}, {rows[0].after:.1f}. Kendall's tau of the two "
                   f"rankings: {order:.2f} (1: the same ranking).")
    return out


def _twin(run: FinishedRun) -> str:
    """Return what a run shares with its twin: method, seeds, and all of its config but the work."""
    config = {key: value for key, value in run.identity_config().items()
              if key not in (*WORK, *FREE)
              and (key in NOT_OWN or not key.startswith(OWN))}
    return json.dumps([run.method, place_of(run), seeds_of(run), config], sort_keys=True,
                      default=str)


def _choice(method: str, pairs: Sequence[tuple[FinishedRun, FinishedRun]]) -> Choice | None:
    columns = [run for run, _ in pairs], [run for _, run in pairs]
    sides = [side_of(column, PERSONAL) for column in columns]
    both = pairs_of(*(one.numbers for one in sides))
    before, after = (list(by_set(one.numbers, both).values()) for one in sides)
    seen = difference(sides[1], sides[0])
    if seen is None:
        return None
    held, chosen = (", ".join(sorted({_work(run) for run in column})) for column in columns)
    means = [mean(mean(one.values()) for one in each) or 0.0 for each in (before, after)]
    steps = steps_ratio(columns[1], columns[0], both)
    return Choice(method, held, chosen, means[0], means[1], seen, steps)


@cache
def _defaults() -> dict[str, Any]:
    schema = default_schema()
    return {key: schema[key].default for key in WORK}


def _work(run: FinishedRun) -> str:
    return local_work(_defaults() | run.identity_config())
