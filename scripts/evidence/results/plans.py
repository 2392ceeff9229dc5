"""Lanes from their packs of runs and their plans: what was to run, and what did."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from evidence.results.claims import labels_of
from evidence.results.lanes import Lane, join_plans, share_baselines
from fedvlm.core.errors import ConfigError
from fedvlm.report.collect import Collected, collect
from fedvlm.runs.cells import ENDING

MAP = "map"  # folder of plans with a page of their own (``evidence.methods.methods``)


def read_lanes(packs: Sequence[Path], plans: Path) -> list[Lane]:
    """Return the lanes in the order of their first plan, with what the plans say of them.

    Plans are read in the order of their files' names, those of folders below among them but the
    map's. A lane that has plans and no runs yet is there too, empty. Runs of the same images know
    the same baselines (``lanes.share_baselines``).

    Raises:
        ConfigError: a file of ``plans`` is no plan.
        DataError: a pack is damaged.
    """
    told: dict[str, dict[str, Any]] = {}
    paths = [path for path in plans.rglob("*.yaml") if path.parent != plans / MAP]
    for path in sorted(paths, key=lambda path: (path.name, path)):
        plan = read_plan(path)
        about = told.setdefault(plan["lane"], {"title": plan["title"], "wanted": 0, "about": [],
                                               "folders": {}})
        about["wanted"] += plan["cells"]
        about["about"].append(plan["about"])
        folder = path.parent.relative_to(plans.parent).as_posix()
        before = about["folders"].get(folder, {})
        about["folders"][folder] = join_plans([before, plan["planned"]])
    by_name = {path.name.removesuffix(ENDING): path for path in packs}
    out = []
    none: dict[str, Any] = {"wanted": 0, "about": [], "folders": {}}
    for name in [*told, *sorted(by_name.keys() - told.keys())]:
        collected = collect([by_name[name]]) if name in by_name else Collected()
        one = told.get(name, {"title": name} | none)
        out.append(Lane(name, collected, one["title"], " ".join(one["about"]), one["wanted"],
                        one["folders"]))
    shared = share_baselines([lane.runs for lane in out])
    return [replace(lane, collected=lane.only(runs))
            for lane, runs in zip(out, shared, strict=True)]


def read_plan(path: Path) -> dict[str, Any]:
    """Return what a plan says of its lane: its comment, folder, number of cells, methods' cells.

    Raises:
        ConfigError: it is no plan.
    """
    try:
        text = path.read_text(encoding="utf-8")
        plan = yaml.safe_load(text)
        lane = Path(plan["output_dir"]).name
        sets, entries = ([{"name": e} if isinstance(e, str) else dict(e) for e in plan[key]]
                         for key in ("datasets", "trainers"))
        names = [str(e.get("label", e["name"])) for e in sets]
        shots = plan.get("shots", [""])
        columns = frozenset(itertools.product(
            names, shots if isinstance(shots, list) else [shots], plan["seeds"]))
        axes: dict[str, list[Any]] = dict(plan.get("axes") or {})
        marks = ["-".join(f"{key.rpartition('.')[2].lower()}{value}"
                          for key, value in zip(axes, several, strict=True))
                 for several in itertools.product(*axes.values())]
        planned: dict[str, frozenset[Any]] = {}
        for entry, mark in itertools.product(entries, marks):
            tag = "-".join(filter(None, (str(entry.get("tag", "")), mark)))
            for label in labels_of(str(entry["name"]), str(entry.get("peft", "")), tag):
                planned[label] = columns
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError,
            AttributeError) as error:
        raise ConfigError(f"{path}: not a plan of a setting ({error})") from None
    comment = " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))
    title, _, about = comment.partition(": ")
    return {"lane": lane, "title": title, "about": about[:1].upper() + about[1:],
            "cells": len(columns) * len(entries) * len(marks), "planned": planned}
