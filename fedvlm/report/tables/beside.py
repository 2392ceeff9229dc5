"""Columns beside a table's metric: what was spent, the gain, and paired differences to a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedvlm.core.errors import ConfigError
from fedvlm.report.statistics.contrast import Contrast, contrast
from fedvlm.report.statistics.paired import holm
from fedvlm.report.tables.cells import TableCell, average
from fedvlm.report.tables.facts import RunFacts
from fedvlm.report.tables.layout import TableRow, cell_at, places_of_method
from fedvlm.report.tables.metrics import COLUMNS, metric

Places = Mapping[tuple[str, str, str], list[RunFacts]]
TITLES = {name: word for word, name in COLUMNS.items()}


def columns_beside(
    lines: Sequence[TableRow], columns: Sequence[str], sets: int, others: Sequence[str],
    places: Places, name: str, ci: bool, digits: int,
) -> tuple[list[TableRow], list[str]]:
    """Add a column per metric of ``others``: each a mean over the first ``sets`` columns.

    Args:
        name: the metric whose runs they are of.
    """
    wider = []
    for line in lines:
        cells = list(line.cells)
        for other in others:
            each = [cell_at(places.get((line.label, column, name), ()), other, ci, digits)
                    for column in columns[:sets]]
            cells.append(average(each, ci))
        wider.append(replace(line, cells=tuple(cells)))
    heads = []
    for other in others:
        unit = metric(other).unit
        heads.append(TITLES.get(other, other) + (f" ({unit})" if unit not in ("%", "count", "")
                                                 else ""))
    return wider, [*columns, *heads]


def difference_columns(
    base: Sequence[TableRow], lines: Sequence[TableRow], columns: Sequence[str],
    sets: Sequence[int], versus: str, pools: bool,
) -> tuple[list[TableRow], list[str]]:
    """Add the mean paired difference to a method with its interval, and wins, ties and losses.

    Nothing is added to several columns that are no data sets: they share seeds and images, so
    their mean has no interval of this kind.

    Args:
        base: the rows without what stands beside them.
        sets: places of the data sets' columns.
        pools: whether the columns are data sets, or domains, alone (``cells.AVERAGED``).

    Raises:
        ConfigError: the table has no such method, or several.
    """
    home = _home(base, versus)
    if len(sets) > 1 and not pools:
        return list(lines), list(columns)
    wider = []
    for one, line in zip(base, lines, strict=True):
        seen = _contrast(home, one, sets) if one is not home and one.rival else None
        wider.append(replace(line, cells=(*line.cells, *_cells(seen, one, sets)[:2])))
    return wider, [*columns, f"minus {home.label} [95 %]", "+/=/-"]


def difference_rows(
    lines: Sequence[TableRow], columns: Sequence[str], versus: str, pools: bool
) -> tuple[list[TableRow], list[str], str]:
    """Return the table of paired differences per column: rows, column labels, caption.

    Args:
        pools: see ``difference_columns``.
    """
    home, sets = _home(lines, versus), range(len(columns))
    rivals = [one for one in lines if one is not home and one.rival and one.method]
    name = metric(lines[0].cells[0].metric).name
    words = (f"{name} minus that of {home.label}, in pairs of one seed and data seed: mean "
             "difference and its 95 % interval. ")
    several = len(columns) > 1
    if several and not pools:
        rows = [replace(one, cells=tuple(_cells(_contrast(home, one, [at]), one, [at])[0]
                                         for at in sets)) for one in rivals]
        return rows, list(columns), (
            f"{words}Per column Student's t over seeds; the columns are not data sets alone, so "
            "nothing is pooled over them.")
    whole = [_contrast(home, one, sets) for one in rivals]
    adjusted = holm([seen.p if seen else None for seen in whole])
    rows = []
    for one, seen, p in zip(rivals, whole, adjusted, strict=True):
        each = [_cells(_contrast(home, one, [at]), one, [at])[0] for at in sets]
        chance = "-" if p is None else "< 0.001" if p < 1e-3 else f"{p:.3f}"
        ends = [TableCell(one.cells[0].metric, mean=p, words=chance)] if several else []
        more = _cells(seen, one, sets)
        rows.append(replace(one, cells=(*(each if several else ()), *more, *ends)))
    heads = [*columns, "all sets", "+/=/-", "detectable", "p (Holm)"] if several else \
        [*columns, "+/=/-", "detectable"]
    words += (
        "Per data set Student's t over seeds"
        + ("; all sets: a random-effects mean over the data sets (Paule and Mandel's variance, "
           "Hartung and Knapp's interval), variance within sets pooled; +/=/-: data sets above, "
           "equal, below; detectable: the true mean difference that is detected with "
           "a power of 80 %; p: Wilcoxon's signed-rank test over data sets, "
           "from six on, adjusted by Holm for the methods shown" if several else
           "; +/=/-: seeds above, equal, below; detectable: the true difference that is detected "
           "with a power of 80 %")
        + "."
    )
    return rows, heads, words


def _home(lines: Sequence[TableRow], versus: str) -> TableRow:
    there = places_of_method(lines, versus, "--versus")
    if len(there) > 1:
        names = ", ".join(lines[at].label for at in there)
        raise ConfigError(f"--versus {versus}: several rows are of that method ({names}); name one")
    return lines[there[0]]


def _contrast(home: TableRow, other: TableRow, sets: Sequence[int]) -> Contrast | None:
    a, b = ([one.cells[at].values[0] if one.cells[at].values else {} for at in sets]
            for one in (home, other))
    return contrast(a, b, metric(home.cells[sets[0]].metric).counted)


def _cells(seen: Contrast | None, line: TableRow, sets: Sequence[int]) -> list[TableCell]:
    """Return the cells of a difference: with its interval, its signs, what it would detect."""
    like = line.cells[sets[0]]
    name, digits, scale = like.metric, like.digits, metric(like.metric).scale
    if seen is None:
        return [TableCell(name)] * 3
    words = f"{seen.mean * scale:+.{digits}f}"
    half = None
    if seen.low is not None and seen.high is not None:
        half = (seen.high - seen.low) / 2
        words += f" [{seen.low * scale:+.{digits}f}, {seen.high * scale:+.{digits}f}]"
    detectable = "-" if seen.detectable is None else f"{seen.detectable * scale:.{digits}f}"
    return [
        TableCell(name, seen.mean, ci=half, n=seen.pairs, of=seen.pairs, words=words),
        TableCell(name, words=f"{seen.wins}/{seen.ties}/{seen.losses}"),
        TableCell(name, seen.detectable, words=detectable),
    ]
