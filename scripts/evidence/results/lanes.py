"""Lanes of published runs: which rows stand in one table, and how each lane was made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import stdev
from typing import Any

from evidence.results.claims import deal_of, place_of, seeds_of
from fedvlm.config.families import CHOICE, families_in, family_heading
from fedvlm.config.option import Option
from fedvlm.core.errors import ConfigError, fold
from fedvlm.core.stats import mean
from fedvlm.federation.discovery import load_trainer
from fedvlm.report.collect import Collected, as_float
from fedvlm.report.tables.papers import dataset_name
from fedvlm.runs.bits import BITS
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.verify.answer import ANSWER, federation_answer
from fedvlm.runs.verify.beside import gain

OWN = "method-specific parameters"
NOT_TUNED = ", not tuned"


@dataclass(frozen=True)
class Lane:
    """Runs of one protocol.

    Attributes:
        name: as claims call it: the pack's name.
        collected: its runs.
        title: heading; about: what its plan says of it; wanted: how many cells the plans have.
        folders: folder of plans -> names of the methods of its plans for the lane
            (``claims.labels_of``) -> their cells there, (data set, shots, seed).
    """

    name: str
    collected: Collected
    title: str = ""
    about: str = ""
    wanted: int = 0
    folders: Mapping[str, Mapping[str, frozenset[Any]]] = field(default_factory=dict)

    @property
    def planned(self) -> Mapping[str, frozenset[Any]]:
        """The methods of all its plans, by name, with their cells."""
        return join_plans(self.folders.values())

    @property
    def runs(self) -> list[FinishedRun]:
        """Its finished runs."""
        return self.collected.runs

    @property
    def absent(self) -> int:
        """How many planned cells have no run; a run under another tag stands for none of them."""
        names = {fold(name) for name in self.planned}
        there = {(run.method, place_of(run), seeds_of(run)) for run in self.runs
                 if {fold(run.method), fold(bare(run.method))} & names}
        return max(0, self.wanted - len(there))

    def pairs(self, method: str, rival: str) -> int:
        """Return how many pairs its plans have of both; of one, where no plan has the other.

        A pair is a data set and a seed: shots of one are averaged (``claims.by_set``).
        """
        cells = [self.planned.get(name, self.planned.get(bare(name)))
                 for name in (method, rival)]
        there = [one for one in cells if one is not None]
        both = frozenset.intersection(*there) if there else frozenset()
        return len({(dataset, seed) for dataset, _, seed in both})

    def folder_of(self, run: FinishedRun) -> str:
        """Return the folder of plans that a run is of; empty where no plan has it."""
        mine = _data_set(run.protocol.get("dataset")), run.protocol.get("seed")
        for name in (fold(run.method), fold(bare(run.method))):  # a bare name may be another's, too
            for folder, planned in self.folders.items():
                if mine in {(_data_set(dataset), seed) for label, cells in planned.items()
                            if fold(label) == name for dataset, _, seed in cells}:
                    return folder
        return ""

    def only(self, runs: Sequence[FinishedRun]) -> Collected:
        """Return what was collected, cut to some of the runs."""
        return replace(self.collected, runs=list(runs))


def share_baselines(groups: Sequence[Sequence[FinishedRun]]) -> list[list[FinishedRun]]:
    """Return the runs with the baselines of each made whole, and its gain with them.

    A baseline is computed from images, clients and seeds (``claims.deal_of``), so all runs of these
    have the same: those of the run that knows the most, of equals those with a bit per image. A
    run with fewer was made before the others came; its AFL, too, is that run's. The cells stay as
    they are.
    """
    def known(found: Mapping[str, Any]) -> tuple[int, int]:
        return len(found), sum(BITS in one for one in found.values())

    most: dict[Any, Mapping[str, Any]] = {}
    for run in (run for runs in groups for run in runs):
        found = run.section("references")
        if known(found) > known(most.get(deal_of(run), {})):
            most[deal_of(run)] = found
    return [[_with_baselines(run, most[deal_of(run)]) if run.section("references") else run
             for run in runs] for runs in groups]


def _with_baselines(run: FinishedRun, found: Mapping[str, Any]) -> FinishedRun:
    results = {**run.results, "references": found}
    made = {"gain": gain(as_float(run.last.get("personal")), found),
            ANSWER: federation_answer(results)}
    return replace(run, results=results | {k: v for k, v in made.items() if k in run.results})


def join_plans(
    plans: Iterable[Mapping[str, frozenset[Any]]]
) -> dict[str, frozenset[Any]]:
    """Return the cells of several plans' methods, by name."""
    joined: dict[str, frozenset[Any]] = {}
    for planned in plans:
        for name, cells in planned.items():
            joined[name] = joined.get(name, frozenset()) | cells
    return joined


