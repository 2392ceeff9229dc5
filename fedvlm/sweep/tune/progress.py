"""What a tuning spent and how sure its scores are, from ``tuned.json`` and ``runs.jsonl``.

Compute is what was spent: every run counts once, those of dropped trials and of trials that failed
too. A point that was tried before costs nothing the second time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedvlm.core.errors import DataError
from fedvlm.federation.cards import card_of
from fedvlm.report.tables.papers import paper_of
from fedvlm.sweep.tune.records import TrialScore, pool_scores

CLEAR = 2.0  # standard errors within which a trial cannot be told from the best
RunLine = Mapping[str, Any]  # of ``runs.jsonl``


@dataclass(frozen=True)
class TrialPoint:
    """A method's search after one more trial.

    Attributes:
        trial: its number, from 0.
        score, error: its own, percent; None for a trial without a score.
        best, best_error: of the best trial so far; None before the first score.
        steps, cpu, seconds: local steps, processor seconds and wall seconds spent so far, on all
            trials.
        why: it has no score.
    """

    trial: int
    score: float | None
    error: float | None
    best: float | None
    best_error: float | None
    steps: int
    cpu: float
    seconds: float
    why: str = ""


@dataclass(frozen=True)
class Noise:
    """How far a method's scores could be off; percent, None where runs do not tell.

    Attributes:
        clients: standard error of the best score, clients of runs being the units.
        seeds: standard error of the best score over seeds (other images and another start).
        repeat: standard error of a score when trials are compared: what is left of the scores of
            (trial, seed) after a mean of each trial and of each seed, over all complete trials.
            What the same trial would differ by if it were repeated with other seeds.
        alike: trials that cannot be told from the best (paired, two standard errors), itself too.
    """

    clients: float | None
    seeds: float | None
    repeat: float | None
    alike: int


@dataclass(frozen=True)
class SearchProgress:
    """A method's search.

    Attributes:
        label: of the plan's entry.
        points: trial by trial.
        noise: of its scores.
        first: score of the method's defaults; None where it has none.
        gain: points that the best is above it, and their paired standard error.
        runs: how many there were.
        family: of methods, by its card (``report.tables.papers``).
    """

    label: str
    points: tuple[TrialPoint, ...]
    noise: Noise
    first: float | None
    gain: tuple[float, float] | None
    runs: int
    family: str = ""

    @property
    def counts(self) -> tuple[int, int, int]:
        """Trials with a score, dropped ones, failed ones."""
        scored = sum(point.score is not None for point in self.points)
        dropped = sum(point.why.startswith("dropped ") for point in self.points)
        return scored, dropped, len(self.points) - scored - dropped


def progress_of(record: Mapping[str, Any], lines: Iterable[RunLine]) -> list[SearchProgress]:
    """Return the search of every method that was tuned."""
    if not all("cells" in trial for entry in record["entries"] for trial in entry["trials"]):
        raise DataError("tuned.json is from an older version without run names; repeat the "
                        "same fedvlm tune command to rewrite it (no run is repeated)")
    by_config: dict[str, RunLine] = {str(line["config"]): line for line in lines}
    return [_progress(entry, by_config) for entry in record["entries"]]


def _progress(entry: Mapping[str, Any], by_config: Mapping[str, RunLine]) -> SearchProgress:
    points, runs = list[TrialPoint](), 0
    best: float | None = None
    best_error: float | None = None
    steps, cpu, seconds = 0, 0.0, 0.0
    table: dict[int, dict[int, float]] = {}
    spent = set[str]()
    for number, trial in enumerate(entry["trials"]):
        lines = [by_config[digest] for digest in trial["cells"] if digest in by_config]
        new = [line for line in lines if line["config"] not in spent]
        spent |= {str(line["config"]) for line in new}
        runs += len(new)
        steps += sum(int(line.get("steps", 0)) for line in new)
        cpu += sum(float(line.get("cpu", 0.0)) for line in new)
        seconds += sum(float(line["seconds"]) for line in new)
        score, error = trial.get("score"), trial.get("error")
        if score is not None:
            if best is None or score > best:
                best, best_error = score, error
            table[number] = seed_scores(lines)
        points.append(TrialPoint(number, score, error, best, best_error, steps, round(cpu, 3),
                            round(seconds, 3), str(trial.get("why", ""))))
    first = entry["trials"][0]
    gain = None if "score" not in first else (first["behind"], first["behind_error"])
    noise = Noise(
        _number(entry["error"]), seed_error(table.get(entry["trial"], {})),
        repeat_error(list(table.values())),
        sum(t["behind"] <= CLEAR * t["behind_error"] for t in entry["trials"] if "score" in t),
    )
    trainer = str(entry["trainer"])
    return SearchProgress(entry["label"], tuple(points), noise, first.get("score"), gain, runs,
                    paper_of(card_of(trainer), trainer).group)


def seed_scores(lines: Iterable[RunLine]) -> dict[int, float]:
    """Return the score of each seed of a trial, over its sets."""
    by_seed: dict[int, list[RunLine]] = {}
    for line in lines:
        if "clients" in line:
            by_seed.setdefault(int(line["seed"]), []).append(line)
    scores: dict[int, TrialScore] = {seed: pool_scores(each) for seed, each in by_seed.items()}
    return {seed: score.value for seed, score in scores.items()}


def seed_error(scores: Mapping[int, float]) -> float | None:
    """Return the standard error of a mean over seeds."""
    if len(scores) < 2:
        return None
    return statistics.stdev(scores.values()) / math.sqrt(len(scores))


def repeat_error(table: Sequence[Mapping[int, float]]) -> float | None:
    """Return the standard error of a trial's score without what its seeds have in common.

    The residual of a two-way table (trial, seed) with one number in each cell, as in an analysis of
    variance: sum of squares over (trials - 1)(seeds - 1), divided by the seeds of a score.

    Args:
        table: scores by seed, of each complete trial; those that lack a seed are left out.
    """
    seeds = sorted({seed for row in table for seed in row})
    rows = [[row[seed] for seed in seeds] for row in table if len(row) == len(seeds)]
    if len(rows) < 2 or len(seeds) < 2:
        return None
    whole = statistics.fmean(value for row in rows for value in row)
    columns = [statistics.fmean(column) - whole for column in zip(*rows, strict=True)]
    squares = math.fsum(
        (value - statistics.fmean(row) - column) ** 2
        for row in rows for value, column in zip(row, columns, strict=True)
    )
    freedom = (len(rows) - 1) * (len(seeds) - 1)
    return math.sqrt(squares / freedom / len(seeds))


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
