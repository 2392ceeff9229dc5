"""Runs of several protocols, sorted so that each table holds one: a table per data set.

Where all runs share a protocol nothing is sorted. Where they do not, but the runs of every data set
do, each data set gets a table; those that agree also share one, for the sake of its average, which
stands over cells of one protocol only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedvlm.core.errors import ConfigError
from fedvlm.report.tables.cells import AVERAGED
from fedvlm.report.tables.check import same_protocol
from fedvlm.report.tables.facts import RunFacts

DATASET = "dataset"


@dataclass(frozen=True)
class TableShare:
    """The runs of one table.

    Attributes:
        entries: of one protocol, but for what differs on request.
        mixed: what does, in words.
        note: why these and no others; empty where they are all.
    """

    entries: Sequence[RunFacts]
    mixed: Sequence[str] = ()
    note: str = ""


def share_runs(
    entries: Sequence[RunFacts], rows: Sequence[str], cols: Sequence[str],
    mixed: Sequence[str] | None,
) -> list[TableShare]:
    """Return the runs of each table to be made.

    Args:
        rows, cols: the table's keys.
        mixed: keys in which runs may differ on request; empty: any; None: nothing may.

    Raises:
        ConfigError: the runs differ, and no data set of its own.
    """
    axes = (*rows, *cols)
    try:
        return [TableShare(entries, same_protocol(entries, axes, mixed))]
    except ConfigError:
        sets = _by_dataset(entries)
        if mixed is not None or DATASET not in axes or len(sets) < 2:
            raise
    for part in sets.values():
        same_protocol(part, axes, None)
    words = "; ".join(same_protocol(entries, axes, ()))
    note = f"a table for each data set, as they differ in {words}"
    out = [TableShare(part, note=note) for part in sets.values()]
    if tuple(cols) in AVERAGED or tuple(rows) in AVERAGED:
        for names in _agreeing(sets, axes):
            together = [e for name in names for e in sets[name]]
            out.append(TableShare(together, note=(
                f"these {len(names)} of {len(sets)} data sets have one protocol, and so an average"
            )))
    return out


def _by_dataset(entries: Sequence[RunFacts]) -> dict[str, list[RunFacts]]:
    sets: dict[str, list[RunFacts]] = {}
    for entry in sorted(entries, key=lambda e: str(e.fact(DATASET)).casefold()):
        sets.setdefault(str(entry.fact(DATASET)), []).append(entry)
    return sets


def _agreeing(sets: dict[str, list[RunFacts]], axes: Sequence[str]) -> list[list[str]]:
    """Return the names of the data sets that share a protocol, two or more in each list."""
    groups: list[list[str]] = []
    for name, part in sets.items():
        for group in groups:
            try:
                same_protocol([*(e for other in group for e in sets[other]), *part], axes, None)
            except ConfigError:
                continue
            group.append(name)
            break
        else:
            groups.append([name])
    return [group for group in groups if len(group) > 1]
