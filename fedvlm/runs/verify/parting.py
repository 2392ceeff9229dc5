"""Two run folders, finished or not: what each says, and where they part.

Before their first round in settings, data, code and machine; after it in the recorded rounds, bit
for bit: JSON keeps a float's shortest exact spelling, so equal text is equal bits. Wall time and
passes through the towers (fewer where a cache is warm) are no results and are not compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from fedvlm.config.build import flat
from fedvlm.config.keys import default_schema
from fedvlm.config.sections import read_keys
from fedvlm.core.errors import DataError
from fedvlm.core.files import read_json
from fedvlm.runs import manifest
from fedvlm.runs.finished import FinishedRun, load_manifest, read_config
from fedvlm.runs.identity import identity_difference
from fedvlm.runs.metrics import read_metrics, totals

# the parts of a round's record, each compared by itself; whatever is in none of them is evaluation
PARTS = ("training", "evaluation", "traffic")
TRAINING = ("participants", "dropped", "partial", "train", "aggregation", "finetune", "similarity")
TRAFFIC = ("bytes_up", "bytes_down", "bytes_up_by_tensor", "bytes_down_by_tensor")
IGNORED = ("round", "seconds", "counters", "notes", "outliers")
BY_CLIENT = ("dropped", "partial", "train", "bytes_up", "bytes_down")
ABSENT = "absent"

Leaf = tuple[str, int | None]  # name of a number, client or None


@dataclass(frozen=True)
class Side:
    """What a run folder says.

    Attributes:
        path: the folder.
        run: the finished run; None where it is not finished.
        manifest: ``manifest.json``.
        records: the rounds of ``metrics.jsonl`` by number.
        config: ``config.yaml``, flat; empty where it cannot be read.
        notes: what could not be read.
    """

    path: Path
    run: FinishedRun | None
    manifest: Mapping[str, Any]
    records: Mapping[int, Mapping[str, Any]]
    config: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything that changes the run's numbers, as far as it counts today."""
        identity = self.manifest.get("identity")
        if not isinstance(identity, Mapping) or not isinstance(identity.get("config"), Mapping):
            return identity if isinstance(identity, Mapping) else {}
        return {**identity, "config": read_keys(identity["config"], default_schema())}

    @property
    def protocol(self) -> Mapping[str, Any]:
        """The protocol of a finished run; empty of an unfinished one."""
        return self.run.protocol if self.run is not None else {}

    @property
    def name(self) -> str:
        """The method's name with trainable set and tag; of an unfinished run without the set."""
        if self.run is not None:
            return self.run.method
        tag = self.config.get("TAG") or ""
        trainer = self.identity.get("config", {}).get("TRAINER.NAME", "unknown method")
        return f"{trainer}" + (f" ({tag})" if tag else "")

    @property
    def seeds(self) -> tuple[Any, Any]:
        """Model seed and data seed."""
        keys = self.identity.get("config", {})
        return (self.protocol.get("seed", keys.get("SEED")),
                self.protocol.get("data_seed", keys.get("DATA_SEED")))

    @property
    def data_digest(self) -> str | None:
        """Digest of data and partition; None where nothing names it."""
        digest = self.protocol.get("data_digest") or self.identity.get("data")
        return str(digest) if digest else None

    @cached_property
    def partition_digest(self) -> str | None:
        """Digest of the clients' images alone (``partition.json``); None without one, or hashed."""
        partition = read_json(self.path / "partition.json")
        there = isinstance(partition, dict) and "sha256" in partition and "names" not in partition
        return str(partition["sha256"]) if there else None

    @property
    def evaluated(self) -> set[int]:
        """Rounds with an evaluation."""
        rounds = {r for r, record in self.records.items() if "personal" in record}
        last = None if self.run is None else self.run.last.get("round")
        return rounds | {last} if isinstance(last, int) else rounds

    def record(self, round_: int) -> Mapping[str, Any]:
        """Return the numbers of an evaluated round; of a finished run's last one, its results'."""
        if self.run is not None and self.run.last.get("round", -1) == round_:
            return self.run.last
        return self.records[round_]

    @cached_property
    def cost(self) -> Mapping[str, Any]:
        """Totals of a finished run, with its trainable parameters; empty of an unfinished one."""
        if self.run is None:
            return {}
        spent = self.run.totals() or totals(list(self.records.values()))
        return dict(spent) | {"trainable": self.run.info.get("trainable")}

    @property
    def sessions(self) -> list[Mapping[str, Any]]:
        """The processes that worked on the run, as the manifest names them."""
        sessions = self.manifest.get("sessions")
        return [s for s in sessions if isinstance(s, dict)] if isinstance(sessions, list) else []

    @property
    def moved(self) -> list[str]:
        """What changed between the sessions of the run: its rounds are not of one machine."""
        lines = [manifest.differences(self.sessions[0], later) for later in self.sessions[1:]]
        return list(dict.fromkeys(line for session in lines for line in session))


