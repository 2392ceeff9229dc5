"""A table's caption: what the numbers mean, under which protocol, of which data, made how."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from fedvlm.report.table_check import TRAINING
from fedvlm.report.table_facts import Entry
from fedvlm.report.table_metrics import metric

DIGEST = 8  # characters of a digest shown
MOST_DIGESTS = 9
SPLIT = ("setting", "subsample", "shots", "partition", "held_out")  # what names a split
NOT_COMPARABLE = "not comparable with papers"
FACTS = (  # key -> words; in this order, and only where all runs agree
    ("setting", "setting {}"), ("trainer", "method {}"), ("dataset", "data set {}"),
    ("subsample", "{} classes"), ("shots", "{} shots"), ("partition", "partition {}"),
    ("held_out", "domain {} held out"), ("targets", "targets {}"),
    ("views", "K = {} training view(s) per image"), ("rounds", "{} rounds"),
    ("local_epochs", "{} local epoch(s)"), ("batch_size", "batch size {}"),
    ("budget", "matched by {}"),
)


def caption(
    runs: Sequence[Entry], names: Sequence[str], axes: Sequence[str], differing: Sequence[str],
    averaged: bool, ci: bool, n: int, command: str,
) -> str:
    """Return the caption as plain sentences.

    Args:
        runs: the entries shown, without reference numbers.
        names: the metrics shown.
        axes: row and column keys.
        differing: what differs on request (``--mixed``).
        averaged: whether there is an average over data sets.
        ci: whether the spread is the 95 % t-interval.
        n: the most seeds of a cell.
        command: what made the table; empty for unknown.
    """
    parts = [
        "; ".join(_meaning(name) for name in names), _spread(runs, ci, n), _protocol(runs, axes),
        _backbones(runs), _selection(runs), _digests(runs),
    ]
    if averaged:
        harmonic = [n for n in names if metric(n).harmonic]
        order = f"; of {', '.join(harmonic)} a mean of harmonic means" if harmonic else ""
        what = "domains held out" if "held_out" in axes else "data sets"
        parts.append(f"Average: mean over the {what} of the cells' means, without a spread{order}")
    if differing:
        parts.append(f"Mixed on request, so rows may differ by more than they say: "
                     f"{'; '.join(differing)}")
    parts += _remarks(runs)
    if command:
        parts.append(f"Made by: {command}")
    first, *rest = [part for part in parts if part]
    return ". ".join([first, *(part[0].upper() + part[1:] for part in rest)]) + "."


def _meaning(name: str) -> str:
    found = metric(name)
    better = "lower" if found.lower else "higher"
    unit = f" ({found.unit}; {better} is better)" if found.unit else f" ({better} is better)"
    return f"{name}: {found.words}{unit}"


def _spread(runs: Sequence[Entry], ci: bool, n: int) -> str:
    seeds = sorted({e.seeds for e in runs}, key=str)
    words = ", ".join(
        str(s) if s == d else f"{s} (data {d})" for s, d in seeds
    )
    if n < 2:
        return f"one seed per cell (seed {words}), so no spread"
    kind = "half the 95 % t-interval of the mean" if ci else "sample standard deviation"
    return f"mean ± {kind} over n = {n} seeds (seeds {words})"


def _protocol(runs: Sequence[Entry], axes: Sequence[str]) -> str:
    words = []
    for key, form in FACTS:
        if key in axes:
            continue
        texts = {_text(e, key, axes) for e in runs if e.trains or key not in TRAINING}
        if len(texts) == 1 and (text := texts.pop()):
            words.append(form.format(text))
    return ", ".join(words)


def _text(entry: Entry, key: str, axes: Sequence[str]) -> str:
    found: Any = entry.run.method if key == "trainer" else entry.fact(key)
    if key == "shots" and found == -1:
        return "all"
    return "" if found is None else str(found)


def _backbones(runs: Sequence[Entry]) -> str:
    found = {
        f"{e.fact('backbone')} ({e.fact('weights') or 'no tag'}, digest "
        f"{str(e.fact('backbone_digest'))[:DIGEST]})": None
        for e in runs
    }
    return f"backbone {'; '.join(found)}"


def _selection(runs: Sequence[Entry]) -> str:
    chosen = {str(e.fact("selection")) for e in runs}
    beside = "; a round chosen by validation stands beside it as selected.*" if "val" in chosen \
        else ""
    return f"last round; the test set chooses nothing{beside}"


def _digests(runs: Sequence[Entry]) -> str:
    """Name each split by the first characters of its digest; many by one digest over all."""
    names = {str(e.fact("dataset")) for e in runs}
    parts = [  # what is not the same in all splits of one data set
        key for key in SPLIT
        if len({(str(e.fact("dataset")), str(e.fact(key))) for e in runs}) > len(names)
    ]
    found = sorted({
        (" ".join([str(e.fact("dataset")), *(e.label(key, ()) for key in parts)]),
         str(e.fact("data_seed")), str(e.fact("data_digest"))) for e in runs
    })
    if len(found) > MOST_DIGESTS:
        whole = hashlib.sha256("\n".join(" ".join(one) for one in found).encode()).hexdigest()
        return f"{len(found)} data splits, digest over their digests {whole[:DIGEST]}"
    splits = [f"{name} seed {seed} {digest[:DIGEST]}" for name, seed, digest in found]
    return f"data digests: {', '.join(splits)}"


def _remarks(runs: Sequence[Entry]) -> list[str]:
    """Return what the runs say of themselves: ``not comparable with papers`` above all."""
    found: dict[str, None] = {}
    for entry in runs:
        notes = entry.run.info.get("notes", [])
        if isinstance(notes, Mapping) or not isinstance(notes, Sequence):
            continue
        found |= {str(n): None for n in notes if NOT_COMPARABLE in str(n)}
    return list(found)
