"""A table of finished runs as plain data: rows, columns, cells with mean and spread, caption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedvlm.core.errors import ConfigError
from fedvlm.core.spelling import NOT_RANKED
from fedvlm.report.collect import Collected
from fedvlm.report.tables.apart import share_runs
from fedvlm.report.tables.beside import columns_beside, difference_columns, difference_rows
from fedvlm.report.tables.caption import (
    brief_difference,
    caption,
    notes_on,
    short_caption,
    version_text,
)
from fedvlm.report.tables.cells import (
    AVERAGE,
    AVERAGED,
    BELOW,
    H_OF_AVERAGES,
    MEAN_OF_H,
    NOT_RIVALS,
    CellRows,
    TableCell,
    average,
    averaged_by,
    harmonic_of_averages,
    mark_best,
)
from fedvlm.report.tables.check import same_config
from fedvlm.report.tables.facts import (
    METRIC,
    Pair,
    RunFacts,
    add_references,
    check_keys,
    facts_of,
    filter_runs,
)
from fedvlm.report.tables.layout import (
    Places,
    TableRow,
    cell_at,
    label_of,
    labels,
    order_table,
    spell_names,
)
from fedvlm.report.tables.metrics import (
    check_columns,
    check_metrics,
    metric,
    rounds_to_problems,
)
from fedvlm.report.tables.papers import Paper
from fedvlm.report.tables.rivals import beaten_by, coincidences, reference_notes
from fedvlm.runs.identity import shorten_lines
from fedvlm.runs.verify.answer import COMPARED, UNCOVERED, goes_around


@dataclass(frozen=True)
class Spec:
    """What table is asked for.

    Attributes:
        rows, cols: protocol keys, config keys or ``metric``; several are combined.
        metrics: numbers (``target.*`` for all of a kind); without an axis ``metric`` each gets a
            table of its own.
        where, exclude: key and value that runs must, or must not, have.
        reference: names in ``facts.REFERENCES``.
        mixed: keys in which runs may differ; empty: any; None: nothing may.
        ci: whether the 95 % t-interval is shown instead of the standard deviation.
        digits: decimals of percentages.
        columns: numbers that stand beside the metric, as means over the data sets.
        versus: a method; the others get their paired differences to it.
        order: of the rows: ``name``, ``best`` (first), or methods that come first.
        papers: method -> what its card says; groups rows where there are any.
        names: whether methods and data sets are spelt as in papers.
        symbols: whether metrics of base and new classes are, too.
    """

    rows: tuple[str, ...] = ("trainer",)
    cols: tuple[str, ...] = ("dataset",)
    metrics: tuple[str, ...] = ("personal",)
    where: tuple[Pair, ...] = ()
    exclude: tuple[Pair, ...] = ()
    reference: tuple[str, ...] = ()
    mixed: tuple[str, ...] | None = None
    ci: bool = False
    digits: int = 1
    columns: tuple[str, ...] = ()
    versus: str = ""
    order: tuple[str, ...] = ("name",)
    papers: Mapping[str, Paper] = field(default_factory=dict)
    names: bool = False
    symbols: bool = False


@dataclass(frozen=True)
class ReportTable:
    """A finished table; ``render`` writes it.

    Attributes:
        metrics: the names shown.
        corner: the row keys, joined.
        rows, columns: labels; a trailing ``*`` marks extra data.
        cells: one tuple per row.
        caption: what the numbers are, under which protocol, of which data, made how.
        notes: what is marked, missing, left out.
        ci: whether the spread shown is the 95 % t-interval.
        n: the most seeds of a cell.
        brief: the caption in one sentence, for a paper.
        made: versions and code behind the runs.
        groups: per row the heading that it stands under; empty where there are none.
        methods: per row the method's name; '' for references and averages.
    """

    metrics: tuple[str, ...]
    corner: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: CellRows
    caption: str
    notes: tuple[str, ...] = ()
    ci: bool = False
    n: int = 0
    brief: str = ""
    made: str = ""
    groups: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()


def tables(collected: Collected, spec: Spec, command: str = "") -> list[ReportTable]:
    """Return the tables that ``spec`` asks for: one, or one per metric without such an axis.

    Data sets whose protocols differ have tables of their own (``apart``). With ``versus`` each is
    followed by that of its differences per data set.

    Raises:
        ConfigError: unknown keys or metrics, nothing left after the filters, mixed protocols,
            two runs of one identity with different numbers.
    """
    every, notes = facts_of(collected.runs)
    spec = replace(spec, rows=_named(spec.rows), cols=_named(spec.cols))
    axes = (*spec.rows, *spec.cols)
    _check_axes(spec, axes)
    check_keys(spec.rows, every, "--rows")
    check_keys(spec.cols, every, "--cols")
    check_keys(spec.mixed or (), every, "--mixed")
    entries = filter_runs(every, spec.where, spec.exclude)
    spec = replace(spec, metrics=check_metrics(spec.metrics, entries),
                   columns=check_columns(spec.columns, entries))
    kept = share_runs(entries, spec.rows, spec.cols, spec.mixed)
    notes += [*collected.notes(), *rounds_to_problems(spec.metrics, entries)]
    if collected.unfinished:
        notes.append(f"{len(collected.unfinished)} unfinished run(s) left out: "
                     f"{shorten_lines([str(p) for p in collected.unfinished], 6)}")
    groups = [spec.metrics] if METRIC in axes else [(name,) for name in spec.metrics]
    made: list[ReportTable] = []
    for share in kept:
        runs = spell_names(share.entries, spec.papers) if spec.names else share.entries
        said = [*([share.note] if share.note else []), *coincidences(runs, axes),
                *notes_on(runs, axes), *notes]
        for names in groups:
            made += _of_metrics(runs, spec, names, share.mixed, said, command)
    return made


def _named(keys: Sequence[str]) -> tuple[str, ...]:
    """Return the keys; the config's names of method and data set are the protocol's."""
    return tuple({"TRAINER.NAME": "trainer", "DATASET.NAME": "dataset"}.get(k, k) for k in keys)


def _in_papers(label: str) -> str:
    """Return a label with the names that papers on base and new classes give the metrics."""
    names = {"base_all": "Base", "new": "New", "hm2": "H"}
    return " / ".join(names.get(part, part) for part in label.split(" / "))


def _check_axes(spec: Spec, axes: Sequence[str]) -> None:
    twice = [key for key in axes if axes.count(key) > 1]
    if twice:
        raise ConfigError(f"--rows and --cols both name {twice[0]}; give it one of them")
    if spec.reference and "trainer" not in axes:
        raise ConfigError("--reference needs trainer among --rows or --cols: its numbers stand "
                          "beside those of the methods")
    for flag, value in (("--columns", spec.columns), ("--versus", spec.versus)):
        if value and ("trainer" not in spec.rows or METRIC in axes):
            raise ConfigError(f"{flag} needs trainer among --rows, and no axis {METRIC}; the "
                              "numbers of --columns can be given to --metric")


def _of_metrics(
    entries: Sequence[RunFacts], spec: Spec, names: tuple[str, ...], mixed: Sequence[str],
    notes: Sequence[str], command: str,
) -> list[ReportTable]:
    """Return the table of ``names``, and that of differences where they are asked for."""
    axes = (*spec.rows, *spec.cols)
    everyone = add_references(entries, spec.reference)
    columns = labels(everyone, spec.cols, axes, names)
    by_place: dict[tuple[str, str, str], list[RunFacts]] = {}
    for entry in everyone:
        for name in names:
            place = (label_of(entry, spec.rows, axes, name), label_of(entry, spec.cols, axes, name))
            by_place.setdefault((*place, name), []).append(entry)
    places, differing, copies = _unique(by_place, spec.mixed)
    references = [any(e.reference and label_of(e, spec.cols, axes, n) == c for e in everyone
                for n in names) and "trainer" in spec.cols for c in columns]
    lines = _lines(everyone, spec, names, columns, places, references)
    lines = [one for one in lines if one.rival or any(c.mean is not None for c in one.cells)]
    lines, columns, averaged = _with_averages(lines, columns, spec, names, places)
    sets = [at for at, column in enumerate(columns) if column not in
            (AVERAGE, H_OF_AVERAGES, MEAN_OF_H)]
    references += [False] * (len(columns) - len(references))
    simulated = any(e.run.simulated for e in entries)
    if simulated:
        apart = [NOT_RANKED]
    else:
        lines, apart = _marked(lines, columns, spec, references)
    lines, beaten = beaten_by(lines, columns, entries, places, axes)
    extra = _extra(everyone, spec, axes, names)
    lines = order_table(lines, ("name",) if simulated else spec.order, averaged == "cols")
    base = lines
    if spec.columns:
        lines, columns = columns_beside(lines, columns, len(sets), spec.columns, places, names[0],
                                        spec.ci, spec.digits)
    if spec.versus:
        lines, columns = difference_columns(base, lines, columns, sets, spec.versus,
                                            _pooled_axis(spec))
    most = _most(base, references)
    runs = [e for e in entries if not e.reference]
    marked = None if simulated else _marks(base, spec, references)
    remarks = [
        *_remarks(base, columns, most, extra, bool(averaged), beaten),
        *_unpaired([{e.seeds for e in here if not e.reference} for here in places.values()]),
        *apart, *_copies(copies), *_private(runs), *reference_notes(everyone, names, axes), *notes,
    ]
    said = _in_papers if spec.symbols else str
    table = ReportTable(
        names, " / ".join(spec.rows),
        tuple(said(one.label) + "*" * (one.label in extra) for one in lines),
        tuple(said(c) + "*" * (c in extra) for c in columns), tuple(one.cells for one in lines),
        caption(runs, names, axes, [*mixed, *differing], averaged != "", spec.ci, most, command,
                marked, spec.columns),
        tuple(remarks), spec.ci, most, short_caption(names, spec.ci, most, marked, bool(beaten)),
        version_text(runs),
        tuple(one.group for one in lines) if any(o.group for o in lines) else (),
        tuple(one.method for one in lines),
    )
    if not spec.versus:
        return [table]
    return [table, _difference_table(table, base, columns[:len(sets)], spec, command)]


def _unique(
    places: Mapping[tuple[str, str, str], list[RunFacts]], mixed: Sequence[str] | None
) -> tuple[dict[tuple[str, str, str], list[RunFacts]], list[str], list[str]]:
    """Return each cell's runs, a seed once; what differs on request; the copies left out."""
    unique: dict[tuple[str, str, str], list[RunFacts]] = {}
    differing: dict[str, None] = {}
    copies: dict[str, None] = {}
    for (row, column, name), here in places.items():
        runs, words, twins = same_config(here, f"{row}, {column}", mixed)
        unique[row, column, name] = runs
        differing |= dict.fromkeys(words)
        copies |= dict.fromkeys(twins)
    return unique, list(differing), list(copies)


