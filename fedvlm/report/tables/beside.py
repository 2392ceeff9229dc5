"""Columns beside a table's metric: what was spent, the gain, and paired differences to a method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedvlm.core.errors import ConfigError
from fedvlm.report.statistics.contrast import BOUND, EXACT, SEEDS_ALONE, Contrast, contrast
from fedvlm.report.statistics.intervals import SEEDS, SOURCES
from fedvlm.report.statistics.paired import holm
from fedvlm.report.tables.apart import DATASET
from fedvlm.report.tables.cells import TableCell, average
from fedvlm.report.tables.layout import Places, TableRow, cell_at, places_of_method
from fedvlm.report.tables.metrics import COLUMNS, metric
from fedvlm.report.tables.papers import source_of

THESE, NEW = "these sets", "a new set"
VARIANCE = "variance of seeds{}, Satterthwaite's degrees of freedom"
IMAGES = " and test images"
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
    sets: Sequence[int], versus: str, pools: str,
) -> tuple[list[TableRow], list[str]]:
    """Add the mean paired difference to a method: these sets, a new set, wins, ties and losses.

    Nothing is added to several columns that are no data sets: they share seeds and images, so
    their mean has no interval of this kind.

    Args:
        base: the rows without what stands beside them.
        sets: places of the data sets' columns.
        pools: ``dataset`` or ``held_out`` where the columns are those alone (``cells.AVERAGED``).

    Raises:
        ConfigError: the table has no such method, or several.
    """
    home = _home(base, versus)
    if len(sets) > 1 and not pools:
        return list(lines), list(columns)
    wider = []
    for one, line in zip(base, lines, strict=True):
        seen = _contrast(home, one, sets, columns, pools) if one is not home and one.rival else None
        every = _cells(seen, one, sets)
        kept = every[:3] if len(sets) > 1 else (every[0], every[2])
        wider.append(replace(line, cells=(*line.cells, *kept)))
    heads = [f"minus {home.label}, {THESE} [95 %]", *([NEW] if len(sets) > 1 else []), "+/=/-"]
    return wider, [*columns, *heads]


def difference_rows(
    lines: Sequence[TableRow], columns: Sequence[str], versus: str, pools: str
) -> tuple[list[TableRow], list[str], str]:
    """Return the table of paired differences per column: rows, column labels, caption."""
    home, sets = _home(lines, versus), range(len(columns))
    rivals = [one for one in lines if one is not home and one.rival and one.method]
    name = metric(lines[0].cells[0].metric).name
    words = (f"{name} minus that of {home.label}, in pairs of one seed and data seed: mean "
             "difference and its 95 % interval. ")
    several = len(columns) > 1
    if several and not pools:
        rows = [replace(one, cells=tuple(_cells(_contrast(home, one, [at]), one, [at])[0]
                                         for at in sets)) for one in rivals]
        every = [_contrast(home, one, [at]) for one in rivals for at in sets]
        images = any(one and one.images != SEEDS_ALONE for one in every)
        how = VARIANCE.format(IMAGES) if images else "Student's t"
        return rows, list(columns), (
            f"{words}Per column over its seeds ({how}); the columns are not data sets alone, so "
            f"nothing is pooled over them.{_certainty(every)}")
    whole = [_contrast(home, one, sets, columns, pools) for one in rivals]
    adjusted = holm([seen.chance if seen else None for seen in whole])
    rows = []
    for one, seen, p in zip(rivals, whole, adjusted, strict=True):
        each = [_cells(_contrast(home, one, [at]), one, [at])[0] for at in sets]
        chance = "-" if p is None else "< 0.001" if p < 1e-3 else f"{p:.3f}"
        end = TableCell(one.cells[0].metric, mean=p, words=chance)
        these, new, *more = _cells(seen, one, sets)
        rows.append(replace(one, cells=(*((*each, these, new) if several else (these,)), *more,
                                        end)))
    ends = ["+/=/-", "detectable", "p (Holm)"]
    heads = [*columns, THESE, NEW, *ends] if several else [*columns, *ends]
    words += (
        ("Per data set over its seeds; " + estimands(whole) if several else
         "+/=/-: seeds above, equal, below. ")
        + "Detectable: the true difference that is detected on these sets with a power of 80 %. "
          "p: the t test of that interval, adjusted by Holm for the methods shown."
        + _certainty(whole)
    )
    return rows, heads, words


def estimands(differences: Sequence[Contrast | None]) -> str:
    """Return what the columns "these sets" and "a new set" say, and of what kind the second is."""
    there = [seen for seen in differences if seen]
    ahead = any(seen.ahead for seen in there)
    how = VARIANCE.format(IMAGES if any(seen.images != SEEDS_ALONE for seen in there) else "")
    sources = max((seen.sources for seen in there), default=0)
    kind = (f"95 % prediction interval of the difference on one more data set, from {sources} "
            "independent sources" if ahead else
            f"smallest to largest difference of a set, as fewer than {SOURCES} independent sources "
            "allow no prediction")
    return (f"{THESE}: mean difference over exactly these data sets ({how}); {NEW}: {kind}. "
            "Public data sets are no sample of hospitals. +/=/-: data sets above, equal, below. ")


def _certainty(differences: Sequence[Contrast | None]) -> str:
    """Say how many seeds there are, of fewer than a claim needs, and what test images add."""
    there = [seen for seen in differences if seen]
    fewest = min((seen.seeds for seen in there), default=SEEDS)
    words = "" if fewest >= SEEDS else f" Seeds: {fewest}; a claim needs {SEEDS}."
    kinds = {seen.images for seen in there if seen.error is not None}
    if EXACT in kinds:
        words += " Test images are compared one by one."
    if BOUND in kinds:
        words += (" The results count right answers per client, so the test images' variance is "
                  "that of independent errors (too wide rather than too narrow).")
    if SEEDS_ALONE in kinds:
        words += " The intervals hold seeds alone, no test images."
    return words


def _home(lines: Sequence[TableRow], versus: str) -> TableRow:
    there = places_of_method(lines, versus, "--versus")
    if len(there) > 1:
        names = ", ".join(lines[at].label for at in there)
        raise ConfigError(f"--versus {versus}: several rows are of that method ({names}); name one")
    return lines[there[0]]


def _contrast(
    home: TableRow, other: TableRow, sets: Sequence[int], names: Sequence[str] = (),
    axis: str = "",
) -> Contrast | None:
    cells = [[one.cells[at] for at in sets] for one in (home, other)]
    a, b = ([cell.values[0] if cell.values else {} for cell in one] for one in cells)
    whole = all(cell.answers for one in cells for cell in one if cell.values)
    answers = tuple([cell.answers[0] if cell.answers else {} for cell in one] for one in cells)
    return contrast(a, b, metric(home.cells[sets[0]].metric).counted,
                    [source_of(names[at]) if axis == DATASET else axis for at in sets],
                    (answers[0], answers[1]) if whole else None)


def _cells(seen: Contrast | None, line: TableRow, sets: Sequence[int]) -> list[TableCell]:
    """Return a difference's cells: these sets, a new set, its signs, what it would detect."""
    like = line.cells[sets[0]]
    name, digits, scale = like.metric, like.digits, metric(like.metric).scale
    if seen is None:
        return [TableCell(name)] * 4
    words = f"{seen.mean * scale:+.{digits}f}"
    half = None
    if seen.low is not None and seen.high is not None:
        half = (seen.high - seen.low) / 2
        words += f" [{seen.low * scale:+.{digits}f}, {seen.high * scale:+.{digits}f}]"
    detectable = "-" if seen.detectable is None else f"{seen.detectable * scale:.{digits}f}"
    low, high = seen.ahead or (seen.least, seen.most)
    span = f"{low * scale:+.{digits}f}", f"{high * scale:+.{digits}f}"
    new = f"[{span[0]}, {span[1]}]" if seen.ahead else f"{span[0]} to {span[1]}"
    return [
        TableCell(name, seen.mean, ci=half, n=seen.pairs, of=seen.pairs, words=words),
        TableCell(name, words=new),
        TableCell(name, words=f"{seen.wins}/{seen.ties}/{seen.losses}"),
        TableCell(name, seen.detectable, words=detectable),
    ]
