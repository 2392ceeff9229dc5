"""The map as a table: means and standard errors over draws of each cell."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from evidence.map.cell import ALONE

METRICS = ("personal", "balanced", "worst", "hurt")
COLUMNS = ("set", "clients", "images", "skew", "shift", "method", "seeds", *METRICS, "gain",
           "gain_se", "balanced_gain", "balanced_gain_se")
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
