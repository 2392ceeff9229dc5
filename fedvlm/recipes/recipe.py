"""A recipe: one paper's protocol as the plan of a sweep, and the numbers that the paper printed.

``configs/recipes/<name>.yaml``::

    paper: FedMGP, NeurIPS 2025     # what is reproduced
    said: tables 1 and 3 of it      # where the numbers were read
    harmonic: mean of H             # how the paper averages over data sets, or H of averages
    tolerance: 2.0                  # points of accuracy that count as the same number
    protocol: [...]                 # the paper's protocol, in sentences
    departures: [...]               # where the plan below is another one, on purpose
    unknown: [...]                  # what the paper does not say, or we could not read: ours
    plan: {...}                     # as in configs/sweeps (docs of ``sweep.plan``)
    absent: {pFedPrompt: no public code}    # published methods that the plan lacks, and why
    numbers:                        # by method: what is trained, what a client sends
      FedOTP: {trained: 16384, sent: 8192, published: 16.4k / 8.2k, where: table 3}
    published:                      # tables of accuracies, in percent
      - where: table 1
        dataset: Caltech101         # a label of the plan, or average
        metrics: [personal, new]
        cells: {FedOTP: [99.96, 62.26]}     # or "98.41 +- 0.04"
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedvlm.config.read import config_names, find_config
from fedvlm.core.errors import ConfigError, did_you_mean
from fedvlm.core.repository import repository
from fedvlm.report.tables.metrics import DEFINED
from fedvlm.sweep.plan import PlanEntry, PlanReader, SweepPlan, read_sections

KIND = "recipes"  # folder below configs/
AVERAGE = "average"
MEAN_OF_H, H_OF_AVERAGES = "mean of H", "H of averages"
TEXTS, LISTS = ("paper", "said", "harmonic"), ("protocol", "departures", "unknown")
PARTS = (*TEXTS, "tolerance", *LISTS, "plan", "absent", "numbers", "published")
TABLE = ("where", "dataset", "metrics", "cells", "of", "remark")
COUNTED = ("trained", "sent", "published", "where", "dataset")
POINTS = 2.0  # tolerance of a recipe that names none
_CELL = re.compile(r"(\d+(?:\.\d+)?)(?:\s*(?:\+-|±)\s*(\d+(?:\.\d+)?))?")


NO_TARGET = "no target"  # in the remark of a published number that runs cannot confirm


@dataclass(frozen=True)
class Published:
    """A printed accuracy, in percent.

    Attributes:
        dataset: the plan's label of it, or ``AVERAGE`` over those in ``of``.
        std: printed standard deviation; None where none is.
        where: table or page.
        remark: why it is not a fair target, if it is none.
    """

    dataset: str
    method: str
    metric: str
    value: float
    std: float | None = None
    where: str = ""
    of: tuple[str, ...] = ()
    remark: str = ""


@dataclass(frozen=True)
class Numbers:
    """How many numbers a method trains at a client, and a client sends in a round.

    Attributes:
        published: as printed; empty where the paper says nothing: the counts then follow from its
            shapes.
        dataset: the plan's label that the counts are made for; empty for its first.
    """

    method: str
    trained: int
    sent: int
    published: str = ""
    where: str = ""
    dataset: str = ""


@dataclass(frozen=True)
class Recipe:
    """A paper's protocol and numbers (see the module)."""

    name: str
    paper: str
    said: str
    plan: SweepPlan
    harmonic: str = MEAN_OF_H
    tolerance: float = POINTS
    protocol: tuple[str, ...] = ()
    departures: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    numbers: tuple[Numbers, ...] = ()
    published: tuple[Published, ...] = ()

    @property
    def confirms(self) -> str:
        """How many published numbers its runs can confirm, in words for the list."""
        own = {e.label for e in self.plan.trainers}
        cells = [c for c in self.published if c.method in own and NO_TARGET not in c.remark]
        if cells:
            return f"{len(cells)} numbers"
        return "counts only" if any(n.published for n in self.numbers) else "-"


