"""After ``--seeds 1 2 3``: mean and standard deviation over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedvlm.console.rows import table_lines
from fedvlm.core.stats import mean, sample_std
from fedvlm.job.record import summary


def seed_table(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table over contents of ``results.json``, one per seed.

    Last round of every seed; sample standard deviation (n - 1). A number that a seed lacks is
    left out.
    """
    rows = []
    for name in summary(results[0]["results"]["last"]):
        values = [r["results"]["last"].get(name) for r in results]
        known = [float(v) for v in values if v is not None]
        if known and len(known) == len(values):
            seeds = [f"seed {r['protocol']['seed']}" for r in results]
            rows.append({
                "metric": name, "mean": mean(known), "std": sample_std(known),
                **dict(zip(seeds, known, strict=True)),
            })
    return ["", f"over {len(results)} seeds, last round:", *table_lines(rows)]
