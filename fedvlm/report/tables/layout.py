"""Rows and columns of a table: their labels, their order, their groups, their paper names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedvlm.core.errors import ConfigError, did_you_mean, fold
from fedvlm.core.stats import is_number
from fedvlm.report.statistics.images import ClientAnswers, answers_of
from fedvlm.report.tables.cells import TableCell, cell_of
from fedvlm.report.tables.facts import KINDS, METRIC, RunFacts
from fedvlm.report.tables.metrics import ROUNDS_TO, metric, metric_value
from fedvlm.report.tables.papers import GROUPS, Paper, dataset_name
from fedvlm.runs.bits import PLACES

Places = Mapping[tuple[str, str, str], list[RunFacts]]  # row, column, metric -> its runs
PERSONAL = "personal"  # the metric whose test images are told by client


@dataclass(frozen=True)
class TableRow:
    """One row.

    Attributes:
        label: what stands in front.
        group: the heading that it stands under; empty for none.
        method: the method's name; empty for references and averages.
        kind: a reference's kind.
    """

    label: str
    cells: tuple[TableCell, ...]
    group: str = ""
    method: str = ""
    kind: str = ""

    @classmethod
    def of(
        cls, label: str, cells: tuple[TableCell, ...], entry: RunFacts, keys: Sequence[str],
        papers: Mapping[str, Paper],
    ) -> TableRow:
        """Return the row of a method or a reference."""
        if entry.reference and "trainer" in keys:
            kind = KINDS.get(entry.kind, "")
            return cls(label, cells, kind, "", entry.kind or entry.reference)
        name = str(entry.fact("trainer") or "") if "trainer" in keys else ""
        group = papers[name].group if name in papers else ""
        return cls(label, cells, group, name)

    @property
    def rival(self) -> bool:
        """Whether it competes for a mark."""
        return not self.kind


def label_of(entry: RunFacts, keys: Sequence[str], axes: Sequence[str], name: str) -> str:
    """Return an entry's row or column label for the metric ``name``."""
    return " / ".join(
        metric(name).title if key == METRIC else entry.label(key, axes) for key in keys
    )


def labels(
    entries: Sequence[RunFacts], keys: Sequence[str], axes: Sequence[str], names: Sequence[str]
) -> list[str]:
    """Return all labels of an axis: metrics as asked, numbers by size, the rest by name.

    The zero-shot reference comes first, references with a kind come last.
    """
    places: dict[str, tuple[tuple[int, float, str], ...]] = {}
    for entry in entries:
        for at, name in enumerate(names):
            order = tuple(
                (0, float(at), "") if key == METRIC else _order(entry, key, axes) for key in keys
            )
            places.setdefault(label_of(entry, keys, axes, name), order)
    return sorted(places, key=lambda text: (places[text], text))


def cell_at(runs: Sequence[RunFacts], name: str, ci: bool, digits: int) -> TableCell:
    """Return the cell of a metric over runs of different seeds."""
    values = {e.seeds: v for e in runs if (v := metric_value(e, name)) is not None}
    decimals = metric(name).digits
    digits = digits if decimals is None else decimals
    if name.startswith(ROUNDS_TO) and len(values) < len(runs):  # a mean of the lucky seeds lies
        return TableCell(name, n=len(values), of=len(runs), reached=len(values), digits=digits)
    answers = {e.seeds: _answers(e) for e in runs if e.seeds in values} \
        if name == PERSONAL else None
    return cell_of(name, values, len(runs), ci, digits, answers)


def _answers(entry: RunFacts) -> dict[str, ClientAnswers]:
    """Return what the clients of a run, or a reference of it, answered on their test images."""
    record = entry.run.section("references").get(entry.reference) if entry.reference else \
        entry.run.last
    return answers_of(record or {}, entry.run.section(PLACES))


def order_table(lines: Sequence[TableRow], order: Sequence[str], averaged: bool) -> list[TableRow]:
    """Return the rows in the order asked for, groups together, references last.

    Args:
        order: ``name`` (as given), ``best`` (by the average, else by the first column), or
            methods that come first.
        averaged: whether the last column is the average.

    Raises:
        ConfigError: a method that the table does not have.
    """
    rank = {id(line): (0.0, float(at)) for at, line in enumerate(lines)}
    if list(order) == ["best"]:
        for at, line in enumerate(lines):
            cell = line.cells[-1 if averaged else 0]
            sign = 1 if metric(cell.metric).lower else -1
            if line.method:
                rank[id(line)] = (float("inf") if cell.mean is None else sign * cell.mean, at)
    elif list(order) != ["name"]:
        for at, word in enumerate(order):
            for number in places_of_method(lines, word, "--order"):
                rank[id(lines[number])] = (at - len(order), number)
    heads = [*GROUPS, *KINDS.values()]

    def key(line: TableRow) -> tuple[int, int, float, float]:
        group = heads.index(line.group) if line.group in heads else -1
        return (line.kind in KINDS, group, *rank[id(line)])

    methods = [line for line in lines if line.method or line.kind]
    return [*sorted(methods, key=key), *(x for x in lines if not (x.method or x.kind))]


def places_of_method(lines: Sequence[TableRow], word: str, flag: str) -> list[int]:
    """Return the rows of a method by its label or its name, however it is written.

    Raises:
        ConfigError: none has it.
    """
    methods = {at: line for at, line in enumerate(lines) if line.method}
    exact = [at for at, line in methods.items() if fold(line.label) == fold(word)]
    there = exact or [at for at, line in methods.items() if fold(line.method) == fold(word)]
    if not there:
        names = [line.label for line in methods.values()]
        near = did_you_mean(word, [*(line.method for line in methods.values()), *names])
        raise ConfigError(f"{flag} {word}: the table has no such method{near} "
                          f"(it has {', '.join(names[:12])}{', ...' if len(names) > 12 else ''})")
    return there


def spell_names(entries: Sequence[RunFacts], papers: Mapping[str, Paper]) -> list[RunFacts]:
    """Return the runs with methods and data sets spelt as in papers.

    A method's trainable set is left out where it has one only.
    """
    sets: dict[str, set[str]] = {}
    for entry in entries:
        sets.setdefault(str(entry.fact("trainer")), set()).add(str(entry.fact("peft")))
    renamed = []
    for entry in entries:
        trainer = str(entry.fact("trainer"))
        changed = {
            "trainer": papers[trainer].title if trainer in papers else trainer,
            "dataset": dataset_name(entry.fact("dataset")),
        } | ({"peft": ""} if len(sets[trainer]) == 1 else {})
        run = replace(entry.run, protocol={**entry.run.protocol, **changed})
        renamed.append(replace(entry, run=run))
    return renamed


def _order(entry: RunFacts, key: str, axes: Sequence[str]) -> tuple[int, float, str]:
    if key == "trainer" and entry.kind:
        names = list(entry.run.section("references"))
        return 4, float(100 * list(KINDS).index(entry.kind) + names.index(entry.reference)), ""
    if key == "trainer" and entry.reference == "zero-shot":
        return 0, 0.0, ""
    value = entry.fact(key)
    if key == "shots" and value == -1:
        return 2, 0.0, ""
    if is_number(value):
        return 1, float(value), ""
    return 3, 0.0, entry.label(key, axes).casefold()
