"""The tables of a page over many runs: methods x data sets, one per number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedvlm.core.errors import ConfigError
from fedvlm.report.collect import Collected
from fedvlm.report.pages.grid import row_of, table
from fedvlm.report.pages.html import Html, cell, element, items, join_content
from fedvlm.report.tables.cells import AVERAGE, BEST, H_OF_AVERAGES, PEER, TableCell
from fedvlm.report.tables.facts import BEFORE, KINDS, facts_of
from fedvlm.report.tables.metrics import known_metrics, metric
from fedvlm.report.tables.papers import Paper
from fedvlm.report.tables.table import ReportTable, Spec, tables
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.metrics import repeats_personal

ACCURACIES = (
    "personal", "global", "base_all", "base_other", "new", "hm2", "hm3", "cm", "unseen",
    "unseen_personal", "targets", "personal_before_ft", "personal_worst", "unseen_clients",
)
BESIDE = ("gain", "steps", "bytes")  # beside personal: what was won, what was spent
COSTS = ("totals.bytes_up", "totals.seconds", "trainable")
# What may differ between data sets.
PLACE = ("shots", "partition", "held_out", "server_holdout", "subsample", "targets")


def groups(runs: Sequence[FinishedRun]) -> dict[str, list[FinishedRun]]:
    """Return the runs by setting and backbone: no table holds two of them."""
    by_name: dict[str, list[FinishedRun]] = {}
    for run in runs:
        name = f"{_value(run, 'setting')}, {_value(run, 'backbone')}"
        by_name.setdefault(name, []).append(run)
    return by_name


def of_group(
    runs: Sequence[FinishedRun], command: str, papers: Mapping[str, Paper] | None = None
) -> Html:
    """Return all tables of one setting and backbone, with what they mix and what they mean."""
    collected, numbers = Collected(runs=list(runs)), known_metrics(facts_of(runs)[0])
    targets = tuple(n for n in numbers if n.startswith("target."))
    scores, costs = (
        tuple(n for n in names if n in numbers
              and not all(repeats_personal(n, run.last) for run in runs))
        for names in ((*ACCURACIES, *targets), COSTS)
    )
    inside = tuple(key for key in PLACE if _varies_inside(runs, key))
    between = tuple(key for key in PLACE if key not in inside and _values(runs, key) > 1)
    zero = () if _has_zero_shot(runs) else ("zero-shot",)
    flat = {name: replace(paper, group="") for name, paper in (papers or {}).items()}
    spec = Spec(mixed=between or None, reference=(*zero, *KINDS), order=("best",), papers=flat,
                names=bool(flat))
    if inside or _values(runs, "dataset") > 1:
        spec = replace(spec, cols=("dataset", *inside))
        beside = tuple(n for n in BESIDE if n in numbers)
        first = replace(spec, metrics=scores[:1], columns=beside)
        shown = [*_tables(collected, first, command),
                 *_tables(collected, replace(spec, metrics=scores[1:]), command, silent=True)]
        dear = _tables(collected, replace(spec, metrics=costs, reference=()), command, silent=True)
        return join_content([*shown, element("details", element("summary", "costs"), *dear)
                     if dear else None])
    beside = tuple(n for n in BESIDE if n in numbers and n not in costs)
    return join_content(
        one for names in (scores, (*beside, *costs)) if names
        for one in _tables(collected, replace(spec, cols=("metric",), metrics=names), command)
    )


def _tables(
    collected: Collected, spec: Spec, command: str, silent: bool = False
) -> list[Html]:
    """Return the tables; those that mix protocols come with a warning.

    Args:
        silent: whether having no number is no matter.
    """
    if not spec.metrics:
        return [] if silent else [element("p", "None of these runs has a number to show.")]
    try:
        return [_one(each) for each in tables(collected, spec, command)]
    except ConfigError as error:
        why = f"These numbers come from different protocols; compare with care: {error}"
    try:
        mixed = tables(collected, replace(spec, mixed=()), command)
    except ConfigError as error:
        return [element("p", f"No table: {error}", class_="caveats")]
    return [element("p", why, class_="caveats"), *map(_one, mixed)]


def _one(numbers: ReportTable) -> Html:
    numbers = _averages_first(numbers)
    several = len(numbers.metrics) > 1
    first = metric(numbers.metrics[0])
    rows = [
        row_of([row, *(_cell(one, numbers.ci, row if method else "", "" if several else column)
                       for column, one in zip(numbers.columns, line, strict=True))],
               data_method=row.removesuffix("*") if method else None,
               class_=None if method else "reference")
        for row, line, method in zip(numbers.rows, numbers.cells, numbers.methods, strict=True)
        if method or any(one.mean is not None for one in line)
    ]
    lower = [at for at, column in enumerate(zip(*numbers.cells, strict=True), start=1)
             if metric(column[0].metric).lower]
    title = "Costs" if first.name in COSTS and several else \
        "Accuracy (%)" if several else first.title
    better = "lower is better" if first.lower else "higher is better"
    spread = ("mean and sample standard deviation over up to "
              f"{numbers.n} seeds" if numbers.n > 1 else "one seed")
    words = spread if several else f"{first.words} ({first.unit}, {better}; {spread})"
    return join_content([
        element("h4", title),
        element("div", table([numbers.corner, *numbers.columns], rows, caption=words,
                             sortable=True, lower=lower, name=f"{title}: {words}"),
                class_="wide"),
        element("details", element("summary", "meaning, protocol, data and notes"),
                element("p", numbers.caption), items(numbers.notes)),
    ])


def _averages_first(numbers: ReportTable) -> ReportTable:
    """Return the table with its averages before the data sets: in sight however many those are."""
    columns = list(zip(*numbers.cells, strict=True))
    order = sorted(range(len(columns)), key=lambda at: not any(o.average for o in columns[at]))
    return replace(
        numbers, columns=tuple(numbers.columns[at] for at in order),
        cells=tuple(tuple(line[at] for at in order) for line in numbers.cells),
    )


def _cell(number: TableCell, ci: bool, row: str, column: str) -> Html:
    """Return a number with its spread: the best bold, not significantly worse ones underlined.

    Args:
        row: the method's label; empty where no runs of the list are behind the cell.
        column: its label, data set first; empty where it is no data set.
    """
    mark = {BEST: "strong", PEER: "u"}.get(number.rank)
    spread = number.spread(ci)
    words = join_content([
        element(mark, number.text) if mark else number.text,
        element("small", f" ± {spread}") if spread else None, number.suffix,
    ])
    if row and number.n and not number.average and not number.words:
        names = (row.removesuffix("*"), column.removesuffix("*").partition(" / ")[0])
        words = element("a", words, href="#runs", data_words=" ".join(
            f'"{name}"' for name in names if name))
    kind = "average" if column in (AVERAGE, H_OF_AVERAGES) else None
    return cell(words, number.mean, title=number.counted, data_kind=kind)


def _value(run: FinishedRun, key: str) -> str:
    return str(run.protocol.get(key, BEFORE.get(key, "")))


def _values(runs: Sequence[FinishedRun], key: str) -> int:
    return len({_value(run, key) for run in runs})


def _varies_inside(runs: Sequence[FinishedRun], key: str) -> bool:
    """Say whether the runs of one data set differ in ``key``."""
    values: dict[str, set[str]] = {}
    for run in runs:
        values.setdefault(_value(run, "dataset"), set()).add(_value(run, key))
    return any(len(several) > 1 for several in values.values())


def _has_zero_shot(runs: Sequence[FinishedRun]) -> bool:
    """Say whether zero-shot numbers need no row of their own: a method has them, or none does."""
    every = {_value(run, "dataset") for run in runs}
    covered = {_value(run, "dataset") for run in runs if _value(run, "trainer") == "ZeroShot"}
    return covered == every or not any(run.results.get("zero_shot") for run in runs)
