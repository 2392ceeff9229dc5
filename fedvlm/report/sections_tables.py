"""The tables of a page over many runs: methods x data sets, one per number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedvlm.errors import ConfigError
from fedvlm.report.collect import Collected, Run
from fedvlm.report.html import Html, cell, element, items, join, table
from fedvlm.report.table import Spec, Table, tables
from fedvlm.report.table_cells import BEST, SECOND, Cell
from fedvlm.report.table_facts import entries
from fedvlm.report.table_metrics import known_metrics, metric

ACCURACIES = (
    "personal", "global", "base_all", "base_other", "new", "hm2", "hm3", "cm", "unseen",
    "unseen_personal", "targets", "personal_before_ft", "personal_worst",
)
COSTS = ("totals.bytes_up", "totals.seconds", "trainable")
PLACE = ("shots", "partition", "held_out", "subsample", "targets")  # may differ between data sets


def groups(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs by setting and backbone: no table holds two of them."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        said = run.protocol
        name = f"{said.get('setting', '')}, {said.get('backbone', '')}"
        found.setdefault(name, []).append(run)
    return found


def of_group(runs: Sequence[Run], command: str) -> Html:
    """Return all tables of one setting and backbone, with what they mix and what they mean."""
    found, known = Collected(runs=list(runs)), known_metrics(entries(runs)[0])
    targets = tuple(n for n in known if n.startswith("target."))
    scores, costs = (
        tuple(n for n in names if n in known) for names in ((*ACCURACIES, *targets), COSTS)
    )
    inside = tuple(key for key in PLACE if _varies_inside(runs, key))
    between = tuple(key for key in PLACE if key not in inside and _values(runs, key) > 1)
    spec = Spec(mixed=between or None, reference=() if _has_zero_shot(runs) else ("zero-shot",))
    if inside or _values(runs, "dataset") > 1:
        spec = replace(spec, cols=("dataset", *inside), metrics=(*scores, *costs))
        return join(_made(found, spec, command))
    parts = [_made(found, replace(spec, cols=("metric",), metrics=names), command)
             for names in (scores, costs) if names]
    return join(join(part) for part in parts)


def _made(found: Collected, spec: Spec, command: str) -> list[Html]:
    """Return the tables; those that mix protocols come with a warning."""
    if not spec.metrics:
        return [element("p", "None of these runs has a number to show.")]
    try:
        return [_one(made) for made in tables(found, spec, command)]
    except ConfigError as error:
        why = f"These numbers are of more than one protocol, compare with care: {error}"
    try:
        made = tables(found, replace(spec, mixed=()), command)
    except ConfigError as error:
        return [element("p", f"No table: {error}", class_="caveats")]
    return [element("p", why, class_="caveats"), *map(_one, made)]


def _one(made: Table) -> Html:
    several = len(made.metrics) > 1
    what = [metric(name) for name in made.metrics]
    heads = [made.corner, *made.columns]
    rows = [[row, *(_cell(one, made.ci) for one in line)]
            for row, line in zip(made.rows, made.cells, strict=True)]
    better = "lower is better" if what[0].lower else "higher is better"
    spread = ("mean and sample standard deviation over up to "
              f"{made.n} seeds" if made.n > 1 else "one seed")
    said = spread if several else f"{what[0].words} ({what[0].unit}, {better}; {spread})"
    return join([
        element("h4", "Costs" if made.metrics[0] in COSTS and several else
                "Accuracy (%)" if several else what[0].title),
        table(heads, rows, caption=said, sortable=True),
        element("details", element("summary", "meaning, protocol, data and notes"),
                element("p", made.caption), items(made.notes)),
    ])


def _cell(found: Cell, ci: bool) -> Html:
    """Return a number with its spread: the best bold, the second underlined."""
    mark = {BEST: "strong", SECOND: "u"}.get(found.rank)
    spread = found.spread(ci)
    shown = join([
        element(mark, found.text) if mark else found.text, f" ± {spread}" if spread else None,
        found.suffix,
    ])
    count = "mean over data sets" if found.average else f"n = {found.n}"
    return cell(shown, found.mean, title=count)


def _value(run: Run, key: str) -> str:
    return str(run.protocol.get(key, ""))


def _values(runs: Sequence[Run], key: str) -> int:
    return len({_value(run, key) for run in runs})


def _varies_inside(runs: Sequence[Run], key: str) -> bool:
    """Say whether the runs of one data set differ in ``key``."""
    parted: dict[str, set[str]] = {}
    for run in runs:
        parted.setdefault(_value(run, "dataset"), set()).add(_value(run, key))
    return any(len(found) > 1 for found in parted.values())


def _has_zero_shot(runs: Sequence[Run]) -> bool:
    """Say whether zero-shot numbers need no row of their own: a method has them, or none does."""
    every = {_value(run, "dataset") for run in runs}
    own = {_value(run, "dataset") for run in runs if _value(run, "trainer") == "ZeroShot"}
    return own == every or not any(run.results.get("zero_shot") for run in runs)
