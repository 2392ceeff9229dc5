"""``tuned.json``: what a tuning chose, sealed; and a plan with those values.

An entry of a plan takes the values of that entry of the tuning which has the same method and the
same backbone, trains the same and fine-tunes alike (as the configs resolve, both ways), and whose
own options it has too. Of several it is the one with most of them, then the one whose local work is
as the plan has it: held at what the plan sets, or searched where the plan sets none. So an
ablation, which differs in options, takes its method's values, and ``FedAvg`` with a linear head
those tuned with it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedvlm.config.federation import EPOCHS, STEPS, WORK
from fedvlm.config.keys import default_schema
from fedvlm.config.read import find_config, lookup
from fedvlm.config.sections import read_keys
from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError, fold
from fedvlm.runs.seal import seal_of, seal_text
from fedvlm.sweep.plan import PlanEntry, SweepPlan
from fedvlm.sweep.tune.values import load_schema, parse_value, read_values

FORMAT = 1
BACKBONE = ("MODEL.BACKBONE.NAME", "MODEL.INIT_WEIGHTS")
TUNED = ("OPTIM.", "TRAINER.", "PEFT.")
TRAINS = ("PEFT.", "FED.FINETUNE_")
SAY_WHICH = ("PEFT.", "TRAINER.", "FED.FINETUNE_", "FED.AGGREGATOR", "FED.SERVER_OPTIM")


# What a reader relies on: of the plan, and of each entry.
PLAN: Mapping[str, type] = {"common": dict, "seeds": list, "datasets": list}
ENTRY: Mapping[str, type] = {"label": str, "trainer": str, "settings": dict, "values": dict,
                             "space": list, "trials": list}
OLDER = ("space", "trials")  # which older files lack


def write_tuned(path: Path, record: Mapping[str, Any]) -> None:
    """Write the file with its seal."""
    files.write_text(path, seal_text({"format": FORMAT, **record}))


def read_tuned(path: Path) -> dict[str, Any]:
    """Return what a ``tuned.json`` says.

    Raises:
        DataError: it is not there, no such file, or damaged.
    """
    with files.explain_errors(path):
        data = path.read_bytes()
    try:
        record = json.loads(data)
        fits = record["format"] == FORMAT and isinstance(record["entries"], list)
        seal = record["seal"]
    except (ValueError, KeyError, TypeError, RecursionError):
        fits, record, seal = False, {}, ""
    if not fits:
        raise DataError(f"{path}: is not a tuned.json of fedvlm tune (format {FORMAT})")
    if seal != seal_of(record):
        raise DataError(
            f"{path}: is damaged or was edited (its checksum does not match); fedvlm tune "
            "rewrites it from its runs"
        )
    if record["entries"]:
        _check_kinds(path, "plan", record.get("plan"), PLAN)
    for at, entry in enumerate(record["entries"]):
        _check_kinds(path, f"entries.{at}", entry, ENTRY)
        _check_values(path, entry)
    return dict(record)


def _check_kinds(path: Path, where: str, part: Any, kinds: Mapping[str, type]) -> None:
    """Refuse a part of the file that is not of the kinds that ``write_tuned`` gives it.

    Raises:
        DataError: names the place.
    """
    for key, kind in kinds.items():
        value = part.get(key) if isinstance(part, dict) else kind
        inner = {"space": str, "trials": dict, "datasets": dict, "seeds": int}.get(key)
        if value is None and key in OLDER:
            continue
        items = value if inner and isinstance(value, list) else ()
        if not isinstance(value, kind) or not all(isinstance(i, inner or object) for i in items):
            raise DataError(f"{path}: is not a tuned.json of fedvlm tune ({where}.{key} is "
                            "missing or of another kind)")


def _check_values(path: Path, entry: Mapping[str, Any]) -> None:
    """Refuse values of keys that are not tuned: places, names, what the plan decides.

    Raises:
        DataError: names the key.
    """
    space = {str(knob).partition(" ")[0] for knob in entry.get("space") or ()}
    for key in entry["values"]:
        tunable = key in WORK or (key.startswith(TUNED) and key != "TRAINER.NAME")
        if not tunable or (space and key not in space and not key.startswith("OPTIM.")):
            raise DataError(f"{path}: '{entry.get('label')}' has a value for {key}, which is not "
                            "in the space that was searched; nothing of it is used")


def apply_tuned(
    plan: SweepPlan, record: Mapping[str, Any], anywhere: bool = False
) -> tuple[SweepPlan, list[str]]:
    """Return the plan with tuned values, and sentences on whom they come from.

    Entries on another backbone than the values get none, but for ``anywhere``: those of the first
    entry that fits. What the plan sets itself (common, a data set, the entry, an axis, the command
    line) is no tuned value either.

    Raises:
        ConfigError: the values were tuned on a seed of the plan; a value that its option refuses.
    """
    content, tuning = plan.content(), record["plan"]
    _check_seeds(content, tuning)
    here = [_backbones(content, trainer) for trainer in content["trainers"]]
    there = {other["label"]: _backbones(tuning, other["settings"]) for other in record["entries"]}
    fixed = set(plan.common).union(plan.override, plan.axes, *(d.settings for d in plan.datasets))
    chosen = [
        (e, _match(plan, e, record, [
            other for other in record["entries"]
            if anywhere or backbones <= there[other["label"]]
        ], fixed)) for e, backbones in zip(plan.trainers, here, strict=True)
    ]
    trainers, dropped = list[PlanEntry](), dict[str, list[str]]()
    for entry, match in chosen:
        values = dict(match["values"]) if match else {}
        for key in [k for k in values if k in fixed or k in entry.settings]:
            del values[key]
            dropped.setdefault(key, []).append(entry.label)
        trainers.append(replace(entry, tuned=values))
    notes = [f"{e.label} uses the values tuned for {match['label']}"
             for e, match in chosen if match and match["label"] != e.label]
    notes += [f"the plan sets {key}, so its tuned values are not used: {', '.join(labels)}"
              for key, labels in dropped.items()]
    places = set[str]().union(*there.values())
    elsewhere = [e.label for (e, _), names in zip(chosen, here, strict=True)
                 if places and not names <= places]
    if elsewhere:
        strange = sorted(set[str]().union(*here) - places)
        what = (f"also used on {', '.join(strange)} (--tuned-anywhere)" if anywhere else
                f"on {', '.join(strange)} methods use their defaults: {', '.join(elsewhere)}")
        notes.append(f"the values were tuned on {', '.join(sorted(places))}; {what}")
    bare = [e.label for e, match in chosen
            if match is None and (anywhere or e.label not in elsewhere)]
    if bare:
        notes.append(f"no tuned values for {', '.join(bare)}: they use their defaults")
    return replace(plan, trainers=tuple(trainers)), notes


def _check_seeds(plan: Mapping[str, Any], tuning: Mapping[str, Any]) -> None:
    both = sorted(set(plan["seeds"]) & set(tuning["seeds"]))
    if both:
        raise ConfigError(
            f"--tuned: the values were chosen on seed {', '.join(map(str, both))}, which this "
            f"sweep also uses; choose seeds other than {', '.join(map(str, tuning['seeds']))}"
        )


def _backbones(plan: Mapping[str, Any], trainer: Mapping[str, Any]) -> set[str]:
    """Return the backbones of an entry of a plan's content as messages name them.

    A folder of weights goes by its name: paths differ between machines.
    """
    names, schema = set(), default_schema()
    axes = {key: words for key, words in plan.get("axes", {}).items() if key in BACKBONE}
    for dataset, *values in itertools.product(plan["datasets"], *axes.values()):
        config = {**plan["common"], **dataset, **trainer, **dict(zip(axes, values, strict=True))}
        words = [str(config.get(key) or schema[key].default) for key in BACKBONE]
        folders = [":".join([kind, Path(rest).name]) if rest else kind
                   for kind, _, rest in (word.partition(":") for word in words)]
        names.add(" ".join(filter(None, folders)))
    return names


def trains_of(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what each entry, by its label, trained and how it fine-tuned, as identities have it.

    Raises:
        FedvlmError: a method or a key of it is gone.
    """
    common = record["plan"]["common"]
    out = {}
    for entry in record["entries"]:
        words = {k: v for k, v in (common | entry["settings"]).items() if k.startswith(TRAINS)}
        load_schema(entry["trainer"])  # the file names the method, no plan does
        schema, _ = _defaults(entry["trainer"], "")
        trained = _trained(entry["trainer"], words)
        out[entry["label"]] = {k: v for k, v in read_keys(trained, schema).items()
                               if k.startswith(TRAINS)}
    return out


