"""The lines of a figure: mean and sample standard deviation over the seeds of each cell.

Which runs are seeds of one thing, and what that thing is called in a figure.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedvlm.core.errors import DataError
from fedvlm.report.collect import Run
from fedvlm.report.figures.lines import Line, Panel

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


MB = 1e6
_SHOTS = PLACE.index("shots")
_Curve = dict[int, tuple[float, float]]  # round -> (x, value)


def convergence(found: Sequence[Cell], metric: str) -> list[Panel]:
    """Return one panel per place: ``metric`` over rounds, where all seeds have it."""
    return _panels(found, lambda rounds: _curve(rounds, metric, sent=False))


def traffic(found: Sequence[Cell], metric: str) -> list[Panel]:
    """Return one panel per place: ``metric`` over the MB sent so far by all clients, both ways."""
    return _panels(found, lambda rounds: _curve(rounds, metric, sent=True))


def few_shot(found: Sequence[Cell], metric: str) -> list[Panel]:
    """Return one panel per place (its shots apart), then their average: ``metric`` over shots.

    Places with one number of shots are left out. The average has a method's shots and seeds that
    all places have; its spread is that over seeds of the mean over places.
    """
    places: dict[tuple[Any, ...], dict[str, dict[int, Cell]]] = {}
    for cell in found:
        shots = cell.place[_SHOTS]
        if isinstance(shots, int) and shots > 0:
            rest = cell.place[:_SHOTS] + cell.place[_SHOTS + 1 :]
            places.setdefault(rest, {}).setdefault(cell.label, {})[shots] = cell
    several = [methods for methods in places.values() if len(set().union(*methods.values())) > 1]
    kept = [place for place, methods in places.items() if methods in several]
    names = titles(kept, [key for key in PLACE if key != "shots"])
    panels, stars = [], []
    for title, place in zip(names, kept, strict=True):
        methods = places[place]
        stars.append(_zero_shot(methods.values(), metric))
        lines = [_over_shots(label, [by], metric) for label, by in methods.items()]
        panels.append(Panel(title, _drawable(lines), stars[-1]))
    if len(kept) > 1:
        shared = [label for label in places[kept[0]] if all(label in places[p] for p in kept)]
        lines = [_over_shots(name, [places[p][name] for p in kept], metric) for name in shared]
        known = [s for s in stars if s is not None]
        star = statistics.fmean(known) if len(known) == len(stars) else None
        panels.append(Panel(f"average of {len(kept)}", _drawable(lines), star))
    return [panel for panel in panels if panel.lines]


def spread(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (n - 1); None for fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else None


def _panels(
    found: Sequence[Cell], curve: Callable[[list[dict[str, Any]]], _Curve]
) -> list[Panel]:
    places: dict[tuple[Any, ...], list[Line]] = {}
    for cell in found:
        line = _over_seeds(cell.label, [curve(rounds) for rounds in cell.records.values()])
        if line.x:
            places.setdefault(cell.place, []).append(line)
    names = titles(list(places), PLACE)
    return [Panel(name, lines) for name, lines in zip(names, places.values(), strict=True)]


def _curve(rounds: Sequence[Mapping[str, Any]], metric: str, *, sent: bool) -> _Curve:
    """Return (x, value) of every round that was evaluated; x is the round, or the MB until then."""
    total, found = 0.0, {}
    for record in rounds:
        total += sum(sum((record.get(way) or {}).values()) for way in ("bytes_up", "bytes_down"))
        value = record.get(metric)
        if isinstance(value, int | float) and math.isfinite(value):
            number = int(record["round"])
            found[number] = (total / MB if sent else float(number), float(value))
    return found


def _over_seeds(label: str, curves: Sequence[_Curve]) -> Line:
    common = sorted(set(curves[0]).intersection(*curves[1:])) if curves else []
    columns = [[curve[r] for curve in curves] for r in common]
    return Line(
        label, [statistics.fmean(x for x, _ in column) for column in columns],
        [statistics.fmean(y for _, y in column) for column in columns],
        [spread([y for _, y in column]) for column in columns], [len(curves)] * len(columns),
    )


def _over_shots(label: str, by_place: Sequence[Mapping[int, Cell]], metric: str) -> Line:
    """Return a method's line over the shots that all places have."""
    x: list[float] = []
    mean: list[float] = []
    std: list[float | None] = []
    n: list[int] = []
    for shots in sorted(set(by_place[0]).intersection(*by_place[1:])):
        here = [by[shots] for by in by_place]
        seeds = [s for s in here[0].runs if all(s in cell.runs for cell in here)]
        values = [[cell.runs[s].value(metric) for cell in here] for s in seeds]
        known = [statistics.fmean(v for v in row if v is not None) for row in values
                 if all(v is not None for v in row)]
        if known:
            x.append(float(shots))
            mean.append(statistics.fmean(known))
            std.append(spread(known))
            n.append(len(known))
    return Line(label, x, mean, std, n)


def _zero_shot(methods: Iterable[Mapping[int, Cell]], metric: str) -> float | None:
    """Return the zero-shot number of a place: the mean over its data seeds (test splits differ)."""
    by_seed: dict[Any, list[float]] = {}
    for by_shots in methods:
        for cell in by_shots.values():
            for (_, data_seed), run in cell.runs.items():
                value = run.value(f"zero_shot.{metric}")
                if value is not None:
                    by_seed.setdefault(data_seed, []).append(value)
    if not by_seed:
        return None
    return statistics.fmean(statistics.fmean(values) for values in by_seed.values())


def _drawable(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line.x]