def _lines(
    entries: Sequence[RunFacts], spec: Spec, names: Sequence[str], columns: Sequence[str],
    places: Places, references: Sequence[bool],
) -> list[TableRow]:
    """Return the rows with the cells of their columns, not yet in the order asked for."""
    axes = (*spec.rows, *spec.cols)
    rows = labels(entries, spec.rows, axes, names)
    metrics = {(row, column): name for row, column, name in places}
    first = {label_of(e, spec.rows, axes, n): e for e in reversed(entries) for n in names}
    lines = []
    for row in rows:
        entry = first[row]
        cells = tuple(
            cell_at(places[row, column, metrics[row, column]], metrics[row, column], spec.ci,
                    spec.digits)
            if (row, column) in metrics else TableCell(names[0]) for column in columns
        )
        lines.append(TableRow.of(row, cells, entry, spec.rows, spec.papers))
    most = _most(lines, references)
    return [
        replace(line, cells=tuple(
            cell if ref else replace(cell, fewer=0 < cell.n < most)
            for cell, ref in zip(line.cells, references, strict=True)
        )) if line.rival else line for line in lines
    ]


def _most(lines: Sequence[TableRow], references: Sequence[bool]) -> int:
    """Return the most seeds of a cell; references do not count, which gather those of all runs."""
    return max((cell.n for line in lines if line.rival
                for cell, ref in zip(line.cells, references, strict=False) if not ref), default=0)


