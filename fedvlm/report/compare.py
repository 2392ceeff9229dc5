"""Two runs side by side: what differs, by how much, for whom, and since which round.

Every difference is B - A. Clients are paired only where both runs have the same partition; numbers
are those of the last round, of an unfinished run those of the last round that both evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedvlm.report import compare_clients
from fedvlm.report.compare_config import Difference, difference, moved
from fedvlm.report.compare_read import Side, label_of
from fedvlm.report.compare_rounds import PartRounds, part_rounds
from fedvlm.report.compare_text import Comparison, Section, plain, signed
from fedvlm.report.table_metrics import DEFINED, metric

COST = (
    "totals.local_steps", "totals.samples", "totals.image_forwards", "totals.text_tokens",
    "totals.bytes_up", "totals.bytes_down", "totals.seconds", "trainable",
)


@dataclass(frozen=True)
class Heads:
    """The rounds whose numbers are compared, and a note where that needs one."""

    a: int
    b: int
    note: str = ""


def compare(a: Side, b: Side) -> Comparison:
    """Return the whole comparison of two runs."""
    found, heads = difference(a, b), heads_of(a, b)
    same, why = pairing(a, b)
    parts = part_rounds(a.records, b.records)
    numbers = headline(a, b, heads) if heads else {}
    spent = {
        name: (x, y) for name in COST
        if (x := _cost(a, name)) is not None and (y := _cost(b, name)) is not None
    }
    clients, data = (
        compare_clients.sections(a, b, (heads.a, heads.b)) if same and heads else ([], {})
    )
    sections = [
        _runs(a, b), settings(found), Section("Data", [why]),
        _head_section(heads, numbers), *clients, _cost_section(spent), _rounds(a, b, parts, found),
    ]
    return Comparison([s for s in sections if s.lines or s.rows], {
        "a": _about(a), "b": _about(b), "settings": asdict(found) | {"equal": found.equal},
        "paired": same, "pairing": why,
        "headline": {"rounds": [heads.a, heads.b], "note": heads.note} if heads else None,
        "metrics": _both(numbers), "cost": _both(spent), **data,
        "rounds": [asdict(part) for part in parts],
    })


def pairing(a: Side, b: Side) -> tuple[bool, str]:
    """Say whether both runs have the same clients with the same images, and why not."""
    images = [side.identity.get("images") for side in (a, b)]
    if a.data_digest is None or b.data_digest is None:
        return False, "a run names no data digest, so clients are not paired: only totals are " \
                      "compared"
    if a.data_digest == b.data_digest:
        if None not in images and images[0] != images[1]:
            return False, "the same lists, but the image files have other bytes: clients are " \
                          "not paired, only totals are compared"
        return True, f"the same data and partition (digest {a.data_digest[:12]}): clients are " \
                     "paired"
    if a.partition_digest is not None and a.partition_digest == b.partition_digest:
        return True, "the same partition: clients are paired; the data digests differ in what " \
                     "stands beside it (the set's lists, or other test sets)"
    return False, f"the partitions differ (data digests {a.data_digest[:12]} and " \
                  f"{b.data_digest[:12]}): a client of A is another one in B, so clients are " \
                  "not paired and only totals are compared"


def heads_of(a: Side, b: Side) -> Heads | None:
    """Return the rounds to compare: both last ones, or the last that both evaluated."""
    if a.run is not None and b.run is not None:
        last = [int(side.run.last.get("round", -1)) for side in (a, b) if side.run is not None]
        differ = f"A's last round is {last[0]}, B's is {last[1]}"
        return Heads(last[0], last[1], differ if last[0] != last[1] else "")
    common = sorted(set(_evaluated(a)) & set(_evaluated(b)))
    if not common:
        return None
    which = " and ".join(x for x, side in (("A", a), ("B", b)) if not side.finished)
    return Heads(common[-1], common[-1], f"{which} is unfinished" if len(which) == 1 else
                 f"{which} are unfinished")


def headline(a: Side, b: Side, heads: Heads) -> dict[str, tuple[float, float]]:
    """Return the accuracies that both runs have, by name, as (A, B)."""
    left, right = a.record(heads.a), b.record(heads.b)
    names = [n for n in DEFINED if "." not in n and n != "seconds"]
    names += [n for n in left if n.startswith("target.")]
    found = {n: (left[n], right[n]) for n in names if _number(left, n) and _number(right, n)}
    if a.run is not None and b.run is not None:
        chosen = [side.value("selected.personal") for side in (a.run, b.run)]
        if chosen[0] is not None and chosen[1] is not None:
            found["selected.personal"] = (chosen[0], chosen[1])
    return found


def settings(found: Difference) -> Section:
    """Return what differs before the first round."""
    groups = {
        "changes numbers": found.numbers,
        "own settings of one method": ["; ".join(found.method)] if found.method else [],
        "may change bits (versions, code, machine)": found.machine,
        "changes no number": found.elsewhere,
    }
    lines = [f"{name}: {line}" for name, given in groups.items() for line in given]
    if not found.known:
        lines.insert(0, "a manifest names no identity: what changes numbers was not compared")
    elif not (found.numbers or found.method):
        lines.insert(0, "the same identity: nothing that changes numbers differs")
    return Section("Settings, A -> B", lines)


def _runs(a: Side, b: Side) -> Section:
    lines = []
    for letter, side in (("A", a), ("B", b)):
        lines.append(label_of(side, letter, list(side.records)))
        lines += [f"{letter}: {note}" for note in side.notes]
        if changed := moved(side):
            lines.append(f"{letter} went on under other conditions: {'; '.join(changed[:6])}")
    if a.path.resolve() == b.path.resolve():
        lines.append("A and B are the same folder")
    return Section("Runs", lines)


def _head_section(heads: Heads | None, numbers: Mapping[str, tuple[float, float]]) -> Section:
    if heads is None:
        return Section("Numbers", ["no round was evaluated in both runs: no number to compare"])
    where = f"after round {heads.a}" if heads.a == heads.b else \
        f"A after round {heads.a}, B after round {heads.b}"
    line = f"{where}, in %{f' ({heads.note})' if heads.note else ''}"
    return Section("Numbers", [line], [
        {"metric": n, "A": plain(x), "B": plain(y), "B - A": signed(y - x)}
        for n, (x, y) in numbers.items()
    ])


def _cost_section(spent: Mapping[str, tuple[float, float]]) -> Section:
    rows = []
    for name, (x, y) in spent.items():
        meant = metric(name)
        digits, scale = 1 if meant.digits is None else meant.digits, meant.scale
        times = f"{y / x:.2f}" if x else "-"
        rows.append({
            "cost": meant.title, "A": plain(x * scale, digits), "B": plain(y * scale, digits),
            "B / A": times,
        })
    return Section("Cost", [], rows)


def _rounds(a: Side, b: Side, parts: list[PartRounds], found: Difference) -> Section:
    lines = [parting_line(part) for part in parts if part.rounds]
    only = {x: sorted(set(s.records) - set(o.records)) for x, s, o in (("A", a, b), ("B", b, a))}
    lines += [
        f"only {x} has round {r[0]}{f' to {r[-1]}' if len(r) > 1 else ''}; the others are compared"
        for x, r in only.items() if r and len(r) < len((a if x == "A" else b).records)
    ]
    compared = [part for part in parts if part.rounds]
    if compared and all(part.parting is None for part in compared):
        lines.append("all common rounds are equal, bit for bit")
    elif compared and found.equal:
        lines.append(
            "the same identity, versions and machine gave other bits: that should not be"
            + (", unless the code differs: a checkout had changes of its own" if found.dirty
               else "")
        )
    return Section("First round at which they part", lines)


def parting_line(part: PartRounds) -> str:
    """Return what is to be said of one part of the records."""
    count = f"{len(part.rounds)} round{'s' if len(part.rounds) > 1 else ''}"
    found = part.parting
    if found is None:
        return f"{part.part}: equal bit for bit in all {count} compared " \
               f"({part.rounds[0]} to {part.rounds[-1]})"
    whose = "" if found.client is None else f" of client {found.client}"
    return f"{part.part}: parts at round {found.round} ({count} compared); first difference: " \
           f"{found.name}{whose}, A {found.a}, B {found.b}"


def _about(side: Side) -> dict[str, Any]:
    return {
        "path": str(side.path), "method": side.name, "finished": side.finished,
        "seed": side.seeds[0], "data_seed": side.seeds[1], "rounds": len(side.records),
        "identity_digest": side.manifest.get("identity_digest"), "data_digest": side.data_digest,
        "notes": list(side.notes),
    }


def _both(found: Mapping[str, tuple[float, float]]) -> dict[str, dict[str, float]]:
    return {n: {"a": x, "b": y, "difference": y - x} for n, (x, y) in found.items()}


def _evaluated(side: Side) -> list[int]:
    last = [side.run.last.get("round")] if side.run is not None else []
    return [*side.evaluated, *(r for r in last if isinstance(r, int))]


def _cost(side: Side, name: str) -> float | None:
    value = side.cost.get(name.removeprefix("totals."))
    return float(value) if isinstance(value, int | float) else None


def _number(record: Mapping[str, Any], name: str) -> bool:
    return isinstance(record.get(name), int | float)