def read_side(path: Path, run: FinishedRun | None) -> Side:
    """Read a run folder; what a finished run may lack becomes a note.

    Raises:
        DataError: the manifest of an unfinished run cannot be read.
    """
    notes: list[str] = []

    def tried(load: Callable[[Path], Mapping[str, Any]], needed: bool = False) -> dict[str, Any]:
        try:
            return dict(load(path))
        except (DataError, ValueError, TypeError, yaml.YAMLError) as error:
            if needed:
                raise DataError(str(error)) from error
            notes.append(f"{error}; the configs were compared only in part")
            return {}

    told = tried(load_manifest, needed=run is None)
    config = flat(tried(read_config))
    records, lost = read_metrics(path / "metrics.jsonl")
    notes += [f"{path}: {note}" for note in lost]
    if not records:
        notes.append(f"{path / 'metrics.jsonl'} is missing or empty: rounds cannot be compared")
    by_round = {r["round"]: r for r in records if type(r.get("round")) is int}
    return Side(path, run, told, by_round, config, tuple(notes))


@dataclass(frozen=True)
class Difference:
    """What differs, each ``KEY: A -> B``.

    Attributes:
        numbers: the runs' identities: whatever changes numbers.
        method: of these, settings that only one of two methods has.
        elsewhere: config keys outside the identity: where things lie, how much is printed.
        machine: versions, code, processor: equal configs give equal bits only on equal ones.
        known: whether both manifests name an identity.
        dirty: whether a checkout had changes of its own, so that equal revisions say little.
    """

    numbers: list[str] = field(default_factory=list)
    method: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    machine: list[str] = field(default_factory=list)
    known: bool = True
    dirty: bool = False

    @property
    def equal(self) -> bool:
        """Whether the runs should have the same bits."""
        return self.known and not (self.numbers or self.method or self.machine)


def find_differences(a: Side, b: Side) -> Difference:
    """Return where two runs differ in config, data, code and machine."""
    first = [side.sessions[0] if side.sessions else {} for side in (a, b)]
    result = Difference(
        elsewhere=identity_difference(_outside(a), _outside(b)) if a.config and b.config else [],
        machine=manifest.differences(*first), known=bool(a.identity and b.identity),
        dirty=any((session.get("git") or {}).get("changed") for session in first),
    )
    for line in identity_difference(a.identity, b.identity) if result.known else ():
        short = line.removeprefix("config.")
        one_sided = ": absent -> " in short or short.endswith(" -> absent")
        of_method = short.startswith("TRAINER.") and one_sided
        (result.method if of_method else result.numbers).append(short)
    return result


def _outside(side: Side) -> dict[str, Any]:
    """Return the config keys that are not part of the identity, other trainers' nodes left out."""
    inside = side.identity.get("config", {})
    return {
        k: v for k, v in side.config.items() if k not in inside and not k.startswith("TRAINER.")
    }


def find_partings(a: Side, b: Side) -> list[dict[str, Any]]:
    """Return for each part of the records the rounds that both have, and where they part first.

    An evaluation counts where both were evaluated. ``parting`` is the first number that differs,
    None where all are equal, bit for bit.
    """
    common = sorted(set(a.records) & set(b.records))
    parts = []
    for part in PARTS:
        if part == "evaluation":
            rounds = [r for r in common if all("personal" in one.records[r] for one in (a, b))]
        else:
            rounds = [r for r in common if r > 0]  # round 0 is the untrained start
        each = (_parting(r, a.records[r], b.records[r], part) for r in rounds)
        parts.append({"part": part, "rounds": rounds, "parting": next(filter(None, each), None)})
    return parts


def _parting(
    round_: int, a: Mapping[str, Any], b: Mapping[str, Any], part: str
) -> dict[str, Any] | None:
    """Return the first number that both have and that differs, else the first that one lacks.

    Its ``name`` is dotted (``train.loss``, ``clients.accuracy``), ``client`` whose or None.
    """
    left, right = dict(_leaves(a, part)), dict(_leaves(b, part))
    lacking = None
    for name, client in dict.fromkeys([*left, *right]):
        x, y = (side.get((name, client), ABSENT) for side in (left, right))
        parting = {"round": round_, "name": name, "client": client, "a": x, "b": y}
        if (name, client) not in left or (name, client) not in right:
            lacking = lacking or parting
        elif json.dumps(x) != json.dumps(y):
            return parting
    return lacking


