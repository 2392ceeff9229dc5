"""The map as a table: means and standard errors over draws of each cell."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from evidence.map.cell import ALONE, TOGETHER
from evidence.map.images import SETS
from fedvlm.core.stats import cell_interval

METRICS = ("personal", "balanced", "worst", "hurt")
COLUMNS = ("set", "clients", "images", "skew", "shift", "method", "seeds", *METRICS, "gain",
           "gain_se", "balanced_gain", "balanced_gain_se")
WHOLE, WORDS = ("clients", "images", "seeds"), ("set", "skew", "method")
POINTS = 2.0  # from which a gain counts
WHOLE_FROM = 0.75  # share of the cells of the set with the most
Row = dict[str, Any]


def summarize(cells: Sequence[Row]) -> list[Row]:
    """Return a row for each cell and method, columns ``COLUMNS``.

    ``gain`` is the personal accuracy above ``ALONE`` in points, paired by draw, ``gain_se`` its
    standard error over draws of clients and images of this set (nan for one draw).
    """
    several: dict[tuple[Any, ...], list[dict[str, dict[str, float]]]] = defaultdict(list)
    for cell in cells:
        key = tuple(cell[name] for name in COLUMNS[:5])
        if cell["numbers"]:
            several[key].append(cell["numbers"])
    out = []
    for key, draws in several.items():
        for method in draws[0]:
            row = dict(zip(COLUMNS[:5], key, strict=True))
            row |= {"method": method, "seeds": len(draws)}
            row |= {name: fmean(d[method][name] for d in draws) for name in METRICS}
            for metric, name in (("personal", "gain"), ("balanced", "balanced_gain")):
                gains = [d[method][metric] - d[ALONE][metric] for d in draws]
                row[name] = fmean(gains)
                row[f"{name}_se"] = (stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1
                                     else math.nan)
            out.append(row)
    return out


def write_table(rows: Sequence[Row], path: Path) -> None:
    """Write the table, numbers with two decimals."""
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS)
        for row in rows:
            out.writerow([f"{v:.2f}" if isinstance(v, float) else
                          ("yes" if v else "no") if isinstance(v, bool) else v
                          for v in (row[name] for name in COLUMNS)])


def read_table(path: Path) -> list[Row]:
    """Return the rows of a table that ``write_table`` wrote; none where there is no file."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [{name: text if name in WORDS else text == "yes" if name == "shift"
                 else int(text) if name in WHOLE else float(text) for name, text in row.items()}
                for row in csv.DictReader(file)]


def join_tables(new: Sequence[Row], old: Sequence[Row]) -> list[Row]:
    """Return new rows, and those of sets that only the old table has, in the order of ``SETS``."""
    there = {row["set"] for row in new}
    return sorted([*new, *(row for row in old if row["set"] not in there)],
                  key=lambda row: list(SETS).index(row["set"]))


def together(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the best way to share."""
    return [row for row in rows if row["method"] == TOGETHER]


def whole_sets(rows: Sequence[Row]) -> list[str]:
    """Return the sets that have nearly all cells: a mean over them compares like with like."""
    sizes: dict[str, set[tuple[Any, ...]]] = {}
    for row in rows:
        if not row["shift"]:
            sizes.setdefault(row["set"], set()).add(tuple(row[name] for name in COLUMNS[1:4]))
    most = max(map(len, sizes.values()), default=0)
    return [name for name, some in sizes.items() if len(some) >= WHOLE_FROM * most]


def sides(rows: Sequence[Row], metric: str = "gain", least: float = 0.0) -> list[int]:
    """Return for each row 1 or -1 where the gain is above ``least`` and its 95 % interval, else 0.

    Args:
        rows: of one method; of few draws the variance is pooled over their label skews.
        least: points.
    """
    alike: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        alike[_place(row)].append(row)
    out = []
    for row in rows:
        half = cell_interval((row["seeds"], row[f"{metric}_se"]),
                             [(r["seeds"], r[f"{metric}_se"]) for r in alike[_place(row)]])
        sure = half is not None and abs(row[metric]) > max(least, half)
        out.append(0 if not sure else 1 if row[metric] > 0 else -1)
    return out


def _place(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("set", "clients", "images", "shift"))
