"""The plan of a sweep: which data sets, methods, seeds, shots and axes, from YAML or from words.

A plan file::

    name: tiny                      # by default the file's name
    root: DATA/                     # = common: {root: DATA/}
    output_dir: output              # = common: {output-dir: output}
    common: {backbone: tiny, rounds: 10, OPTIM.MOMENTUM: 0.9}   # flags without dashes, or keys
    datasets: [digits, {name: eurosat, partition: dirichlet, beta: 0.3}]
    trainers: [FedAvg, {name: FedAvg, tag: ft, finetune-epochs: 5}]
    seeds: [1, 2, 3]
    shots: [1, 2, 4]                # optional
    axes: {OPTIM.LR: [0.01, 0.1]}   # optional: every combination; the values become the run's tag

Later wins: common, dataset, tuned values, trainer, shots and axes, words of the command line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from fedvlm.config.keys import default_schema
from fedvlm.config.option import Schema, literal
from fedvlm.config.read import read_yaml
from fedvlm.core.errors import ConfigError, did_you_mean, fold
from fedvlm.job.flags import by_name, peft_keys

Settings = dict[str, str]  # config key, or TRAINER.*.KEY -> the word a flag would hold
PARTS = ("name", "root", "output_dir", "common", "datasets", "trainers", "seeds", "shots", "axes")
OF_SWEEP = ("SEED", "DATA_SEED", "DATASET.NAME", "TRAINER.NAME", "RESUME")  # not for mappings


@dataclass(frozen=True)
class PlanEntry:
    """A data set or a method of the plan.

    Attributes:
        name: as the command line takes it: a name, a YAML file, ``file.py:Class``.
        label: what the screen shows; unique among its kind.
        settings: its own config keys.
        config: a trainer's own YAML file; empty for the usual one.
        tuned: what a tuning chose for it; its own settings win.
    """

    name: str
    label: str
    settings: Settings = field(default_factory=dict)
    config: str = ""
    tuned: Settings = field(default_factory=dict)


@dataclass(frozen=True)
class SweepPlan:
    """All that a sweep is to do; ``axes`` maps a config key to its values."""

    name: str
    common: Settings
    datasets: tuple[PlanEntry, ...]
    trainers: tuple[PlanEntry, ...]
    seeds: tuple[int, ...] = (1,)
    shots: tuple[int, ...] = ()
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    override: Settings = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        """Return the plan as plain values, for ``plan.yaml`` and for a name."""
        def entry(e: PlanEntry, tag: str) -> dict[str, Any]:
            more = {"trainer-config-file": e.config} if e.config else {}
            return {"name": e.name, tag: e.label} | more | dict(e.tuned) | dict(e.settings)

        return {
            "name": self.name, "common": dict(self.common) | dict(self.override),
            "datasets": [entry(e, "label") for e in self.datasets],
            "trainers": [entry(e, "label") for e in self.trainers],
            "seeds": list(self.seeds), "shots": list(self.shots),
            "axes": {k: list(v) for k, v in self.axes.items()},
        }


def read_plan(path: Path) -> SweepPlan:
    """Return the plan of a YAML file.

    Raises:
        ConfigError: all mistakes of the file, one line each.
    """
    parts, mistakes = read_sections(path, PARTS, "plan")
    return PlanReader(str(path), mistakes).plan(parts, path.stem)


def read_sections(path: Path, known: Sequence[str], what: str) -> tuple[dict[str, Any], list[str]]:
    """Return the parts of a YAML file by name, and its mistakes; dashes count as underscores.

    Top-level mappings, which ``read_yaml`` checks and does not descend into, are among them.

    Args:
        known: names of parts.
        what: of which the parts are, for messages.

    Raises:
        ConfigError: no valid YAML.
    """
    entries, mistakes = read_yaml(path, ())
    for entry in entries:
        if entry.key.replace("-", "_") not in known:
            near = did_you_mean(entry.key, known) or f" (known: {', '.join(known)})"
            if "common" in known and (fold(f"--{entry.key}") in by_name() or entry.key.isupper()):
                near = f"; settings stand below common: common: {{{entry.key}: VALUE}}"
            mistakes.append(f"{entry.where}: unknown part of a {what}: '{entry.key}'{near}")
    try:
        whole = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from None
    there = {entry.key.replace("-", "_") for entry in entries}.intersection(known)
    named = {str(k).replace("-", "_"): v for k, v in whole.items()}  # a bare 1 is a number
    return {k: v for k, v in named.items() if k in there}, mistakes


class PlanReader:
    """Turns plain values into a ``SweepPlan`` and collects every mistake on the way."""

    def __init__(self, where: str, mistakes: list[str] | None = None) -> None:
        self.where, self.mistakes = where, mistakes if mistakes is not None else []
        self.flags = by_name()
        self.schema = default_schema()

    def plan(self, parts: Mapping[str, Any], name: str) -> SweepPlan:
        """Return the plan.

        Raises:
            ConfigError: all mistakes, one line each.
        """
        common = self.settings(parts.get("common") or {}, "common")
        for part, key in (("root", "DATASET.ROOT"), ("output_dir", "OUTPUT_DIR")):
            if parts.get(part) is not None:
                common[key] = str(parts[part])
        shots = parts.get("shots")
        plan = SweepPlan(
            str(parts.get("name") or name), common,
            self.entries(parts.get("datasets"), "datasets"),
            self.entries(parts.get("trainers"), "trainers"),
            self.numbers(parts.get("seeds", [1]), "seeds"),
            self.numbers(shots, "shots", least=-1) if shots is not None else (),
            self.axes(parts.get("axes") or {}),
        )
        if self.mistakes:
            raise ConfigError("\n".join(self.mistakes))
        return plan

    def mistake(self, text: str) -> None:
        """Note a mistake with its place."""
        self.mistakes.append(f"{self.where}: {text}")

    def numbers(self, value: Any, part: str, least: int = 0) -> tuple[int, ...]:
        """Return a list of distinct whole numbers; one number is a list of one."""
        values = value if isinstance(value, list) else [value]
        good = [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= least]
        if not values or len(good) < len(values):
            self.mistake(f"{part} expects whole numbers such as [1, 2, 3], got {value!r}")
        elif len(set(good)) < len(good):
            self.mistake(f"{part} contains a number twice: {value!r}")
        return tuple(good)

    def axes(self, value: Any) -> dict[str, tuple[str, ...]]:
        """Return config key -> its values."""
        if not isinstance(value, dict):
            self.mistake(f"axes expects KEY: [values], got {value!r}")
            return {}
        axes: dict[str, tuple[str, ...]] = {}
        for key, values in value.items():
            if not isinstance(values, list) or not values:
                self.mistake(f"axes: {key} expects a list of values, got {values!r}")
                continue
            keys = [self.settings({key: v}, "axes") for v in values]
            if all(len(k) == 1 for k in keys):
                name = next(iter(keys[0]))
                axes[name] = tuple(k[name] for k in keys)
                if _twice(name, axes[name], self.schema):
                    self.mistake(f"axes: {key} names a value twice: {values!r}")
            elif all(keys):
                self.mistake(f"axes: {key} sets several keys at once; choose one of "
                             f"{list(keys[0])}")
        return axes

    def entries(self, value: Any, part: str) -> tuple[PlanEntry, ...]:
        """Return the data sets or methods of a list of names and mappings with ``name``."""
        if not isinstance(value, list) or not value:
            self.mistake(f"{part} expects a list of names, or of {{name: ..., flag: value}}")
            return ()
        entries = [e for item in value if (e := self.entry(item, part)) is not None]
        labels = [fold(e.label) for e in entries]
        word = "label" if part == "datasets" else "tag"
        twins = {fold(e.label): e for e in entries if labels.count(fold(e.label)) > 1}
        cure = "name it once" if self.where == "words" else f"give one of them a {word}:"
        for entry in twins.values():
            self.mistake(f"{part} has '{entry.label}' twice; {cure}")
        return tuple(entries)

    def entry(self, item: Any, part: str) -> PlanEntry | None:
        """Return one data set or method; None after a mistake."""
        pairs = dict(item) if isinstance(item, dict) else {"name": item}
        name = pairs.pop("name", None)
        if not isinstance(name, str) or not name.strip():
            self.mistake(f"{part}: {item!r} has no name")
            return None
        if part == "datasets":
            label = str(pairs.pop("label", None) or Path(name).stem)
            return PlanEntry(name, label, self.settings(pairs, f"{part}: {label}"))
        config = str(pairs.pop("trainer-config-file", "") or "")
        tag = pairs.get("tag")
        method = name.rpartition(":")[2] if ".py" in name else name
        label = str(pairs.pop("label", None) or (f"{method} ({tag})" if tag else method))
        return PlanEntry(name, label, self.settings(pairs, f"{part}: {label}"), config)

    def settings(self, pairs: Any, where: str) -> Settings:
        """Return flags (without dashes) and config keys of a mapping as config keys."""
        if not isinstance(pairs, dict):
            self.mistake(f"{where}: expected flag: value pairs, got {pairs!r}")
            return {}
        settings: Settings = {}
        for word, value in pairs.items():
            if value is None or isinstance(value, dict):
                self.mistake(f"{where}: '{word}' has no value")
                continue
            keys = self._keys(str(word), str(value), where)
            for key in [k for k in keys if k in OF_SWEEP]:
                self.mistake(f"{where}: '{word}' is set by the sweep itself; use seeds, "
                             "datasets, trainers")
                keys.pop(key)
            settings |= keys
        return settings

    def _keys(self, word: str, value: str, where: str) -> Settings:
        if word in self.schema or word.startswith("TRAINER."):
            return {word: value}
        flag = self.flags.get(fold(f"--{word}"))
        if flag is not None and flag.key:
            return {flag.key: value}
        if flag is not None and flag.dest == "peft":
            try:
                return peft_keys(value)
            except ConfigError as mistake:
                self.mistake(f"{where}: {mistake}")
                return {}
        names = [n.lstrip("-") for f in self.flags.values() if f.key for n in f.names]
        near = did_you_mean(word, [*names, *self.schema])
        self.mistake(
            f"{where}: '{word}' is not a flag or config key of a run"
            f"{near or ' (flags: fedvlm run --help; keys: fedvlm config)'}"
        )
        return {}


def select_entries(
    entries: Sequence[PlanEntry], words: Sequence[str], what: str
) -> tuple[PlanEntry, ...]:
    """Return those entries of a plan that ``words`` name by label or name, in the plan's order.

    Raises:
        ConfigError: a word that names none.
    """
    for word in words:
        if not any(fold(word) in (fold(e.label), fold(e.name)) for e in entries):
            labels = [e.label for e in entries]
            raise ConfigError(
                f"--{what}: the plan has no '{word}'{did_you_mean(word, labels)} "
                f"(it has: {', '.join(labels)})"
            )
    wanted = {fold(w) for w in words}
    return tuple(e for e in entries if {fold(e.label), fold(e.name)} & wanted)


def with_axes(plan: SweepPlan) -> SweepPlan:
    """Return the plan with an axis for each number that its command line gives several values.

    Raises:
        ConfigError: a value twice.
    """
    schema = default_schema()
    axes = {k: tuple(filter(None, map(str.strip, v.split(",")))) for k, v in plan.override.items()
            if "," in v and k in schema and schema[k].kind in (int, float)}
    for key, values in axes.items():
        if _twice(key, values, schema):
            raise ConfigError(f"{key} has a value twice: {' '.join(values)}")
    rest = {k: v for k, v in plan.override.items() if k not in axes}
    return replace(plan, override=rest, axes={**plan.axes, **axes})


def _twice(key: str, words: Sequence[str], schema: Schema) -> bool:
    """Return whether two words of an axis are one value, such as 1e-3 and 0.001."""
    values = []
    for word in words:
        try:
            values.append(schema[key].parse(word) if key in schema else literal(word))
        except ValueError:  # the cells say what is wrong with it
            values.append(word)
    return any(value in values[:at] for at, value in enumerate(values))


def name_by_content(plan: SweepPlan) -> SweepPlan:
    """Return a plan made of words with a name of its own: the same words, the same name."""
    content = {k: v for k, v in plan.content().items() if k != "name"}
    mark = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
    return replace(plan, name=f"words-{mark}")