def _leaves(record: Mapping[str, Any], part: str) -> Iterator[tuple[Leaf, Any]]:
    keys = [k for k in (*TRAINING, *TRAFFIC, "clients") if k in record]  # causes before means
    for key in dict.fromkeys([*keys, *record]):
        value = record[key]
        if key in IGNORED:
            continue
        if key == "non_finite" and isinstance(value, Mapping):  # place -> nan, inf
            yield from (((f"non_finite {place}", None), kind) for place, kind in value.items()
                        if _part_of(place.partition(".")[0]) == part)
        elif _part_of(key) != part:
            continue
        elif key in BY_CLIENT and isinstance(value, Mapping):
            for client in sorted(value, key=_client):
                yield from _numbers(key, _client(client), value[client])
        elif key == "clients" and isinstance(value, list):
            for row in value:
                numbers = {k: v for k, v in row.items() if k != "client"}
                yield from _numbers(key, row.get("client"), numbers)
        else:
            yield from _numbers(key, None, value)


def _numbers(name: str, client: int | None, value: Any) -> Iterator[tuple[Leaf, Any]]:
    yield from (((place, client), leaf) for place, leaf in flat_leaves(value, name))


def flat_leaves(
    value: Any, at: str = "", skip: Callable[[str], bool] = lambda key: False
) -> Iterator[tuple[str, Any]]:
    """Yield ``a.b.0`` and the value there, for every value that is no mapping and no list.

    Args:
        at: the name of ``value`` itself; empty for none.
        skip: of which keys of mappings nothing is yielded.
    """
    if isinstance(value, Mapping):
        pairs = [(str(key), item) for key, item in value.items() if not skip(str(key))]
    elif isinstance(value, list):
        pairs = [(str(index), item) for index, item in enumerate(value)]
    else:
        yield at, value
        return
    for name, item in pairs:
        yield from flat_leaves(item, f"{at}.{name}" if at else name, skip)


def _part_of(key: str) -> str:
    if key in TRAINING:
        return "training"
    return "traffic" if key in TRAFFIC else "evaluation"


def _client(word: Any) -> int:
    return int(word) if str(word).isdigit() else -1


def settings_lines(differing: Difference) -> list[str]:
    """Return what differs before the first round, in words."""
    groups = {
        "changes numbers": differing.numbers,
        "own settings of one method": ["; ".join(differing.method)] if differing.method else [],
        "may change the last bits (versions, code, machine)": differing.machine,
        "changes no number": differing.elsewhere,
    }
    lines = [f"{name}: {line}" for name, group in groups.items() for line in group]
    if not differing.known:
        lines.insert(0, "one manifest has no identity: settings that change results were not "
                        "compared")
    elif not (differing.numbers or differing.method):
        lines.insert(0, "same identity: no setting that changes results differs")
    return lines


def rounds_lines(
    a: Side, b: Side, parts: Sequence[Mapping[str, Any]], differing: Difference
) -> list[str]:
    """Return where two runs part, in words; ``parts`` are their ``partings``."""
    compared = [part for part in parts if part["rounds"]]
    lines = [_parting_line(part) for part in compared]
    for letter, side, other in (("A", a, b), ("B", b, a)):
        only = sorted(set(side.records) - set(other.records))
        if only and len(only) < len(side.records):
            lines.append(f"only {letter} has round {only[0]}"
                         f"{f' to {only[-1]}' if len(only) > 1 else ''}; the others are compared")
    if compared and all(part["parting"] is None for part in compared):
        lines.append("all common rounds are equal, bit for bit")
    elif compared and differing.equal:
        lines.append(
            "same identity, versions and machine, but different bits: this should not happen"
            + (", unless the code differs: a checkout had changes of its own" if differing.dirty
               else "")
        )
    return lines


def _parting_line(part: Mapping[str, Any]) -> str:
    rounds, parting = part["rounds"], part["parting"]
    count = f"{len(rounds)} round{'s' if len(rounds) > 1 else ''}"
    if parting is None:
        return f"{part['part']}: equal bit for bit in all {count} compared " \
               f"({rounds[0]} to {rounds[-1]})"
    whose = "" if parting["client"] is None else f" of client {parting['client']}"
    return f"{part['part']}: differs from round {parting['round']} on ({count} compared); first " \
           f"difference: {parting['name']}{whose}, A {parting['a']}, B {parting['b']}"