def _with_averages(
    lines: list[TableRow], columns: list[str], spec: Spec, names: Sequence[str], places: Places
) -> tuple[list[TableRow], list[str], str]:
    """Add averages over data sets; of a harmonic mean both, H of the averages first.

    Returns:
        Rows, column labels, and the axis that got an average (``cols``, ``rows`` or '').
    """
    axis = averaged_by(spec.rows, spec.cols, len(lines), len(columns))
    if not axis:
        return lines, columns, ""
    both = any(metric(name).parts for name in names)
    titles = [H_OF_AVERAGES, MEAN_OF_H] if both else [AVERAGE]

    def of(cells: Sequence[TableCell], keys: Sequence[tuple[str, str]]) -> tuple[TableCell, ...]:
        plain = average(cells, spec.ci)
        parts = metric(plain.metric).parts
        if not both:
            return (plain,)
        if not parts:
            return plain, plain
        inner = [
            [cell_at(places.get((*key, plain.metric), ()), part, spec.ci, spec.digits)
             for key in keys] for part in parts
        ]
        return harmonic_of_averages(plain, inner, spec.ci), plain

    if axis == "cols":
        wider = [replace(one, cells=(*one.cells, *of(one.cells, [(one.label, c) for c in columns])))
                 for one in lines]
        return wider, [*columns, *titles], axis
    below = [of(cells, [(one.label, column) for one in lines])
             for column, cells in zip(columns, zip(*(o.cells for o in lines), strict=True),
                                      strict=True)]
    ends = [TableRow(title, tuple(cells)) for title, cells in
            zip(titles, zip(*below, strict=True), strict=True)]
    return [*lines, *ends], columns, axis


