"""``tuned.json``: what a tuning chose, sealed; and a plan with those values.

An entry of a plan takes the values of that entry of the tuning which has the same method and whose
own settings (what is trained, the method's node, the final fine-tuning) it has too; of several the
one with most of them. So an ablation takes its method's values, and ``FedAvg`` with a linear head
those that were tuned with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedvlm.config.keys import default_schema
from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError, fold
from fedvlm.runs.seal import seal_of, sealed
from fedvlm.sweep.plan import PlanEntry, SweepPlan

FORMAT = 1
BACKBONE = ("MODEL.BACKBONE.NAME", "MODEL.INIT_WEIGHTS")
SAY_WHICH = ("PEFT.", "TRAINER.", "FED.FINETUNE_", "FED.AGGREGATOR", "FED.SERVER_OPTIM")


def write_tuned(path: Path, record: Mapping[str, Any]) -> None:
    """Write the file with its seal."""
    files.write_text(path, sealed({"format": FORMAT, **record}))


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
        raise DataError(f"{path}: is no file of fedvlm tune (tuned.json, format {FORMAT})")
    if seal != seal_of(record):
        raise DataError(
            f"{path}: is damaged or was edited (its seal does not fit); fedvlm tune writes it "
            "again from the tuning's runs"
        )
    return dict(record)


def with_tuned(plan: SweepPlan, record: Mapping[str, Any]) -> tuple[SweepPlan, list[str]]:
    """Return the plan with tuned values, and sentences on whom they come from.

    Raises:
        ConfigError: the values were tuned on a seed of the plan, or on another backbone.
    """
    _check(plan.content(), record["plan"])
    chosen = [(e, _match(plan, e, record)) for e in plan.trainers]
    trainers = tuple(replace(e, tuned=dict(match["values"])) if match else e for e, match in chosen)
    notes = [f"{e.label} takes the values tuned for {match['label']}"
             for e, match in chosen if match and match["label"] != e.label]
    bare = [e.label for e, match in chosen if match is None]
    if bare:
        notes.append(f"no tuned values for {', '.join(bare)}: they run as they come")
    return replace(plan, trainers=trainers), notes


def _check(plan: Mapping[str, Any], tuning: Mapping[str, Any]) -> None:
    both = sorted(set(plan["seeds"]) & set(tuning["seeds"]))
    if both:
        raise ConfigError(
            f"--tuned: the values were chosen on seed {', '.join(map(str, both))}, which this "
            f"sweep has too; give it other seeds than {', '.join(map(str, tuning['seeds']))}"
        )
    here, there = _backbones(plan), _backbones(tuning)
    if here - there:
        raise ConfigError(
            f"--tuned: the values were chosen on {', '.join(sorted(there))}, this sweep has "
            f"{', '.join(sorted(here - there))}; tune on it, or sweep without --tuned"
        )


def _backbones(plan: Mapping[str, Any]) -> set[str]:
    """Return the backbones of a plan's content as messages name them; a folder by its name."""
    names = set()
    for dataset in plan["datasets"]:
        for trainer in plan["trainers"]:
            config = {**plan["common"], **dataset, **trainer}
            words = [str(config.get(key) or default_schema()[key].default) for key in BACKBONE]
            folders = [":".join([kind, Path(rest).name]) if rest else kind
                       for kind, _, rest in (word.partition(":") for word in words)]
            names.add(" ".join(filter(None, folders)))
    return names


def _match(
    plan: SweepPlan, entry: PlanEntry, record: Mapping[str, Any]
) -> dict[str, Any] | None:
    settings = dict(plan.common) | dict(entry.settings) | dict(plan.override)
    common = record["plan"]["common"]
    same = [
        other for other in record["entries"] if fold(other["trainer"]) == fold(entry.name)
        and all(settings.get(k) == v for k, v in (common | other["settings"]).items()
                if k.startswith(SAY_WHICH))
    ]
    return max(same, key=lambda other: len(other["settings"]), default=None)
