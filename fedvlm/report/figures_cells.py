"""Which runs are seeds of one thing, and what that thing is called in a figure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedvlm.errors import DataError
from fedvlm.report.collect import Run

PLACE = ("dataset", "setting", "shots", "partition", "held_out", "backbone")  # what a panel is of
FREE = {"SEED", "DATA_SEED", "FED.INDEX_FILE", "DATASET.FEWSHOT_FILE"}  # seeds may differ in them


@dataclass
class Cell:
    """Runs that differ in their seeds only.

    Attributes:
        place: values of ``PLACE``; one panel.
        method: the method's name; ``label``: the same and what sets it apart from its neighbours.
        config: what changes the numbers, without the seeds.
        runs: by (seed, data seed); ``records``: their rounds.
    """

    place: tuple[Any, ...]
    method: str
    config: Mapping[str, Any]
    runs: dict[tuple[Any, Any], Run] = field(default_factory=dict)
    records: dict[tuple[Any, Any], list[dict[str, Any]]] = field(default_factory=dict)
    label: str = ""


def cells(runs: Sequence[Run]) -> tuple[list[Cell], list[str]]:
    """Return the cells of all runs by place and label, and a sentence per run that is left out."""
    found: dict[str, Cell] = {}
    problems = []
    for run in runs:
        place = tuple(run.protocol.get(key, "") for key in PLACE)
        config = _config(run)
        key = json.dumps([place, run.method, config], sort_keys=True, default=str)
        cell = found.setdefault(key, Cell(place, run.method, config))
        seeds = (run.protocol.get("seed"), run.protocol.get("data_seed"))
        if seeds in cell.runs:
            first = cell.runs[seeds].path
            problems.append(f"{run.path} repeats {first} (same config and seeds): left out")
            continue
        cell.runs[seeds], cell.records[seeds] = run, run.rounds()
    named = list(found.values())
    _name(named)
    named.sort(key=lambda c: (tuple(map(_sortable, c.place)), c.label))
    return named, problems


def titles(places: Sequence[Sequence[Any]], keys: Sequence[str]) -> list[str]:
    """Return a title per place: the dataset, and whatever else differs between places."""
    varying = [i for i in range(len(keys)) if i and len({str(p[i]) for p in places}) > 1]
    return [
        ", ".join([str(p[0]), *(_said(keys[i], p[i]) for i in varying if p[i] != "")])
        for p in places
    ]


def _config(run: Run) -> dict[str, Any]:
    """Return the part of a run's identity in which seeds of one cell agree."""
    try:
        config = run.manifest().get("identity", {}).get("config", {})
    except DataError:  # results that came without a manifest: the protocol has to do
        config = {}
    own = {k: v for k, v in config.items() if k not in FREE}
    return own | {"backbone": run.protocol.get("backbone_digest", "")}


def _name(found: Sequence[Cell]) -> None:
    """Give each cell its label; where cells of one name share a place, with what differs there.

    A method then has it everywhere: its line over shots goes on under one label.
    """
    rivals: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in found:
        rivals.setdefault((cell.method, cell.place), []).append(cell)
    differ: dict[str, set[str]] = {}
    for (method, _), group in rivals.items():
        keys = {k for c in group for k in c.config}
        differ.setdefault(method, set()).update(
            k for k in keys if len({repr(c.config.get(k)) for c in group}) > 1
        )
    for cell in found:
        keys = differ[cell.method]
        own = [f", {key.rpartition('.')[2]} {cell.config.get(key)}" for key in sorted(keys)]
        cell.label = cell.method + "".join(own)


def _said(key: str, value: Any) -> str:
    if key == "shots":
        return "all images" if value == -1 else "1 shot" if value == 1 else f"{value} shots"
    return f"without {value}" if key == "held_out" else str(value)


def _sortable(value: Any) -> tuple[float, str]:
    return (float(value), "") if isinstance(value, int | float) else (0.0, str(value))
