"""The runs that figures are made of, and which of them are seeds of one thing, and its name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fedvlm.core.errors import DataError
from fedvlm.core.stats import mean, sample_std
from fedvlm.report.collect import as_float
from fedvlm.report.figures.drawing.levels import Level, levels_of
from fedvlm.report.figures.drawing.lines import LinePanel, MethodLine
from fedvlm.report.tables.facts import RunFacts
from fedvlm.report.tables.layout import spell_names
from fedvlm.report.tables.papers import Paper, dataset_name
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.identity import CAPTIONS, LABELS
from fedvlm.runs.verify.answer import RECALL, measure_name

PLACE = ("dataset", "setting", "shots", "partition", "held_out", "backbone")  # what a panel is of
FREE = {"SEED", "DATA_SEED", "FED.INDEX_FILE", "DATASET.FEWSHOT_FILE"}  # seeds may differ in them

Curve = Mapping[int, tuple[float, float]]  # round -> (x, value)
Value = Callable[[Mapping[str, Any]], float | None]  # of a round's record


@dataclass
class RunGroup:
    """Runs that differ in their seeds only.

    Attributes:
        place: values of ``PLACE``; one panel.
        method: the method's name; ``label``: the same and what sets it apart from its neighbours.
        config: what changes the numbers, without the seeds.
        runs: by (seed, data seed); ``records``: their rounds.
        family: the method's, as its card says; empty for unknown.
    """

    place: tuple[Any, ...]
    method: str
    config: Mapping[str, Any]
    runs: dict[tuple[Any, Any], FinishedRun] = field(default_factory=dict)
    records: dict[tuple[Any, Any], list[dict[str, Any]]] = field(default_factory=dict)
    label: str = ""
    family: str = ""


@dataclass(frozen=True)
class FigureRuns:
    """What figures are made of.

    Attributes:
        runs: finished runs; one at least.
        metric: an accuracy of a round.
        papers: method -> what its card says: how it is spelt, its family.
        looks: what the run's model weighs in some images (``answers.looks.Looks``); None: nobody
            asked.
        features: of the run's model for test images, as ``answers.features.Features``; None.
    """

    runs: Sequence[FinishedRun]
    metric: str = "personal"
    papers: Mapping[str, Paper] = field(default_factory=dict)
    looks: Any = None
    features: Any = None

    @property
    def run(self) -> FinishedRun:
        """The run, for a figure of one."""
        return self.runs[0]

    @property
    def measure(self) -> str:
        """What the numbers of a client are, in words."""
        if all(run.protocol.get("target") == CAPTIONS for run in self.runs):
            return RECALL
        return measure_name(all(run.protocol.get("target") == LABELS for run in self.runs))

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The rounds of the run, for a figure of one."""
        return self.run.rounds()

    @property
    def groups(self) -> list[RunGroup]:
        """The runs by place and label."""
        return self._grouped[0]

    @property
    def problems(self) -> list[str]:
        """A note per run that is in no group."""
        return self._grouped[1]

    @property
    def none_has_it(self) -> str:
        """Why there is no line over rounds."""
        return f"no round has {self.metric} for all seeds of a method"

    def panels(
        self, curve: Callable[[Sequence[Mapping[str, Any]], Value], Curve]
    ) -> list[LinePanel]:
        """Return one panel per place, with one line per group over its seeds' curves.

        A line is of the numbers before a final fine-tuning; what that adds stands in ``after``.

        Args:
            curve: of the records of one run and of what is read of each.
        """
        places: dict[tuple[Any, ...], list[MethodLine]] = {}
        for group in self.groups:
            line, plain = (
                mean_curve(group.label, [curve(rounds, value) for rounds in group.records.values()])
                for value in (self._before, self._plain)
            )
            if line.x:
                moved = plain.mean[-1] is not None and plain.mean[-1] != line.mean[-1]
                after = (plain.x[-1], plain.mean[-1] or 0.0, plain.std[-1]) if moved else None
                places.setdefault(group.place, []).append(
                    replace(line, after=after, family=group.family))
        names = titles(list(places))
        return [LinePanel(name, lines, metric=self.metric, levels=self.levels(place))
                for name, (place, lines) in zip(names, places.items(), strict=True)]

    def levels(self, place: tuple[Any, ...]) -> list[Level]:
        """Return the references of a place."""
        return levels_of(
            (run for group in self.groups if group.place == place for run in group.runs.values()),
            self.metric,
        )

    def _plain(self, record: Mapping[str, Any]) -> float | None:
        return as_float(record.get(self.metric))

    def _before(self, record: Mapping[str, Any]) -> float | None:
        before = as_float(record.get(f"{self.metric}_before_ft"))
        return self._plain(record) if before is None else before

    @cached_property
    def _grouped(self) -> tuple[list[RunGroup], list[str]]:
        return groups_of(self.runs, self.papers)


