"""What a table says of its methods beside their numbers.

Who lies below a reference of its kind, who is one model under several names, and where the runs'
references disagree.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedvlm.config.families import OWN
from fedvlm.core.stats import mean
from fedvlm.report.tables.check import OF_METHOD, RULE
from fedvlm.report.tables.facts import METRIC, UNSEEN, RunFacts, references_of
from fedvlm.report.tables.layout import Places, TableRow
from fedvlm.report.tables.metrics import metric, metric_value
from fedvlm.runs.verify.answer import baseline_name

Levels = Mapping[tuple[Any, ...], Mapping[tuple[str, str], float]]  # -> (kind, name) -> number
Pair = tuple[float, Mapping[tuple[str, str], float]]  # a value and the references beside it
MOST = 3  # columns named; of more, how many
ROUNDING = 0.05  # points: references of two runs that differ by less are the same
EXACT = 1e-9  # points; less is rounding
# Facts that change what a reference is fitted on, or counted on.
GROUND = (
    "dataset", "data_digest", "setting", "subsample", "shots", "partition", "backbone", "weights",
    "backbone_digest", "cohort", "unseen_clients", "images", "transform", "DATASET.TEMPLATE",
    "DATASET.TEMPLATES", "TEST.SPLIT",
)


def beaten_by(
    lines: Sequence[TableRow], columns: Sequence[str], entries: Sequence[RunFacts], places: Places,
    axes: Sequence[str],
) -> tuple[list[TableRow], list[str]]:
    """Mark the cells of methods that lie below a reference of their kind.

    A method that sends something is held against the references without collaboration and those
    of one round, one that sends nothing (LocalOnly) against the former. Only numbers of personal
    models are compared, over the seeds that both have, and only with references of the same data,
    backbone and settings (``_ground``); an average where each of its data sets has the reference.

    Args:
        columns: labels; the averages' may follow.
        places: runs by row, column and metric.

    Returns:
        The rows, and a note per row that has such a cell.
    """
    levels = _levels(entries, {name for _, _, name in places}, axes)
    marked, notes = [], []
    for line in lines:
        beaten: dict[str, list[str]] = {}
        cells = list(line.cells)
        for at, column in enumerate(columns[:len(cells)]):
            cell = cells[at]
            if not cell.values:
                continue
            runs = [[e for e in places.get((*key, cell.metric), ()) if not e.reference]
                    for key in _keys(lines, columns, line, at)]
            pairs = [
                [(values[e.seeds], levels.get((cell.metric, e.seeds, _ground(e, axes)), {}))
                 for e in here if e.seeds in values]
                for here, values in zip(runs, cell.values, strict=True)
            ]
            sends = any(e.collaborates for here in runs for e in here)
            best = _best_above(pairs, ("alone", "together") if sends else ("alone",))
            if best:
                cells[at] = replace(cell, below=True)
                beaten.setdefault(baseline_name(best), []).append(column)
        marked.append(replace(line, cells=tuple(cells)))
        if beaten:
            notes.append(f"{line.label}: " + " and ".join(
                f"{name} ({', '.join(where) if len(where) <= MOST else f'{len(where)} columns'})"
                for name, where in beaten.items()))
    return marked, notes


def _ground(entry: RunFacts, axes: Sequence[str]) -> tuple[str, ...]:
    """Return what a reference's numbers hang on beside the seeds; runs that agree share them.

    An axis counts too, unless it is the method's own: it may change the data or the backbone.
    """
    own = [key for key in axes if key in (*OF_METHOD, METRIC) or key.startswith((*OWN, *RULE))]
    keys = dict.fromkeys((*GROUND, *(key for key in axes if key not in own)))
    return tuple(f"{key}={entry.fact(key)}" for key in sorted(keys))


def _levels(entries: Sequence[RunFacts], names: Iterable[str], axes: Sequence[str]) -> Levels:
    """Return the references' numbers of personal models, of metrics where more is better."""
    levels: dict[tuple[Any, ...], dict[tuple[str, str], float]] = {}
    wanted = [name for name in names if (name.startswith("personal") or name in UNSEEN)
              and not metric(name).lower]
    for one in references_of(entries):
        ground = _ground(one, axes)
        for name in wanted:
            value = metric_value(one, name)
            if value is not None:
                here = levels.setdefault((name, one.seeds, ground), {})
                here.setdefault((one.kind, one.reference), value)
    return levels


def _keys(
    lines: Sequence[TableRow], columns: Sequence[str], line: TableRow, at: int
) -> list[tuple[str, str]]:
    """Return row and column of a cell, or of all cells that it is the average of."""
    if not line.cells[at].average:
        return [(line.label, columns[at])]
    row = [(line.label, column) for column, cell in zip(columns, line.cells, strict=False)
           if not cell.average]
    return row or [(one.label, columns[at]) for one in lines if not one.cells[at].average]


def _best_above(sets: Sequence[Sequence[Pair]], kinds: Sequence[str]) -> str:
    """Return the best reference of some kinds that is above the values; '' for none.

    Args:
        sets: per data set and seed the value and its references.
    """
    above: dict[str, float] = {}
    names = dict.fromkeys(key for pairs in sets for _, level in pairs for key in level)
    for key in names:
        margins = [[level[key] - value for value, level in pairs if key in level]
                   for pairs in sets]
        if key[0] in kinds and all(margins):
            margin = mean(mean(one) for one in margins)
            if margin is not None and margin > EXACT:
                above[key[1]] = margin
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
        f"equal predictions as far as recorded (correct answers per client, in all "
        f"{len(places)} run{'s' if len(places) > 1 else ''}): {', '.join(names)}"
        for places, names in groups.items() if len(names) > 1
    ]


def reference_notes(
    entries: Sequence[RunFacts], names: Sequence[str], axes: Sequence[str]
) -> list[str]:
    """Return a note per reference of which two runs of one ground and seed say other numbers."""
    seen: dict[tuple[Any, ...], tuple[float, RunFacts]] = {}
    notes: dict[str, str] = {}
    for entry in entries:
        for name in names if entry.kind else ():
            value = metric_value(entry, name)
            if value is None:
                continue
            key = (entry.reference, name, entry.seeds, _ground(entry, axes))
            first, other = seen.setdefault(key, (value, entry))
            if abs(first - value) > ROUNDING:
                notes.setdefault(entry.reference, (
                    f"the runs' baselines disagree: {name} of {entry.reference} is {first:.2f} in "
                    f"{other.run.path} and {value:.2f} in {entry.run.path}; the first is shown"
                ))
    return list(notes.values())
