"""Two runs side by side, or two methods over seeds: what differs, by how much, since which round.

Every difference is B - A. Clients are paired only where both runs have the same partition; numbers
are those of the last round, of an unfinished run those of the last round that both evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.spelling import NOT_RANKED
from fedvlm.report.collect import collect
from fedvlm.report.compare.text import (
    Comparison,
    Topic,
    interval,
    p_value,
    plain_number,
    signed_number,
)
from fedvlm.report.statistics.paired import (
    FEWEST,
    METHODS,
    McNemar,
    Paired,
    mcnemar,
    pair_statistics,
)
from fedvlm.report.tables.metrics import DEFINED, metric
from fedvlm.runs.verify.cover import LOGITS
from fedvlm.runs.verify.parting import (
    Difference,
    Side,
    find_differences,
    find_partings,
    read_side,
    rounds_lines,
    settings_lines,
)

COST = (
    "totals.local_steps", "totals.samples", "totals.image_forwards", "totals.text_tokens",
    "totals.bytes_up", "totals.bytes_down", "totals.seconds", "trainable",
)
MOST = 40  # clients shown one by one; of more, those that lost and gained most
ENDS = 10
SETTINGS, ROUNDS = "Settings, A -> B", "First round at which they part"
ONE_SEED = "of these clients and seeds alone: what other seeds would give, --over-seeds says"
DATA = ("data: ", "images: ")  # differences that the note on partitions tells
PERSONAL = "personal|"  # before a client's number in that file

Pairs = dict[str, tuple[float, float]]  # name of a number -> (A, B)


class LastRounds(NamedTuple):
    """The rounds whose numbers are compared, and a note where that needs one."""

    a: int
    b: int
    note: str = ""


def find_side(folder: Path) -> Side:
    """Read the one run at or below ``folder``, finished or not.

    Raises:
        ConfigError: several runs lie there.
        DataError: none does, or what lies there cannot be read.
    """
    below = collect([folder])
    paths = [run.path for run in below.runs] + below.unfinished
    if not paths:
        raise DataError(
            below.problems[0] if below.problems else
            f"no run in {folder}; give a folder with manifest.json, as `results:` names it at the "
            "end of a run"
        )
    count = len(paths) + len(below.problems)
    if count > 1:
        raise ConfigError(
            f"{folder} holds {count} runs, the first in {paths[0]}; name one of them, or compare "
            "two folders of seeds with --over-seeds"
        )
    return read_side(paths[0], below.runs[0] if below.runs else None)


def find_sides(folder: Path) -> list[Side]:
    """Read all finished runs below ``folder``.

    Raises:
        DataError: there is none.
    """
    below = collect([folder])
    if not below.runs:
        why = "; ".join([*below.problems[:1], f"{len(below.unfinished)} unfinished"])
        raise DataError(f"no finished run below {folder} ({why}); --over-seeds wants one per seed")
    left = [f"{path} is unfinished and left out" for path in below.unfinished] + below.problems
    first, *others = [read_side(run.path, run) for run in below.runs]
    return [replace(first, notes=(*first.notes, *left)), *others]


def compare_runs(a: Side, b: Side) -> Comparison:
    """Return the whole comparison of two runs."""
    differing, heads = find_differences(a, b), _heads_of(a, b)
    same, why = _pairing(a, b)
    numbers = _headline(a, b, heads) if heads else {}
    costs = {n: (x, y) for n in COST
             if (x := _cost(a, n)) is not None and (y := _cost(b, n)) is not None}
    clients, data = _clients(a, b, heads) if same and heads else ([], {})
    parts = find_partings(a, b)
    topics = [
        _runs(a, b), Topic(SETTINGS, settings_lines(differing)), Topic("Data", [why]),
        _numbers(heads, numbers), *clients, _costs(costs),
        Topic(ROUNDS, rounds_lines(a, b, parts, differing)),
    ]
    return Comparison(topics, {
        "a": _about(a), "b": _about(b), "settings": asdict(differing) | {"equal": differing.equal},
        "paired": same, "pairing": why,
        "headline": {"rounds": [heads.a, heads.b], "note": heads.note} if heads else None,
        "metrics": _both(numbers), "cost": _both(costs), **data, "rounds": parts,
    })


def compare_seeds(a: Sequence[Side], b: Sequence[Side]) -> Comparison:
    """Return the comparison of two groups of finished runs, paired by (seed, data seed).

    Raises:
        ConfigError: two runs of a group have the same seeds, or no seeds are in both.
    """
    left, right = _by_seeds(a, "A"), _by_seeds(b, "B")
    common = sorted(set(left) & set(right), key=str)
    if not common:
        raise ConfigError(
            f"A and B have no seeds in common (A: {_seeds(left)}; B: {_seeds(right)}); --over-seeds"
            " pairs runs by seed and data seed"
        )
    pairs = [(left[seeds], right[seeds]) for seeds in common]
    differing, varying = _common_difference(pairs)
    numbers = [_headline(*pair, heads) if (heads := _heads_of(*pair)) else {} for pair in pairs]
    names = [n for n in numbers[0] if all(n in each for each in numbers)]
    values = {n: [each[n] for each in numbers] for n in names}
    spreads = {n: s for n, v in values.items() if (s := pair_statistics(*zip(*v, strict=True)))}
    notes = [f"only {x} has {_seeds(only)}: left out"
             for x, only in (("A", set(left) - set(right)), ("B", set(right) - set(left))) if only]
    other = [x.seeds for x, y in pairs if not _pairing(x, y)[0]]
    notes.append(
        f"the partitions differ in {_seeds(other)}: there a pair shares its seeds, not its "
        "clients, so the differences include the data's" if other else
        f"{len(pairs)} pairs of runs, each with the same data and partition on both sides"
    )
    notes += [NOT_RANKED] * any(
        side.run is not None and side.run.simulated for side in (*a, *b))
    notes += [*varying, *(note for side in (*a, *b) for note in side.notes)]
    runs = [f"{x}: {', '.join(dict.fromkeys(side.name for side in group))}, {len(group)} run"
            f"{'s' if len(group) > 1 else ''}, the first in {group[0].path}"
            for x, group in (("A", a), ("B", b))]
    rows = []
    for (x, _), each in zip(pairs, numbers, strict=True):
        first, second = each.get("personal", (None, None))
        gain = None if first is None or second is None else second - first
        rows.append({"seed": str(x.seeds[0]), "data seed": str(x.seeds[1]),
                     "A": plain_number(first), "B": plain_number(second),
                     "B - A": signed_number(gain)})
    topics = [
        Topic("Runs", [*runs, *notes]), Topic(SETTINGS, settings_lines(differing)),
        Topic("Seeds, personal accuracy in %", [], rows,
              _spread_lines(spreads["personal"], "seed") if "personal" in spreads else []),
        Topic("Numbers over seeds, in %", [], [
            {"metric": n, "A": plain_number(s.a), "B": plain_number(s.b),
             "B - A": signed_number(s.difference), "95 % t": interval(s.t),
             **({"bootstrap": interval(s.bootstrap)} if s.bootstrap else {}),
             "B above/equal/below": f"{s.wins}/{s.ties}/{s.losses}", "p": p_value(s.wilcoxon)}
            for n, s in spreads.items()
        ]),
    ]
    return Comparison(topics, {
        "a": [str(side.path) for side in a], "b": [str(side.path) for side in b],
        "pairs": [list(seeds) for seeds in common], "notes": notes, "settings": asdict(differing),
        "values": {n: [{"a": x, "b": y} for x, y in v] for n, v in values.items()},
        "metrics": {n: asdict(s) for n, s in spreads.items()},
    })


def _pairing(a: Side, b: Side) -> tuple[bool, str]:
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


def _heads_of(a: Side, b: Side) -> LastRounds | None:
    """Return the rounds to compare: both last ones, or the last that both evaluated."""
    if a.run is not None and b.run is not None:
        last = [int(run.last.get("round", -1)) for run in (a.run, b.run)]
        differ = f"A's last round is {last[0]}, B's is {last[1]}"
        return LastRounds(last[0], last[1], differ if last[0] != last[1] else "")
    common = a.evaluated & b.evaluated
    if not common:
        return None
    which = [x for x, side in (("A", a), ("B", b)) if side.run is None]
    verb = "is" if len(which) == 1 else "are"
    return LastRounds(max(common), max(common), f"{' and '.join(which)} {verb} unfinished")


def _headline(a: Side, b: Side, heads: LastRounds) -> Pairs:
    """Return the accuracies that both runs have."""
    left, right = a.record(heads.a), b.record(heads.b)
    names = [n for n in DEFINED if "." not in n and n != "seconds"]
    names += [n for n in left if n.startswith("target.")]
    numbers = {n: (left[n], right[n]) for n in names
               if all(isinstance(one.get(n), int | float) for one in (left, right))}
    selected = [side.run and side.run.value("selected.personal") for side in (a, b)]
    if isinstance(selected[0], float) and isinstance(selected[1], float):
        numbers["selected.personal"] = (selected[0], selected[1])
    return numbers


def _spread_lines(pairs: Paired, what: str) -> list[str]:
    """Return the statistics of paired numbers in words."""
    lines = [
        f"mean difference {signed_number(pairs.difference)} over {pairs.n} {what}"
        f"{'s' if pairs.n > 1 else ''}; B is better for {pairs.wins}, equal for {pairs.ties}, "
        f"worse for {pairs.losses}"
    ]
    if pairs.wins == pairs.losses == 0:
        return [*lines, f"every {what} is equal: nothing to test"]
    if pairs.t is None:
        return [*lines, f"one {what} alone has no interval"]
    beside = f", bootstrap {interval(pairs.bootstrap)}" if pairs.bootstrap else ""
    lines.append(f"95 % interval: t {interval(pairs.t)}{beside}")
    unequal = pairs.wins + pairs.losses
    lines.append(
        f"signed-rank p {p_value(pairs.wilcoxon)}" if pairs.wilcoxon is not None else
        f"no signed-rank test: {unequal} unequal {what}s, fewer than {FEWEST}"
    )
    return [*lines, METHODS]


def _by_seeds(sides: Sequence[Side], letter: str) -> dict[tuple[Any, Any], Side]:
    by_seeds: dict[tuple[Any, Any], Side] = {}
    for side in sides:
        twin = by_seeds.setdefault(side.seeds, side)
        if twin is not side:
            raise ConfigError(
                f"{letter} holds two runs of seed {side.seeds[0]}, data seed {side.seeds[1]}: "
                f"{twin.path} and {side.path}; name a folder that holds one run per seed"
            )
    return by_seeds


def _common_difference(pairs: Sequence[tuple[Side, Side]]) -> tuple[Difference, list[str]]:
    """Return what differs alike in every pair, and a note on what differs in some."""
    each = [find_differences(a, b) for a, b in pairs]
    common = {
        part: [x for x in getattr(each[0], part) if all(x in getattr(d, part) for d in each)]
        for part in ("numbers", "method", "elsewhere", "machine")
    }
    some = dict.fromkeys(
        x.partition(":")[0] for d in each for x in (*d.numbers, *d.method)
        if x not in common["numbers"] and x not in common["method"] and not x.startswith(DATA)
    )
    note = [f"differs otherwise from seed to seed: {', '.join(some)}"] if some else []
    known, dirty = all(d.known for d in each), any(d.dirty for d in each)
    return Difference(**common, known=known, dirty=dirty), note


def _seeds(seeds: Iterable[tuple[Any, Any]]) -> str:
    return ", ".join(f"{s}/{d}" for s, d in sorted(seeds, key=str))


def _runs(a: Side, b: Side) -> Topic:
    lines = []
    for letter, side in (("A", a), ("B", b)):
        rounds = f"rounds up to {max(side.records)}" if side.records else "no rounds recorded"
        lines.append(
            f"{letter}: {side.name}, seed {side.seeds[0]}, data seed {side.seeds[1]}, "
            f"{'unfinished' if side.run is None else 'finished'}, {rounds}, in {side.path}"
        )
        lines += [f"{letter}: {note}" for note in side.notes]
        lines += [f"{letter}: {NOT_RANKED}"] * (side.run is not None and side.run.simulated)
        if side.moved:
            lines.append(f"{letter} went on under other conditions: {'; '.join(side.moved[:6])}")
    if a.path.resolve() == b.path.resolve():
        lines.append("A and B are the same folder")
    return Topic("Runs", lines)


def _numbers(heads: LastRounds | None, numbers: Pairs) -> Topic:
    if heads is None:
        return Topic("Numbers", ["no round was evaluated in both runs: no number to compare"])
    where = f"after round {heads.a}" if heads.a == heads.b else \
        f"A after round {heads.a}, B after round {heads.b}"
    line = f"{where}, in %{f' ({heads.note})' if heads.note else ''}"
    return Topic("Numbers", [line], [
        {"metric": n, "A": plain_number(x), "B": plain_number(y), "B - A": signed_number(y - x)}
        for n, (x, y) in numbers.items()
    ])


def _costs(costs: Pairs) -> Topic:
    rows = []
    for name, (x, y) in costs.items():
        meant = metric(name)
        digits, scale = 1 if meant.digits is None else meant.digits, meant.scale
        rows.append({
            "cost": meant.title, "A": plain_number(x * scale, digits),
            "B": plain_number(y * scale, digits),
            "B / A": f"{y / x:.2f}" if x else "-",
        })
    return Topic("Cost", [], rows)


def _clients(a: Side, b: Side, heads: LastRounds) -> tuple[list[Topic], dict[str, Any]]:
    """Return the topics of clients and images of one partition, and their data."""
    left, right = (
        {row["client"]: row for row in one.get("clients", [])}
        for one in (a.record(heads.a), b.record(heads.b))
    )
    lines, untested = [], []
    for client in sorted(set(left) | set(right)):
        x, y = (one.get(client, {}).get("accuracy") for one in (left, right))
        if x is None or y is None:
            untested.append(str(client))
            continue
        n = left[client].get("n")
        lines.append({"client": client, "n": n, "a": x, "b": y, "difference": y - x})
    pairs = pair_statistics([x["a"] for x in lines], [x["b"] for x in lines])
    data: dict[str, Any] = {
        "clients": lines, "per_client": asdict(pairs) if pairs else None, "methods": METHODS,
    }
    words = [f"no test images for client {', '.join(untested)}: left out"] if untested else []
    if pairs is None:
        return [Topic("Clients", [*words, "no client was evaluated in both runs"])], data
    extremes = lines
    if len(lines) > MOST:
        ranked = sorted(lines, key=lambda x: (x["difference"], x["client"]))
        extremes = ranked[:ENDS] + ranked[-ENDS:]
        words.append(f"{ENDS} that lost and {ENDS} that gained most of {len(lines)} clients")
    topics = [Topic("Clients, personal accuracy in %", words, [
        {"client": str(x["client"]), "n": str(x["n"]), "A": plain_number(x["a"]),
         "B": plain_number(x["b"]), "B - A": signed_number(x["difference"])} for x in extremes
    ], [*_spread_lines(pairs, "client"), ONE_SEED])]
    tests, why = _image_tests(a, b) if a.run and b.run else ({}, "")
    data["images"] = {name: asdict(test) for name, test in tests.items()}
    if tests or why:
        method = ["McNemar's exact test, two-sided"] if tests else []
        topics.append(Topic("Test images, last round", [*method, why], [
            {"model": name, "images": str(test.n), "both right": str(test.both),
             "only A": str(test.only_a), "only B": str(test.only_b), "neither": str(test.neither),
             "p": p_value(test.p)} for name, test in tests.items()
        ]))
    return topics, data


def _image_tests(a: Side, b: Side) -> tuple[dict[str, McNemar], str]:
    """Return McNemar's test of ``personal`` (all clients pooled) and ``global``, and a note.

    Both runs must have the same partition. The note says why there is no test, or how images
    were counted; it is empty where neither run kept logits.
    """
    there = [(side.path / LOGITS).exists() for side in (a, b)]
    if not all(there):
        lacking = "A" if there[1] else "B"
        return {}, f"{lacking} kept no logits, so there is no paired test over test images; run " \
                   "it with --keep-logits under another --tag" if any(there) else ""
    try:
        left, right = (read_logits(side.path / LOGITS) for side in (a, b))
        names = personal_names(left)
        tests = {"personal": _image_test(left, right, names)} if names else {}
        if "global" in left and "global" in right:
            tests["global"] = _image_test(left, right, ["global"])
    except (KeyError, ValueError, TypeError, OSError) as error:
        return {}, f"no paired test over test images: {error}"
    return tests, "an image that is in the test splits of several clients counts once for each"


def read_logits(path: Path) -> Mapping[str, Any]:
    """Return the tensors of a file.

    Raises:
        ValueError: it is damaged, or of a type that NumPy lacks.
    """
    from safetensors import SafetensorError  # start-up: 0.1 s where no logits were kept
    from safetensors.numpy import load_file  # start-up: 0.1 s where no logits were kept

    try:
        return load_file(path)
    except (SafetensorError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read ({error})") from error


def personal_names(kept: Iterable[str]) -> list[str]:
    """Return the names of the clients' models among the tensors kept, by number."""
    return sorted((name for name in kept if name.startswith(PERSONAL)),
                  key=lambda name: int(name.removeprefix(PERSONAL)))


