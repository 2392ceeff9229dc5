"""One side of a comparison: a run folder, finished or not, as plain data.

Where two runs differ before their first round: settings, data, code, machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.report.collect import Run, collect
from fedvlm.runs import manifest
from fedvlm.runs.identity import identity_difference
from fedvlm.runs.metrics import read_metrics, totals


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
    run: Run | None
    manifest: Mapping[str, Any]
    records: Mapping[int, Mapping[str, Any]]
    config: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether the run has results."""
        return self.run is not None

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything that changes the run's numbers, as the manifest names it."""
        found = self.manifest.get("identity")
        return found if isinstance(found, Mapping) else {}

    @property
    def name(self) -> str:
        """The method's name with trainable set and tag; of an unfinished run without the set."""
        if self.run is not None:
            return self.run.method
        keys = self.identity.get("config", {})
        tag = self.config.get("TAG") or ""
        return f"{keys.get('TRAINER.NAME', 'unknown method')}" + (f" ({tag})" if tag else "")

    @property
    def seeds(self) -> tuple[Any, Any]:
        """Model seed and data seed."""
        keys = self.identity.get("config", {})
        told = self.run.protocol if self.run is not None else {}
        return told.get("seed", keys.get("SEED")), told.get("data_seed", keys.get("DATA_SEED"))

    @property
    def data_digest(self) -> str | None:
        """Digest of data and partition; None where nothing names it."""
        told = self.run.protocol if self.run is not None else {}
        found = told.get("data_digest") or self.identity.get("data")
        return str(found) if found else None

    @cached_property
    def partition_digest(self) -> str | None:
        """Digest of the clients' images alone (``partition.json``); None where it is not there."""
        try:
            found = json.loads((self.path / "partition.json").read_bytes())
        except (OSError, ValueError):
            return None
        return str(found["sha256"]) if isinstance(found, dict) and "sha256" in found else None

    @property
    def evaluated(self) -> list[int]:
        """Rounds with an evaluation, in order."""
        return sorted(r for r, record in self.records.items() if "personal" in record)

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
        known = self.run.info.get("totals")
        found = dict(known) if isinstance(known, Mapping) else totals(list(self.records.values()))
        return found | {"trainable": self.run.info.get("trainable")}


def side(folder: Path) -> Side:
    """Read the one run at or below ``folder``, finished or not.

    Raises:
        ConfigError: several runs lie there.
        DataError: none does, or what lies there cannot be read.
    """
    found = collect([folder])
    paths = [run.path for run in found.runs] + found.unfinished
    if not paths:
        raise DataError(
            found.problems[0] if found.problems else
            f"no run in {folder}; give a folder with manifest.json, as `results:` names it at the "
            "end of a run"
        )
    if len(paths) + len(found.problems) > 1:
        raise ConfigError(
            f"{folder} holds {len(paths) + len(found.problems)} runs, the first in {paths[0]}; "
            "name one of them, or compare two folders of seeds with --over-seeds"
        )
    return read(paths[0], found.runs[0] if found.runs else None)


def sides(folder: Path) -> list[Side]:
    """Read all finished runs below ``folder``.

    Raises:
        DataError: there is none.
    """
    found = collect([folder])
    if not found.runs:
        why = "; ".join([*found.problems[:1], f"{len(found.unfinished)} unfinished"])
        raise DataError(f"no finished run below {folder} ({why}); --over-seeds wants one per seed")
    left = [f"{path} is unfinished and left out" for path in found.unfinished] + found.problems
    first, *others = [read(run.path, run) for run in found.runs]
    return [Side(first.path, first.run, first.manifest, first.records, first.config,
                 (*first.notes, *left)), *others]


def read(path: Path, run: Run | None) -> Side:
    """Read a run folder; what a finished run may lack becomes a note.

    Raises:
        DataError: the manifest of an unfinished run cannot be read.
    """
    notes: list[str] = []
    shell = run or Run(path, {}, {}, {})
    manifest = _known(shell.manifest, notes if run else None)
    config = _flat(_known(shell.config, notes))
    records, lost = read_metrics(path / "metrics.jsonl")
    notes += [f"{path}: {note}" for note in lost]
    if not records:
        notes.append(f"{path / 'metrics.jsonl'} is missing or empty: rounds cannot be compared")
    by_round = {r["round"]: r for r in records if type(r.get("round")) is int}
    return Side(path, run, manifest, by_round, config, tuple(notes))


def _known(load: Any, notes: list[str] | None) -> dict[str, Any]:
    """Return what ``load`` gives, or nothing and a note; without ``notes`` its error is raised."""
    try:
        return dict(load())
    except (DataError, ValueError, TypeError, yaml.YAMLError) as error:
        if notes is None:
            raise DataError(str(error)) from error
        notes.append(f"{error}; the configs were not compared in full")
        return {}


def _flat(node: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in node.items():
        place = f"{at}.{key}".lstrip(".")
        if isinstance(value, Mapping):
            found |= _flat(value, place)
        else:
            found[place] = value
    return found


def label_of(side_: Side, letter: str, total: Sequence[int]) -> str:
    """Return a side in words: letter, method, rounds, folder."""
    state = "finished" if side_.finished else "unfinished"
    rounds = f"{state}, rounds up to {max(total)}" if total else f"{state}, no rounds recorded"
    seeds = f"seed {side_.seeds[0]}, data seed {side_.seeds[1]}"
    return f"{letter}: {side_.name}, {seeds}, {rounds}, in {side_.path}"


@dataclass(frozen=True)
class Difference:
    """What differs, each ``KEY: A -> B``.

    Attributes:
        numbers: the runs' identities: whatever changes numbers.
        method: of these, settings that only one of two methods has.
        elsewhere: config keys outside the identity: where things lie, how much is said.
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


def difference(a: Side, b: Side) -> Difference:
    """Return where two runs differ in config, data, code and machine."""
    machine = manifest.differences(_session(a), _session(b))
    outside = identity_difference(_outside(a), _outside(b)) if a.config and b.config else []
    dirty = any((_session(side).get("git") or {}).get("changed") for side in (a, b))
    if not (a.identity and b.identity):
        return Difference([], [], outside, machine, known=False, dirty=dirty)
    numbers: list[str] = []
    method: list[str] = []
    for line in identity_difference(a.identity, b.identity):
        short = line.removeprefix("config.")
        one_sided = ": absent -> " in short or short.endswith(" -> absent")
        own = short.startswith("TRAINER.") and one_sided
        (method if own else numbers).append(short)
    return Difference(numbers, method, outside, machine, dirty=dirty)


def moved(side: Side) -> list[str]:
    """Return what changed between the sessions of one run: its rounds are not of one machine."""
    sessions = side.manifest.get("sessions")
    known = [s for s in sessions if isinstance(s, dict)] if isinstance(sessions, list) else []
    found: dict[str, None] = {}
    for later in known[1:]:
        found |= dict.fromkeys(manifest.differences(known[0], later))
    return list(found)


def _outside(side: Side) -> dict[str, Any]:
    """Return the config keys that are not part of the identity, other trainers' nodes left out."""
    inside = side.identity.get("config", {})
    return {
        k: v for k, v in side.config.items() if k not in inside and not k.startswith("TRAINER.")
    }


def _session(side: Side) -> Mapping[str, Any]:
    sessions = side.manifest.get("sessions")
    first = sessions[0] if isinstance(sessions, list) and sessions else None
    return first if isinstance(first, Mapping) else {}