def recipe_names() -> list[str]:
    """Return the names that ``read_recipe`` knows."""
    return config_names(KIND)


def read_recipe(name: str) -> Recipe:
    """Return a recipe by its name in ``configs/recipes`` or file (``ConfigError``: mistakes)."""
    path = find_config(name, KIND)
    parts, mistakes = read_sections(path, PARTS, "recipe")
    return _Reader(str(path), mistakes).recipe(parts, path.stem)


class _Reader:
    """Turns plain values into a ``Recipe`` and collects every mistake on the way."""

    def __init__(self, where: str, mistakes: list[str]) -> None:
        self.where, self.mistakes = where, mistakes
        self.datasets: list[str] = []  # labels of the plan
        self.methods: list[str] = []

    def recipe(self, values: Mapping[str, Any], name: str) -> Recipe:
        """Return the recipe (``ConfigError``: all mistakes, one line each)."""
        texts = {part: str(values.get(part) or "") for part in TEXTS}
        texts["harmonic"] = texts["harmonic"] or MEAN_OF_H
        if texts["harmonic"] not in (MEAN_OF_H, H_OF_AVERAGES):
            self.mistake(f"harmonic is '{MEAN_OF_H}' or '{H_OF_AVERAGES}', "
                         f"got '{texts['harmonic']}'")
        self.mistakes += [f"{self.where}: {part} is empty" for part in ("paper", "said")
                          if not texts[part]]
        tolerance = values.get("tolerance", POINTS)
        if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or tolerance < 0:
            self.mistake(f"tolerance expects points of accuracy such as {POINTS:g}, "
                         f"got {tolerance!r}")
            tolerance = POINTS
        lists = {part: self.sentences(values.get(part) or [], part) for part in LISTS}
        plan = self.plan(values.get("plan"), name)
        self.datasets = [e.label for e in plan.datasets]
        self.methods = [e.label for e in plan.trainers]
        absent = self.pairs(values.get("absent") or {}, "absent")
        self.mistakes += [f"{self.where}: absent: the plan has {m}; drop one of them"
                          for m in absent if m in self.methods]
        recipe = Recipe(
            name, texts["paper"], texts["said"], plan, texts["harmonic"], float(tolerance),
            lists["protocol"], lists["departures"], lists["unknown"],
            {str(method): str(why) for method, why in absent.items()},
            tuple(self.numbers(values.get("numbers") or {})),
            tuple(self.tables(values.get("published") or [], [*self.methods, *absent])),
        )
        if self.mistakes:
            raise ConfigError("\n".join(self.mistakes))
        return recipe

    def mistake(self, text: str) -> None:
        """Note a mistake with its place."""
        self.mistakes.append(f"{self.where}: {text}")

    def sentences(self, value: Any, part: str) -> tuple[str, ...]:
        """Return a list of sentences."""
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            self.mistake(f"{part} expects a list of sentences, got {value!r}")
            return ()
        return tuple(value)

    def plan(self, value: Any, name: str) -> SweepPlan:
        """Return the plan under the recipe's name (``ConfigError``: all mistakes so far)."""
        if not isinstance(value, dict):
            self.mistake("plan needs datasets, trainers and the other parts of a sweep's plan")
            raise ConfigError("\n".join(self.mistakes))
        reader = PlanReader(f"{self.where}: plan")
        try:
            plan = reader.plan(value, name)
        except ConfigError as error:
            raise ConfigError("\n".join([*self.mistakes, str(error)])) from None
        return replace(plan, name=name, trainers=tuple(map(_at_home, plan.trainers)))

    def numbers(self, value: Any) -> list[Numbers]:
        """Return the counts by method."""
        rows = []
        for method, pairs in self.pairs(value, "numbers").items():
            pairs = self.pairs(pairs, f"numbers: {method}")
            self.known(method, self.methods, "numbers", "method")
            for key in pairs:
                self.known(key, COUNTED, f"numbers: {method}", "word")
            trained, sent = pairs.get("trained"), pairs.get("sent")
            if not (isinstance(trained, int) and isinstance(sent, int) and trained >= sent >= 0):
                self.mistake(f"numbers: {method} expects trained and sent, whole numbers with "
                             "sent at most trained")
                continue
            dataset = str(pairs.get("dataset") or self.datasets[0])
            self.known(dataset, self.datasets, "numbers", "data set")
            rows.append(Numbers(str(method), trained, sent, str(pairs.get("published") or ""),
                                str(pairs.get("where") or ""), dataset))
        return rows

    def tables(self, value: Any, methods: Sequence[str]) -> list[Published]:
        """Return the cells of all tables, of the plan's methods and the absent ones."""
        cells = []
        for at, table in enumerate(value if isinstance(value, list) else [value], 1):
            cells += self.table(self.pairs(table, f"published {at}"), f"published {at}", methods)
        twice = [c for c in cells if [(d.dataset, d.method, d.metric, d.of) for d in cells].count(
            (c.dataset, c.method, c.metric, c.of)) > 1]
        if twice:
            c = twice[0]
            self.mistake(f"{c.dataset} {c.method} {c.metric} is published twice")
        return cells

    def table(self, pairs: Mapping[str, Any], at: str, methods: Sequence[str]) -> list[Published]:
        """Return the cells of one table."""
        for key in pairs:
            self.known(key, TABLE, at, "word")
        labels = self.datasets
        dataset, where = str(pairs.get("dataset") or ""), str(pairs.get("where") or "")
        self.known(dataset, [*labels, AVERAGE], at, "data set")
        if not where:
            self.mistake(f"{at}: where is missing: give the place in the paper, such as where: "
                         "table 1")
        metrics = [str(m) for m in pairs.get("metrics") or ["personal"]]
        for name in metrics:
            self.known(name, DEFINED, at, "metric")
        of = tuple(str(d) for d in pairs.get("of") or (labels if dataset == AVERAGE else ()))
        for label in of:
            self.known(label, labels, at, "data set")
        cells = []
        for method, values in self.pairs(pairs.get("cells"), f"{at}: cells").items():
            self.known(method, methods, at, "method")
            values = values if isinstance(values, list) else [values]
            if len(values) != len(metrics):
                self.mistake(f"{at}: {method} has {len(values)} numbers for {len(metrics)} metrics")
                continue
            for name, cell in zip(metrics, values, strict=True):
                match = _CELL.fullmatch(str(cell).strip())
                if match is None or not 0 <= float(match[1]) <= 100:
                    self.mistake(f"{at}: {method} expects percent such as 81.2 or 81.2 +- 0.3, "
                                 f"got {cell!r}")
                    continue
                std = None if match[2] is None else float(match[2])
                cells.append(Published(dataset, str(method), name, float(match[1]), std, where, of,
                                       str(pairs.get("remark") or "")))
        return cells

    def pairs(self, value: Any, part: str) -> Mapping[Any, Any]:
        """Return a mapping."""
        if isinstance(value, dict):
            return value
        self.mistake(f"{part} expects name: value pairs, got {value!r}")
        return {}

    def known(
        self, word: Any, words: Sequence[str] | Mapping[str, Any], at: str, what: str
    ) -> None:
        """Note a word that is none of ``words``."""
        if word not in words:
            near = did_you_mean(str(word), words) or f" (there are: {', '.join(words)})"
            self.mistake(f"{at}: no {what} '{word}'{near}")


def _at_home(entry: PlanEntry) -> PlanEntry:
    """Return a method whose file is found: here, else among fedvlm's own."""
    file, colon, name = entry.name.partition(":")
    if ".py" not in file or Path(file).is_file() or not (repository() / file).is_file():
        return entry
    return replace(entry, name=f"{repository() / file}{colon}{name}")