def _image_test(a: Mapping[str, Any], b: Mapping[str, Any], names: list[str]) -> McNemar:
    """Pool the images of ``names``.

    Raises:
        ValueError: a name is missing, or its true labels differ.
    """
    right: tuple[list[Any], list[Any]] = ([], [])
    for name in names:
        key = f"true|{name}"
        for part in (name, key):
            if part not in a or part not in b:
                raise ValueError(f"one of the two {LOGITS} has no '{part}'")
        truth = a[key]
        if not np.array_equal(truth, b[key]) or len(a[name]) != len(b[name]):
            raise ValueError(f"the kept '{name}' are not of the same test images")
        for hits, logits in zip(right, (a, b), strict=True):
            hits.append(logits[name].argmax(axis=1) == truth if len(truth) else truth == 0)
    return mcnemar(*(np.concatenate(hits).tolist() for hits in right))


def _about(side: Side) -> dict[str, Any]:
    return {
        "path": str(side.path), "method": side.name, "finished": side.run is not None,
        "seed": side.seeds[0], "data_seed": side.seeds[1], "rounds": len(side.records),
        "identity_digest": side.manifest.get("identity_digest"), "data_digest": side.data_digest,
        "notes": list(side.notes),
    }


def _both(pairs: Pairs) -> dict[str, dict[str, float]]:
    return {n: {"a": x, "b": y, "difference": y - x} for n, (x, y) in pairs.items()}


def _cost(side: Side, name: str) -> float | None:
    value = side.cost.get(name.removeprefix("totals."))
    return float(value) if isinstance(value, int | float) else None
