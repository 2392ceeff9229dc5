"""Two runs side by side: what differs, by how much, for whom, and since which round.

Every difference is B - A. Clients are paired only where both runs have the same partition; numbers
are those of the last round, of an unfinished run those of the last round that both evaluated.

McNemar's test over the test images of two runs that kept their logits.

Two runs client by client, and image by image where both kept their logits.

The first round at which two runs part: their recorded rounds, bit for bit.

JSON keeps a float's shortest exact spelling, so equal text is equal bits. Wall time and passes
through the towers (fewer where a cache is warm) are no results and are not compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedvlm.report.compare.paired import FEWEST, METHODS, McNemar, Paired, mcnemar, paired
from fedvlm.report.compare.read import Difference, Side, difference, label_of, moved
from fedvlm.report.compare.text import Comparison, Row, Section, interval, p_value, plain, signed
from fedvlm.report.tables.metrics import DEFINED, metric

FILE = "logits.safetensors"
_OWN = "personal|"


def logits_tests(a: Side, b: Side) -> tuple[dict[str, McNemar], str]:
    """Return McNemar's test of ``personal`` (all clients pooled) and ``global``, and a note.

    Both runs must have the same partition. The note says why there is no test, or how images
    were counted; it is empty where neither run kept logits.
    """
    there = [(side.path / FILE).exists() for side in (a, b)]
    if not all(there):
        lacking = "A" if there[1] else "B"
        return {}, f"{lacking} kept no logits, so there is no paired test over test images; run " \
                   "it with --keep-logits under another --tag" if any(there) else ""
    try:
        left, right = (_read(side.path / FILE) for side in (a, b))
        names = sorted((k for k in left if k.startswith(_OWN)), key=lambda k: int(k[len(_OWN):]))
        found = {"personal": _test(left, right, names)} if names else {}
        if "global" in left and "global" in right:
            found["global"] = _test(left, right, ["global"])
    except (KeyError, ValueError, TypeError, OSError) as error:
        return {}, f"no paired test over test images: {error}"
    return found, "an image that is in the test splits of several clients counts once for each"


def _read(path: Path) -> Mapping[str, Any]:
    """Return the tensors of a file.

    Raises:
        ValueError: it is damaged, or of a type that NumPy lacks.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(path)
    except (SafetensorError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read ({error})") from error


def _test(a: Mapping[str, Any], b: Mapping[str, Any], names: list[str]) -> McNemar:
    """Pool the images of ``names``.

    Raises:
        ValueError: a name is missing, or its true labels differ.
    """
    right: tuple[list[Any], list[Any]] = ([], [])
    for name in names:
        key = f"true|{name}"
        for part in (name, key):
            if part not in a or part not in b:
                raise ValueError(f"one of the two {FILE} has no '{part}'")
        truth = a[key]
        if not np.array_equal(truth, b[key]) or len(a[name]) != len(b[name]):
            raise ValueError(f"the kept '{name}' are not of the same test images")
        for found, kept in zip(right, (a, b), strict=True):
            found.append(kept[name].argmax(axis=1) == truth if len(truth) else truth == 0)
    return mcnemar(*(np.concatenate(found).tolist() for found in right))


MOST = 40  # clients shown one by one; of more, those that lost and gained most
ENDS = 10
ONE_SEED = "of these clients and seeds alone: what other seeds would give, --over-seeds says"

Line = dict[str, Any]


def client_sections(
    a: Side, b: Side, rounds: tuple[int, int]
) -> tuple[list[Section], dict[str, Any]]:
    """Return the sections of clients and images of one partition, and their data.

    Args:
        rounds: the evaluated round of A, and that of B.
    """
    lines, left = client_lines(a.record(rounds[0]), b.record(rounds[1]))
    found = paired([x["a"] for x in lines], [x["b"] for x in lines])
    data: dict[str, Any] = {
        "clients": lines, "per_client": asdict(found) if found else None, "methods": METHODS,
    }
    said = [f"no test images for client {', '.join(map(str, left))}: left out"] if left else []
    if found is None:
        return [Section("Clients", [*said, "no client was evaluated in both runs"])], data
    rows = [_row(x) for x in _shown(lines)]
    if len(rows) < len(lines):
        said.append(f"{ENDS} that lost and {ENDS} that gained most of {len(lines)} clients")
    after = [*spread_lines(found, "client"), ONE_SEED]
    out = [Section("Clients, personal accuracy in %", said, rows, after)]
    both_last = a.finished and b.finished
    tests, why = logits_tests(a, b) if both_last else ({}, "")
    data["images"] = {name: asdict(test) for name, test in tests.items()}
    if tests or why:
        rows = [_test_row(name, test) for name, test in tests.items()]
        method = ["McNemar's exact test, two-sided"] if tests else []
        out.append(Section("Test images, last round", [*method, why], rows))
    return out, data


def client_lines(
    a: Mapping[str, Any], b: Mapping[str, Any]
) -> tuple[list[Line], list[int]]:
    """Return ``client, n, a, b, difference`` per client that both evaluated; and who is left out.

    Args:
        a, b: evaluated records with ``clients``.
    """
    left, right = ({row["client"]: row for row in side.get("clients", [])} for side in (a, b))
    lines, out = [], []
    for client in sorted(set(left) | set(right)):
        x, y = (side.get(client, {}).get("accuracy") for side in (left, right))
        if x is None or y is None:
            out.append(client)
            continue
        n = left[client].get("n")
        lines.append({"client": client, "n": n, "a": x, "b": y, "difference": y - x})
    return lines, out


def spread_lines(found: Paired, what: str) -> list[str]:
    """Return the statistics of paired numbers in words.

    Args:
        what: is paired: ``client``, ``seed``.
    """
    lines = [
        f"mean difference {signed(found.difference)} over {found.n} {what}"
        f"{'s' if found.n > 1 else ''}; B is better for {found.wins}, equal for {found.ties}, "
        f"worse for {found.losses}"
    ]
    if found.wins == found.losses == 0:
        return [*lines, f"every {what} is equal: nothing to test"]
    if found.t is None:
        return [*lines, f"one {what} alone has no interval"]
    lines.append(f"95 % intervals: t {interval(found.t)}, bootstrap {interval(found.bootstrap)}")
    unequal = found.wins + found.losses
    lines.append(
        f"signed-rank p {p_value(found.wilcoxon)}" if found.wilcoxon is not None else
        f"no signed-rank test: {unequal} unequal {what}s, fewer than {FEWEST}"
    )
    return [*lines, METHODS]


def _shown(lines: Sequence[Line]) -> list[Line]:
    if len(lines) <= MOST:
        return list(lines)
    ranked = sorted(lines, key=lambda x: (x["difference"], x["client"]))
    return ranked[:ENDS] + ranked[-ENDS:]


def _row(line: Line) -> Row:
    return {
        "client": str(line["client"]), "n": str(line["n"]), "A": plain(line["a"]),
        "B": plain(line["b"]), "B - A": signed(line["difference"]),
    }


def _test_row(name: str, test: McNemar) -> Row:
    counts = {
        "images": test.n, "both right": test.both, "only A": test.only_a, "only B": test.only_b,
        "neither": test.neither,
    }
    return {"model": name} | {k: str(v) for k, v in counts.items()} | {"p": p_value(test.p)}


TRAINING = ("participants", "dropped", "train", "aggregation", "finetune", "similarity")
TRAFFIC = ("bytes_up", "bytes_down", "bytes_up_by_tensor", "bytes_down_by_tensor")
IGNORED = ("round", "seconds", "counters", "notes")
BY_CLIENT = ("dropped", "train", "bytes_up", "bytes_down")
PARTS = ("training", "evaluation", "traffic")
_ABSENT = object()

Leaf = tuple[str, int | None]  # name of a number, client or None


@dataclass(frozen=True)
class Parting:
    """The first number that differs.

    Attributes:
        round: where.
        name: of the number, dotted: ``train.loss``, ``clients.accuracy``, ``personal``.
        client: whose, or None.
        a, b: both values; ``absent`` where one side has none such.
    """

    round: int
    name: str
    client: int | None
    a: Any
    b: Any


@dataclass(frozen=True)
class PartRounds:
    """One part of the records over the rounds that both runs have.

    Attributes:
        part: ``training``, ``evaluation`` or ``traffic``.
        rounds: the rounds compared; an evaluation counts where both were evaluated.
        parting: None where all are equal, bit for bit.
    """

    part: str
    rounds: tuple[int, ...]
    parting: Parting | None


def part_rounds(
    a: Mapping[int, Mapping[str, Any]], b: Mapping[int, Mapping[str, Any]]
) -> list[PartRounds]:
    """Return for training, evaluation and traffic where the records part first."""
    found = []
    for part in PARTS:
        both = sorted(set(a) & set(b))
        if part == "evaluation":
            both = [r for r in both if "personal" in a[r] and "personal" in b[r]]
        else:
            both = [r for r in both if r > 0]  # round 0 is the untrained start
        parting = next((p for r in both if (p := _parting(r, a[r], b[r], part))), None)
        found.append(PartRounds(part, tuple(both), parting))
    return found


def _parting(
    round_: int, a: Mapping[str, Any], b: Mapping[str, Any], part: str
) -> Parting | None:
    """Return the first number that both have and that differs, else the first that one lacks."""
    left, right = dict(_leaves(a, part)), dict(_leaves(b, part))
    lacking: Parting | None = None
    for leaf in dict.fromkeys([*left, *right]):
        x, y = left.get(leaf, _ABSENT), right.get(leaf, _ABSENT)
        if x is _ABSENT or y is _ABSENT:
            shown = ["absent" if v is _ABSENT else v for v in (x, y)]
            lacking = lacking or Parting(round_, *leaf, *shown)
        elif json.dumps(x) != json.dumps(y):
            return Parting(round_, *leaf, x, y)
    return lacking


def _leaves(record: Mapping[str, Any], part: str) -> Iterator[tuple[Leaf, Any]]:
    keys = [k for k in (*TRAINING, *TRAFFIC, "clients") if k in record]  # causes before means
    keys += [k for k in record if k not in keys]
    for key in keys:
        if key in IGNORED:
            continue
        value = record[key]
        if key == "non_finite" and isinstance(value, Mapping):  # place -> nan, inf
            mine = {p: kind for p, kind in value.items() if _part(p.partition(".")[0]) == part}
            yield from (((f"non_finite {place}", None), kind) for place, kind in mine.items())
        elif _part(key) != part:
            continue
        elif key in BY_CLIENT and isinstance(value, Mapping):
            for client in sorted(value, key=_number_rounds):
                yield from _flat(key, _number_rounds(client), value[client])
        elif key == "clients" and isinstance(value, list):
            for row in value:
                own = {k: v for k, v in row.items() if k != "client"}
                yield from _flat(key, row.get("client"), own)
        else:
            yield from _flat(key, None, value)


def _flat(name: str, client: int | None, value: Any) -> Iterator[tuple[Leaf, Any]]:
    items: Any = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        yield (name, client), value
    for key, item in items:
        yield from _flat(f"{name}.{key}", client, item)


def _part(key: str) -> str:
    if key in TRAINING:
        return "training"
    return "traffic" if key in TRAFFIC else "evaluation"


def _number_rounds(client: Any) -> int:
    return int(client) if str(client).isdigit() else -1


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
        client_sections(a, b, (heads.a, heads.b)) if same and heads else ([], {})
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
