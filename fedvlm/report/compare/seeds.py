"""Two methods over seeds: runs paired by (seed, data seed), every number with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fedvlm.core.errors import ConfigError
from fedvlm.report.compare.paired import Paired, paired
from fedvlm.report.compare.read import Difference, Side, difference
from fedvlm.report.compare.runs import headline, heads_of, pairing, settings, spread_lines
from fedvlm.report.compare.text import Comparison, Row, Section, interval, p_value, plain, signed

Pair = tuple[Side, Side]
DATA = ("data: ", "images: ")  # said by the note on partitions


def compare_seeds(a: Sequence[Side], b: Sequence[Side]) -> Comparison:
    """Return the comparison of two groups of finished runs, one run per seed in each.

    Raises:
        ConfigError: two runs of a group have the same seeds, or no seeds are in both.
    """
    left, right = by_seeds(a, "A"), by_seeds(b, "B")
    both = sorted(set(left) & set(right), key=str)
    if not both:
        raise ConfigError(
            f"A and B have no seeds in common (A: {_words(left)}; B: {_words(right)}); --over-seeds"
            " pairs runs by seed and data seed"
        )
    pairs = [(left[key], right[key]) for key in both]
    found, varying = _difference(pairs)
    values = _values(pairs)
    spreads = {name: s for name, v in values.items() if (s := paired(*zip(*v, strict=True)))}
    notes = [*_unpaired(left, right), *_data(pairs), *varying]
    notes += [note for side in (*a, *b) for note in side.notes]
    per_seed = _per_seed(pairs, "personal")
    sections = [
        Section("Runs", [_label("A", a), _label("B", b), *notes]), settings(found),
        Section("Seeds, personal accuracy in %", [], per_seed,
                spread_lines(spreads["personal"], "seed") if "personal" in spreads else []),
        Section("Numbers over seeds, in %", [], [_row(n, s) for n, s in spreads.items()]),
    ]
    return Comparison([s for s in sections if s.lines or s.rows], {
        "a": [str(side.path) for side in a], "b": [str(side.path) for side in b],
        "pairs": [list(key) for key in both], "notes": notes, "settings": asdict(found),
        "values": {n: [{"a": x, "b": y} for x, y in v] for n, v in values.items()},
        "metrics": {n: asdict(s) for n, s in spreads.items()},
    })


def by_seeds(sides: Sequence[Side], letter: str) -> dict[tuple[Any, Any], Side]:
    """Return the runs by (seed, data seed).

    Raises:
        ConfigError: two of them have the same.
    """
    found: dict[tuple[Any, Any], Side] = {}
    for side in sides:
        twin = found.setdefault(side.seeds, side)
        if twin is not side:
            raise ConfigError(
                f"{letter} holds two runs of seed {side.seeds[0]}, data seed {side.seeds[1]}: "
                f"{twin.path} and {side.path}; name a folder that holds one run per seed"
            )
    return found


def _difference(pairs: Sequence[Pair]) -> tuple[Difference, list[str]]:
    """Return what differs alike in every pair, and a note on what differs in some."""
    each = [difference(a, b) for a, b in pairs]
    parts = ("numbers", "method", "elsewhere", "machine")
    common = {p: [x for x in getattr(each[0], p) if all(x in getattr(d, p) for d in each)]
              for p in parts}
    some = {
        x.partition(":")[0]: None for d in each for x in (*d.numbers, *d.method)
        if x not in common["numbers"] and x not in common["method"] and not x.startswith(DATA)
    }
    note = [f"differs otherwise from seed to seed: {', '.join(some)}"] if some else []
    known, dirty = all(d.known for d in each), any(d.dirty for d in each)
    return Difference(**common, known=known, dirty=dirty), note


def _values(pairs: Sequence[Pair]) -> dict[str, list[tuple[float, float]]]:
    """Return the numbers that every pair has, by name, as (A, B) per pair."""
    rows = [headline(a, b, heads) for a, b in pairs if (heads := heads_of(a, b))]
    if len(rows) < len(pairs):
        return {}
    return {n: [row[n] for row in rows] for n in rows[0] if all(n in row for row in rows)}


def _per_seed(pairs: Sequence[Pair], name: str) -> list[Row]:
    rows: list[Row] = []
    for a, b in pairs:
        heads = heads_of(a, b)
        found = headline(a, b, heads).get(name) if heads else None
        x, y = found or (None, None)
        rows.append({
            "seed": str(a.seeds[0]), "data seed": str(a.seeds[1]), "A": plain(x), "B": plain(y),
            "B - A": signed(None if x is None or y is None else y - x),
        })
    return rows


def _row(name: str, found: Paired) -> Row:
    return {
        "metric": name, "A": plain(found.a), "B": plain(found.b), "B - A": signed(found.difference),
        "95 % t": interval(found.t), "bootstrap": interval(found.bootstrap),
        "B above/equal/below": f"{found.wins}/{found.ties}/{found.losses}",
        "p": p_value(found.wilcoxon),
    }


def _unpaired(
    left: dict[tuple[Any, Any], Side], right: dict[tuple[Any, Any], Side]
) -> list[str]:
    only = {"A": set(left) - set(right), "B": set(right) - set(left)}
    return [f"only {x} has {_words(keys)}: left out" for x, keys in only.items() if keys]


def _data(pairs: Sequence[Pair]) -> list[str]:
    other = [a.seeds for a, b in pairs if not pairing(a, b)[0]]
    if not other:
        return [f"{len(pairs)} pairs of runs, each with the same data and partition on both sides"]
    return [f"the partitions differ in {_words(other)}: there a pair shares its seeds, not its "
            "clients, so the differences include the data's"]


def _label(letter: str, sides: Sequence[Side]) -> str:
    names = list(dict.fromkeys(side.name for side in sides))
    return f"{letter}: {', '.join(names)}, {len(sides)} run{'s' if len(sides) > 1 else ''}, " \
           f"the first in {sides[0].path}"


def _words(keys: Any) -> str:
    return ", ".join(f"{s}/{d}" for s, d in sorted(keys, key=str))