def _marked(
    lines: Sequence[TableRow], columns: Sequence[str], spec: Spec, references: Sequence[bool]
) -> tuple[list[TableRow], list[str]]:
    """Mark the best of each column; say where nobody is marked because no seed is everybody's.

    Args:
        references: whether a column is a reference's, where the columns are methods.
    """
    across = "trainer" in spec.cols
    rivals = [not one for one in references] if across else [line.rival for line in lines]
    grid, apart = mark_best(tuple(line.cells for line in lines), spec.rows, spec.cols, rivals)
    names = [line.label for line in lines] if across else columns
    where = shorten_lines([names[at] for at in apart], 6)
    return (
        [replace(line, cells=cells) for line, cells in zip(lines, grid, strict=True)],
        [f"no common seeds to pair, so not marked: {where}"] if where else [],
    )


def _marks(
    lines: Sequence[TableRow], spec: Spec, references: Sequence[bool]
) -> frozenset[int] | None:
    """Return the marks that cells have; None where there are no two rivals."""
    rivals = references.count(False) if "trainer" in spec.cols else \
        0 if NOT_RIVALS & {*spec.rows} else sum(line.rival for line in lines)
    if rivals < 2:
        return None
    return frozenset(cell.rank for line in lines for cell in line.cells if cell.rank)


def _difference_table(
    table: ReportTable, lines: Sequence[TableRow], sets: Sequence[str], spec: Spec, command: str
) -> ReportTable:
    rows, columns, words = difference_rows(lines, sets, spec.versus, _pooled_axis(spec))
    return ReportTable(
        table.metrics, table.corner, tuple(one.label for one in rows), tuple(columns),
        tuple(one.cells for one in rows), f"{words} Made by: {command}." if command else words,
        (), False, table.n,
        brief_difference(table.metrics[0], spec.versus, "detectable" in columns),
        table.made, (), tuple(one.method for one in rows),
    )


def _pooled_axis(spec: Spec) -> str:
    """Return what the columns are, where differences may be averaged over them; '' elsewhere."""
    return spec.cols[0] if tuple(spec.cols) in AVERAGED else ""


def _extra(
    entries: Sequence[RunFacts], spec: Spec, axes: Sequence[str], names: Sequence[str]
) -> dict[str, str]:
    """Return the row or column labels of methods that use extra data, and which."""
    keys = spec.rows if "trainer" in spec.rows or "trainer" not in axes else spec.cols
    return {
        label_of(e, keys, axes, name): str(e.fact("extra_data"))
        for e in entries if e.fact("extra_data") and not e.reference for name in names
    }


def _private(runs: Sequence[RunFacts]) -> list[str]:
    """Return epsilon and delta of the methods that have them, of which data sets; what lacks."""
    said: dict[tuple[str, str], dict[str, None]] = {}
    for run in runs:
        if words := str(run.fact("privacy") or ""):
            key = (str(run.fact("trainer")), words)
            said.setdefault(key, {})[str(run.fact("dataset"))] = None
    told = [f"privacy ({method}; {', '.join(sets)}): {words}"
            for (method, words), sets in said.items()]
    bare = {str(one.fact("trainer")): None for one in runs
            if goes_around(one.run.results) and COMPARED[0] in one.run.results}
    return [*told, f"baselines of {', '.join(bare)} are left out: {UNCOVERED}"] if bare else told


def _remarks(
    lines: Sequence[TableRow], columns: Sequence[str], most: int, extra: Mapping[str, str],
    averaged: bool, beaten: Sequence[str],
) -> list[str]:
    """Return the notes that explain a table's signs."""
    notes = []
    cells = [cell for line in lines for cell in line.cells]
    fewer = [
        f"{line.label} / {c} n = {cell.n}" for line in lines
        for c, cell in zip(columns, line.cells, strict=False)
        if cell.fewer and not cell.average and cell.reached is None
    ]
    if fewer:
        notes.append(f"† fewer than {most} seeds, so not marked: {shorten_lines(fewer, 6)}")
    if beaten:
        notes.append(f"{BELOW} below a baseline of its kind: {shorten_lines(beaten, 30)}")
    if any(cell.reached is not None for cell in cells):
        notes.append("(a/b): only a of b seeds reach that accuracy, so no mean is given")
    if averaged and any(cell.mean is None for cell in cells):
        notes.append(f"{AVERAGE}: only for rows with all data sets")
    for words in dict.fromkeys(extra.values()):
        whose = ", ".join(label for label, what in extra.items() if what == words)
        notes.append(f"* extra data ({whose}): {words}")
    return notes


def _unpaired(seeds: Sequence[set[tuple[Any, ...]]]) -> list[str]:
    """Say where cells of equal size hold different seeds."""
    most = max(map(len, seeds), default=0)
    if len({frozenset(s) for s in seeds if len(s) == most}) < 2:
        return []
    return ["cells have different seeds, so differences between them include the seeds'"]


def _copies(copies: Sequence[str]) -> list[str]:
    many = f"{len(copies)} equal copies" if len(copies) > 1 else "1 equal copy"
    return [f"{many} of a run dropped: {shorten_lines(copies, 3)}"] if copies else []