def groups_of(
    runs: Sequence[FinishedRun], papers: Mapping[str, Paper]
) -> tuple[list[RunGroup], list[str]]:
    """Return the groups of all runs by place and label, and a note per run left out.

    Args:
        papers: methods are spelt as they say; without any as the runs say.
    """
    by_key: dict[str, RunGroup] = {}
    problems = []
    spelt = [e.run.method for e in spell_names([RunFacts(run) for run in runs], papers)] if papers \
        else [run.method for run in runs]
    for run, method in zip(runs, spelt, strict=True):
        place = tuple(run.protocol.get(key, "") for key in PLACE)
        config = _config(run)
        key = json.dumps([place, run.method, config], sort_keys=True, default=str)
        paper = papers.get(str(run.protocol.get("trainer")))
        family = paper.group if paper else ""
        group = by_key.setdefault(key, RunGroup(place, method, config, family=family))
        seeds = (run.protocol.get("seed"), run.protocol.get("data_seed"))
        if seeds in group.runs:
            first = group.runs[seeds].path
            problems.append(f"{run.path} repeats {first} (same config and seeds): left out")
            continue
        group.runs[seeds], group.records[seeds] = run, run.rounds()
    groups = list(by_key.values())
    _label(groups)
    groups.sort(key=lambda g: (tuple(map(_sortable, g.place)), g.label))
    return groups, problems


def titles(places: Sequence[Sequence[Any]], keys: Sequence[str] = PLACE) -> list[str]:
    """Return a title per place: the data set's paper name, and what else differs between places."""
    varying = [i for i in range(len(keys)) if i and len({str(p[i]) for p in places}) > 1]
    return [
        ", ".join([dataset_name(p[0]),
                   *(_words(keys[i], p[i]) for i in varying if p[i] != "")])
        for p in places
    ]


def mean_curve(label: str, curves: Sequence[Curve]) -> MethodLine:
    """Return mean and sample standard deviation over the seeds' curves, where all have a value."""
    common = sorted(set(curves[0]).intersection(*curves[1:])) if curves else []
    columns = [[curve[r] for curve in curves] for r in common]
    return MethodLine(
        label, [mean(x for x, _ in column) or 0.0 for column in columns],
        [mean(y for _, y in column) for column in columns],
        [sample_std(y for _, y in column) for column in columns], [len(curves)] * len(columns),
    )


def _config(run: FinishedRun) -> dict[str, Any]:
    """Return the part of a run's identity in which seeds of one group agree."""
    try:
        config = run.identity_config()
    except DataError:  # results that came without a manifest: the protocol has to do
        config = {}
    alike = {k: v for k, v in config.items() if k not in FREE}
    return alike | {"backbone": run.protocol.get("backbone_digest", "")}


def _label(groups: Sequence[RunGroup]) -> None:
    """Give each group its label; where groups of one name share a place, with what differs there.

    A method then has it everywhere: its line over shots goes on under one label.
    """
    rivals: dict[tuple[Any, ...], list[RunGroup]] = {}
    for group in groups:
        rivals.setdefault((group.method, group.place), []).append(group)
    differ: dict[str, set[str]] = {}
    for (method, _), alike in rivals.items():
        keys = {k for g in alike for k in g.config}
        differ.setdefault(method, set()).update(
            k for k in keys if len({repr(g.config.get(k)) for g in alike}) > 1
        )
    for group in groups:
        keys = differ[group.method]
        words = [f", {key.rpartition('.')[2]} {group.config.get(key)}" for key in sorted(keys)]
        group.label = group.method + "".join(words)


def _words(key: str, value: Any) -> str:
    if key == "shots":
        return "all images" if value == -1 else "1 shot" if value == 1 else f"{value} shots"
    if key == "held_out":
        return f"without {value}"
    return partition_words(str(value)) if key == "partition" else str(value)


def partition_words(text: str) -> str:
    """Return a partition in words: ``dirichlet-0.3-K10-f1`` -> Dirichlet(0.3), 10 clients."""
    match = re.fullmatch(r"([a-z]+)(?:-([\d.]+))?-K(\d+)-f([\d.]+)", text)
    if match is None:
        return text
    kind, level, clients, share = match.groups()
    words = (kind.capitalize() if kind == "dirichlet" else kind) + (f"({level})" if level else "")
    part = "" if float(share) == 1 else f", {float(share):.0%} a round"
    return f"{words}, {clients} clients{part}"


def _sortable(value: Any) -> tuple[float, str]:
    return (float(value), "") if isinstance(value, int | float) else (0.0, str(value))
