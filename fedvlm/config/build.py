"""The config: yacs tree, merge order, and every mistake at once.

Precedence: defaults < dataset YAML < trainer YAML < extra YAML (``--demo``) < flags < opts.
A layer is a list of entries; each entry is checked against the schema on its own, so a message can
name the file and line it came from, and every value can name its origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from fedvlm.config.aliases import family_aliases, native_aliases, refused_keys, shares_of_epochs
from fedvlm.config.option import Schema, Value, nodes, present_key, short_repr
from fedvlm.config.read import Assignment, read_yaml
from fedvlm.core.errors import ConfigError, did_you_mean

DEFAULT = "default"
COOP_N_CTX = "TRAINER.COOP.N_CTX"


def build_config(
    dataset_yaml: Path | None,
    trainer_yaml: Path | None,
    flags: Mapping[str, Value],
    opts: Sequence[str],
    schema: Schema,
    *,
    extra_yamls: Sequence[Path] = (),
    dataset_keys: Mapping[str, Value] | None = None,
    dataset_origin: str = "the folder of images",
    flag_names: Mapping[str, str] | None = None,
) -> tuple[CfgNode, dict[str, str]]:
    """Merge all layers into one frozen config.

    Args:
        dataset_yaml, trainer_yaml: files, or None.
        flags: config key to value, as the user typed it.
        opts: ``["OPTIM.LR", "0.1", ...]``, CoOp's trailing pairs.
        schema: every key there is, the trainer's own included.
        extra_yamls: more files, between trainer YAML and flags.
        dataset_keys: what a folder of images says of itself, in the place of the dataset YAML.
        dataset_origin: who says so.
        flag_names: config key to the flag's spelling, for messages and origins.

    Returns:
        The frozen tree, and for every key where its value comes from.

    Raises:
        ConfigError: one line per mistake, all of them.
    """
    merge = _Merge(schema)
    dataset = merge.yaml(dataset_yaml)
    dataset += [Assignment(k, v, dataset_origin) for k, v in (dataset_keys or {}).items()]
    trainer = merge.yaml(trainer_yaml)
    merge.mistakes += _swapped(dataset_yaml, dataset, trainer_yaml, trainer)
    layers = [dataset, trainer, *(merge.yaml(path) for path in extra_yamls)]
    names = flag_names or {}
    layers.append([Assignment(k, v, f"flag {names.get(k, k)}") for k, v in flags.items()])
    layers.append(merge.opts(opts))
    for layer in layers:
        merge.layer(layer)
    if merge.mistakes:
        raise ConfigError("\n".join(dict.fromkeys(merge.mistakes)))
    return merge.tree(), merge.origins


def unused_keys(origins: Mapping[str, str], schema: Schema) -> list[str]:
    """Return the keys that somebody set and nothing reads (Dassl's own, kept so that they load)."""
    return [k for k, where in origins.items() if where != DEFAULT and not schema[k].used]


def flat(cfg: Mapping[str, Any], prefix: str = "") -> dict[str, Value]:
    """Return the tree as ``{"FED.ROUNDS": 10, ...}``."""
    values: dict[str, Value] = {}
    for name, value in cfg.items():
        if isinstance(value, Mapping):
            values |= flat(value, f"{prefix}{name}.")
        else:
            values[f"{prefix}{name}"] = value
    return values


def config_lines(cfg: CfgNode, origins: Mapping[str, str], schema: Schema) -> list[str]:
    """Return ``KEY value   (origin)`` per key, sorted; unused keys only where somebody set them."""
    rows = []
    for key, value in sorted(flat(cfg).items()):
        option, where = schema.get(key), origins.get(key, DEFAULT)
        unused = option is not None and not option.used
        if not (unused and where == DEFAULT):
            text = repr(value) if not isinstance(value, str) or _odd(value) else value
            rows.append((f"{key} {text}", where + (", not used" if unused else "")))
    width = max((len(left) for left, _ in rows if len(left) <= 60), default=0)
    return [f"{left.ljust(width)}   ({where})" for left, where in rows]


def _odd(text: str) -> bool:
    """Whether text needs quotes to be read on one line."""
    return not text or text != text.strip() or not text.isprintable()


def yaml_keys(path: Path | None, schema: Schema) -> dict[str, Value]:
    """Return the raw values of a YAML file by key, or nothing where it cannot be read.

    For a look ahead (which trainer does a file name?); ``build_config`` reports the mistakes.
    """
    if path is None:
        return {}
    try:
        entries, _ = read_yaml(path, nodes(schema))
    except ConfigError:
        return {}
    return {e.key: e.value for e in entries}


class _Merge:
    """Values, origins and mistakes while layers go on top of each other."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.aliases = {k: a for k, a in family_aliases().items() if k not in schema}
        native = {k: a for k, a in native_aliases().items() if k not in schema}
        self.aliases |= {k: a for k, a in native.items() if a.target in schema}
        own = [k for k in schema if k.startswith("TRAINER.") and k.endswith(".N_CTX")]
        if own and COOP_N_CTX in self.aliases:  # a method with a context of its own
            self.aliases[COOP_N_CTX] = replace(self.aliases[COOP_N_CTX], target=own[0])
        self.refused = {k: why for k, why in refused_keys().items()
                        if k not in schema and k not in self.aliases}
        keys = {*schema, *self.aliases, *self.refused}
        self.inner = nodes(schema | dict.fromkeys(keys, next(iter(schema.values()))))
        self.values: dict[str, Value] = {k: o.default for k, o in schema.items()}
        self.origins: dict[str, str] = dict.fromkeys(sorted(schema), DEFAULT)
        self.mistakes: list[str] = []

    def yaml(self, path: Path | None) -> list[Assignment]:
        """Return the entries of a file; its mistakes are noted."""
        if path is None:
            return []
        try:
            entries, mistakes = read_yaml(path, self.inner)
        except ConfigError as error:
            entries, mistakes = [], [str(error)]
        self.mistakes += mistakes
        return shares_of_epochs(entries, self.schema)

    def opts(self, opts: Sequence[str]) -> list[Assignment]:
        """Return trailing ``KEY VALUE`` pairs as entries."""
        if len(opts) % 2:
            self.mistakes.append(f"opts: '{opts[-1]}' has no value; settings are KEY VALUE pairs")
        pairs = zip(opts[::2], opts[1::2], strict=False)
        last = {key: Assignment(key, value, "opts") for key, value in pairs}
        return list(last.values())  # a key typed twice: the last one counts, as in yacs

    def layer(self, entries: Iterable[Assignment]) -> None:
        """Put one layer on top."""
        set_by: dict[str, tuple[Value, str]] = {}
        for entry in entries:
            target = self._one(entry)
            if target is None:
                continue
            key, value, origin = target
            if key in set_by and set_by[key][0] != value:
                self.mistakes.append(
                    f"{entry.where}: {entry.key} sets {key} to {short_repr(value)}, but "
                    f"{set_by[key][1]} sets it to {short_repr(set_by[key][0])}; keep one"
                )
                continue
            set_by[key] = (value, entry.where)
            self.values[key], self.origins[key] = value, origin

    def _one(self, entry: Assignment) -> tuple[str, Value, str] | None:
        """Return our key, its value and its origin; None where the entry sets nothing."""
        key, where = present_key(entry.key, entry.value, self.schema), entry.where
        if key in self.refused:
            if key.startswith("TRAINER.") or entry.value not in ("", False, "False", "false"):
                self.mistakes.append(f"{where}: {key} {self.refused[key]}")
            return None
        alias = self.aliases.get(key)
        option = alias.option if alias else self.schema.get(key)
        if option is None:
            self.mistakes.append(f"{where}: unknown key '{key}'{self._near(key)}")
            return None
        origin = where.rpartition(":")[0] if where.rpartition(":")[2].isdigit() else where
        try:
            value = option.parse(entry.value)
            if alias is None:
                return key, value, origin
            value = alias.convert(value)
            if value is None:
                return None
            return alias.target, self.schema[alias.target].parse(value), f"{origin}, as {key}"
        except ValueError as error:
            self.mistakes.append(f"{where}: {key} {error}")
            return None

    def _near(self, key: str) -> str:
        """Suggest within the section first: a slip in the last word is the usual mistake."""
        keys = [*self.schema, *self.aliases, *self.refused]
        if key in self.inner:
            return f" (this is a section: set one of its keys, {key}.*)"
        section = key.rpartition(".")[0]
        beside = [k for k in keys if section and k.rpartition(".")[0] == section]
        last = {k.rpartition(".")[2]: k for k in beside}
        near = did_you_mean(key.rpartition(".")[2], last)
        for name, whole in last.items():
            if near == f"; did you mean '{name}'?":
                return f"; did you mean '{whole}'?"
        ends = [k for k in self.schema if k.endswith(f".{key.upper()}")]
        own = [k for k in ends if k.startswith("TRAINER.")] or ends  # MIX for TRAINER.MINE.MIX
        return did_you_mean(own[0], own) if own else did_you_mean(key, [*keys, *self.inner])

    def tree(self) -> CfgNode:
        """Return the frozen yacs tree."""
        root = nest_keys(self.values)
        root.freeze()
        return root


def nest_keys(values: Mapping[str, Value]) -> CfgNode:
    """Return the yacs tree of dotted keys, not frozen."""
    root = CfgNode()
    for key in sorted(values):
        *path, name = key.split(".")
        node = root
        for part in path:
            node = node.setdefault(part, CfgNode())
        node[name] = values[key]
    return root


def _swapped(
    dataset_yaml: Path | None,
    dataset: Sequence[Assignment],
    trainer_yaml: Path | None,
    trainer: Sequence[Assignment],
) -> list[str]:
    """Return an error message where a trainer's file is given as the dataset's, or the reverse."""
    names_data = any(e.key == "DATASET.NAME" for e in trainer)
    lacks_data = bool(dataset) and not any(e.key.startswith("DATASET.") for e in dataset)
    if names_data and lacks_data:
        return [f"{dataset_yaml} and {trainer_yaml}: dataset and trainer config are swapped"]
    if names_data:
        return [
            f"{trainer_yaml}: is a dataset config (it sets DATASET.NAME); "
            "give it with --dataset-config-file"
        ]
    if lacks_data and any(e.key.startswith(("TRAINER.", "OPTIM.")) for e in dataset):
        return [
            f"{dataset_yaml}: is a trainer config (it sets no DATASET key); "
            "give it with --trainer-config-file"
        ]
    return []