def bare(method: str) -> str:
    """Return a label without what the method trains."""
    head, _, rest = method.partition(" [")
    return head + rest.partition("]")[2]


def trained(run: FinishedRun, card: str) -> tuple[str, ...]:
    """Return the families of what a run trains: what may be compared trains the same.

    A method that has no choice of it is asked by its card's names of tensors; () where that names
    none.
    """
    peft = str(run.protocol.get("peft", ""))
    if peft:
        return tuple(peft.split("+"))
    parts = families_in(card)
    return () if parts == (CHOICE,) else parts


def groups(
    lane: Lane, cards: Callable[[str], str], untuned: Collection[str] = ()
) -> dict[str, list[FinishedRun]]:
    """Return a lane's runs by what they train, in words; those that do not say it together.

    Args:
        untuned: digests of runs that are in no ranking; they come last, by what they train.
    """
    by_parts: dict[str, list[FinishedRun]] = {}
    for run in sorted(lane.runs, key=lambda run: run.digest in untuned):
        parts = trained(run, cards(str(run.protocol["trainer"])))
        words = family_heading(parts) or OWN
        title = f"{words}{NOT_TUNED}" if run.digest in untuned else words
        by_parts.setdefault(title, []).append(run)
    return by_parts


def case_rows(
    lane: Lane, cards: Callable[[str], str], untuned: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return a row for each method, what it trains and data set: means over seeds (``CASE``).

    Args:
        untuned: as of ``groups``.
    """
    rows = []
    for title, runs in groups(lane, cards, untuned).items():
        cells: dict[tuple[Any, ...], list[FinishedRun]] = {}
        for run in runs:
            cells.setdefault((run.method, place_of(run)), []).append(run)
        for (method, (dataset, shots, subsample)), each in cells.items():
            values = [one for run in each if (one := run.value("personal")) is not None]
            rows.append({
                "setting": lane.name, "set": dataset_name(dataset), "classes": subsample,
                "shots": "all" if shots == -1 else shots, "trained": title.removesuffix(NOT_TUNED),
                "tuned": "" if title == OWN else "no" if title.endswith(NOT_TUNED) else "yes",
                "method": bare(method), "seeds": len({seeds_of(run) for run in each}),
                "personal": _told(values), "sd": _told([stdev(values)]) if values[1:] else "",
                **{name: _told([one for run in each if (one := read(run)) is not None])
                   for name, read in _OF_RUN.items()}})
    return rows


def _told(values: Sequence[float]) -> str:
    """Return the mean as a table shows it; empty of none."""
    return f"{mean(list(values)):.2f}" if values else ""


def _answer(run: FinishedRun, *names: str) -> float | None:
    """Return a number of what a run says of federation."""
    found: Any = run.section(ANSWER)
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return as_float(found)


# Column of ``case_rows`` -> its number in a run.
_OF_RUN: Mapping[str, Callable[[FinishedRun], float | None]] = {
    "gain": lambda run: _answer(run, "points"),
    "alone": lambda run: _answer(run, "alone", "personal"),
    "pooled": lambda run: _answer(run, "pooled", "personal"),
    "balanced": lambda run: run.value("personal_balanced"),
    "worst": lambda run: run.value("personal_worst"),
    "new": lambda run: run.value("new"),
    "MB": lambda run: None if (sent := as_float(run.totals().get("bytes_up"))) is None
    else sent / 1e6,
    "seconds": lambda run: run.seconds,
}
CASE = ("setting", "set", "classes", "shots", "trained", "tuned", "method", "seeds", "personal",
        "sd", *_OF_RUN)


def ranked(title: str) -> bool:
    """Return whether the runs below a heading of ``groups`` are compared."""
    return title != OWN and not title.endswith(NOT_TUNED)


def protocol_rows(lane: Lane) -> list[dict[str, Any]]:
    """Return a row per data set: images, clients, rounds, steps, seeds, cells, seconds."""
    places: dict[tuple[Any, ...], list[FinishedRun]] = {}
    for run in lane.runs:
        places.setdefault(place_of(run), []).append(run)
    rows = []
    for (dataset, shots, subsample), runs in sorted(places.items(), key=lambda kv: str(kv[0])):
        config = runs[0].identity_config()
        rows.append({
            "dataset": dataset_name(dataset), "classes": subsample,
            "shots": "all" if shots == -1 else shots,
            "clients": config.get("FED.CLIENTS"), "share": config.get("FED.FRAC", 1.0),
            "rounds": _span(r.protocol.get("rounds") for r in runs),
            "steps": _span(r.totals().get("local_steps") for r in runs),
            "seeds": len({r.protocol.get("data_seed") for r in runs}), "cells": len(runs),
            "tests": mean([float(sum(c["n"] for c in r.last.get("clients", ()))) for r in runs]),
            "seconds": sum(run.seconds for run in runs),
        })
    return rows


def spent_by_folder(lanes: Sequence[Lane]) -> list[tuple[str, int, float]]:
    """Return (folder of plans, its runs, hours of their wall time), where there are several."""
    spent: dict[str, list[float]] = {}
    for lane in lanes:
        for run in lane.runs:
            spent.setdefault(lane.folder_of(run), []).append(run.seconds)
    several = [(name, len(each), sum(each) / 3600) for name, each in sorted(spent.items()) if name]
    return several if len(several) > 1 else []


def below(
    runs: Sequence[FinishedRun], reference: str, metric: str = "personal"
) -> tuple[list[str], int]:
    """Return the methods whose mean over data sets and seeds is below a reference's, of how many.

    Only where a run has that reference; the reference is the one of the same run. Of a number
    that references lack (``new``) it is that of the run's section of the same name.
    """
    gaps: dict[str, list[float]] = {}
    for run in runs:
        numbers: Mapping[str, Any] = run.section("references").get(reference) or {}
        own = run.value(metric)
        theirs = as_float(numbers.get(metric, run.section(reference).get(metric)))
        if own is not None and theirs is not None:
            gaps.setdefault(run.method, []).append(own - theirs)
    names = sorted(name for name, gap in gaps.items() if (mean(gap) or 0.0) < 0)
    return names, len(gaps)


def _data_set(name: Any) -> str:
    """Return what all spellings of a data set's name have in common."""
    return fold(dataset_name(name))


def _span(values: Any) -> str:
    numbers = sorted({int(v) for v in values if v is not None})
    if not numbers:
        return "-"
    return f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"


def seeds_each(lanes: Sequence[Lane]) -> tuple[int, int]:
    """Return the fewest and the most seeds that a method has on a data set of a lane."""
    several: dict[tuple[Any, ...], set[Any]] = {}
    for lane in lanes:
        for run in lane.runs:
            several.setdefault((lane.name, run.method, place_of(run)), set()).add(seeds_of(run))
    counts = [len(seeds) for seeds in several.values()]
    return min(counts, default=0), max(counts, default=0)


def former_defaults(runs: Sequence[FinishedRun]) -> list[str]:
    """Return whose runs have what an option meant before it came, and not today's default.

    A line for each method and option: such runs give other numbers than a run of today.
    """
    seen: Counter[tuple[str, str, str, str]] = Counter()
    for run in runs:
        name = str(run.protocol["trainer"])
        config = run.identity_config()
        for key, option in _later_options(name).items():
            if f"TRAINER.{name.upper()}.{key}" not in config:
                seen[run.method, key, str(option.neutral), str(option.default)] += 1
    return [f"{method}: {count} runs are of {key} {before}, from before that option; its default "
            f"is {now}, so a new run can have other numbers."
            for (method, key, before, now), count in sorted(seen.items())]


@cache
def _later_options(trainer: str) -> dict[str, Option]:
    try:
        options = load_trainer(trainer).options
    except ConfigError:  # a method that is gone, or another's
        return {}
    return {key: option for key, option in options.items()
            if option.neutral is not None and option.neutral != option.default}
