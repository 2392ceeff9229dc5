"""What a table says of its methods beside their numbers.

Who lies below a reference of its kind, who is one model under several names, and where the runs'
references disagree.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedvlm.core.stats import mean
from fedvlm.report.tables.facts import REFERENCE_NAMES, RunFacts, references_of
from fedvlm.report.tables.layout import Line, label_of
from fedvlm.report.tables.metrics import metric, value_of

Places = Mapping[tuple[str, str, str], list[RunFacts]]
MOST = 3  # columns named; of more, how many
ROUNDING = 0.05  # points: references of two runs that differ by less are the same


def beaten_by(
    lines: Sequence[Line], columns: Sequence[str], entries: Sequence[RunFacts], places: Places,
    cols: Sequence[str], axes: Sequence[str],
) -> tuple[list[Line], list[str]]:
    """Mark the cells of methods that lie below a reference of their kind.

    A method that sends something is held against the references without collaboration and those
    of one round, one that sends nothing (LocalOnly) against the former. Only numbers of personal
    models are compared, over the seeds that both have.

    Args:
        columns: labels; the averages' may follow.
        places: runs by row, column and metric.

    Returns:
        The rows, and a sentence per row that has such a cell.
    """
    names = {name for _, _, name in places}
    known: dict[tuple[str, str], dict[tuple[str, str], dict[Any, float]]] = {}
    for one in references_of(entries):
        for name in names:
            value = value_of(one, name)
            if value is not None and name.startswith("personal") and not metric(name).lower:
                here = known.setdefault((label_of(one, cols, axes, name), name), {})
                here.setdefault((one.kind, one.reference), {})[one.seeds] = value
    marked, notes = [], []
    for line in lines:
        beaten: dict[str, list[str]] = {}
        cells = list(line.cells)
        for at, column in enumerate(columns[:len(cells)]):
            cell = cells[at]
            runs = places.get((line.label, column, cell.metric), [])
            if not line.method or not runs or not cell.values:
                continue
            kinds = ("alone", "together") if any(e.collaborates for e in runs) else ("alone",)
            best = _best_above(cell.values[0], known.get((column, cell.metric), {}), kinds)
            if best:
                cells[at] = replace(cell, below=True)
                beaten.setdefault(REFERENCE_NAMES.get(best, best), []).append(column)
        marked.append(replace(line, cells=tuple(cells)))
        if beaten:
            notes.append(f"{line.label}: " + " and ".join(
                f"{name} ({', '.join(where) if len(where) <= MOST else f'{len(where)} columns'})"
                for name, where in beaten.items()))
    return marked, notes


def _best_above(
    values: Mapping[Any, float], known: Mapping[tuple[str, str], Mapping[Any, float]],
    kinds: Sequence[str],
) -> str:
    """Return the best reference of some kinds that is above the values; '' for none."""
    above: dict[str, float] = {}
    for (kind, name), numbers in known.items():
        common = [seeds for seeds in values if seeds in numbers]
        if kind in kinds and common:
            margin = mean(numbers[seeds] - values[seeds] for seeds in common)
            if margin is not None and margin > 0:
                above[name] = margin
    return max(above, key=lambda name: above[name]) if above else ""


def coincidences(entries: Sequence[RunFacts], axes: Sequence[str]) -> list[str]:
    """Return a note per group of methods that are right equally often on every client.

    In all their runs, at least one; runs whose results list no clients say nothing.
    """
    rights: dict[str, dict[tuple[str, ...], str]] = {}
    for entry in entries:
        rows = entry.run.last.get("clients")
        if not isinstance(rows, list) or not rows or entry.reference:
            continue
        counts = sorted((r.get("client"), r.get("n"), r.get("correct")) for r in rows
                        if isinstance(r, Mapping))
        keys = ("dataset", "data_digest", *(k for k in axes if k not in ("trainer", "metric")))
        place = tuple(str(entry.fact(key)) for key in keys)
        digest = hashlib.sha256(json.dumps(counts, default=str).encode()).hexdigest()
        name = entry.label("trainer", ())
        rights.setdefault(name, {})[*place, *map(str, entry.seeds)] = digest
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, digests in rights.items():
        groups.setdefault(tuple(sorted(digests.items())), []).append(name)
    return [
        f"the same predictions as far as they are counted (right answers per client, in all "
        f"{len(places)} run{'s' if len(places) > 1 else ''}): {', '.join(names)}"
        for places, names in groups.items() if len(names) > 1
    ]


def disagreements(entries: Sequence[RunFacts], names: Sequence[str]) -> list[str]:
    """Return a note per reference of which two runs of one data set and seed say other numbers."""
    seen: dict[tuple[Any, ...], tuple[float, RunFacts]] = {}
    notes: dict[str, str] = {}
    for entry in entries:
        for name in names if entry.kind else ():
            value = value_of(entry, name)
            if value is None:
                continue
            key = (entry.reference, name, entry.fact("data_digest"), *entry.seeds)
            first, other = seen.setdefault(key, (value, entry))
            if abs(first - value) > ROUNDING:
                notes.setdefault(entry.reference, (
                    f"the runs' references disagree: {name} of {entry.reference} is {first:.2f} in "
                    f"{other.run.path} and {value:.2f} in {entry.run.path}; the former is shown"
                ))
    return list(notes.values())