def _match(
    plan: SweepPlan, entry: PlanEntry, record: Mapping[str, Any], others: list[dict[str, Any]],
    fixed: Collection[str],
) -> dict[str, Any] | None:
    common = record["plan"]["common"]
    settings = dict(plan.common) | dict(entry.settings) | dict(plan.override)
    others = [other for other in others if fold(other["trainer"]) == fold(entry.name)]
    trained = _trained(entry.name, settings, entry.config) if others else {}
    same = []
    for other in others:
        asked = {k: v for k, v in (common | other["settings"]).items() if k.startswith(SAY_WHICH)}
        options = [k for k in asked if not k.startswith(TRAINS)]
        if all(settings.get(k) == asked[k] for k in options) and (
                trained == _trained(entry.name, asked)):
            alike = _same_work(common | other["settings"], other["values"], settings, fixed)
            same.append((len(options), alike, other))
    return max(same, key=lambda one: one[:2], default=(0, False, None))[2]


def _same_work(
    held: Mapping[str, str], values: Mapping[str, str], settings: Mapping[str, str],
    fixed: Collection[str],
) -> bool:
    """Return whether a tuning held local work as a plan does, or searched it as the plan is free.

    Args:
        held: what the tuning set itself; values: what it chose.
        settings: what the plan sets for an entry; fixed: keys that it sets for all.
    """
    if any(key in values for key in WORK):
        return not any(key in settings or key in fixed for key in WORK)
    return _work(settings) == _work(held)


def _work(settings: Mapping[str, str]) -> tuple[str, str]:
    """Return the key of local work that counts, and its word: a number of steps, else epochs."""
    return (STEPS, settings[STEPS]) if settings.get(STEPS, "0") != "0" else (
        EPOCHS, settings.get(EPOCHS, ""))


def _trained(name: str, settings: Mapping[str, str], file: str = "") -> dict[str, Any]:
    """Return what a method trains and how it fine-tunes, its own defaults included."""
    schema, config = _defaults(name, file)
    own = {k: parse_value(schema, k, v, name) for k, v in settings.items() if k.startswith(TRAINS)}
    return {k: v for k, v in config.items() if k.startswith(TRAINS)} | own


@lru_cache(256)
def _defaults(name: str, file: str) -> tuple[Any, dict[str, Any]]:
    """Return a method's keys, and their values as its file says; ``file``: not the usual one."""
    trainer, schema = load_schema(name, named=True)
    path = find_config(file, "trainers") if file else lookup(trainer.name, "trainers")
    return schema, read_values(path, schema)
