"""After ``--seeds 1 2 3``: mean and standard deviation over seeds, from the runs' own files."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from fedvlm.cli_record import METRICS
from fedvlm.console_rows import table_lines
from fedvlm.run_identity import read_results


def seed_table(cfgs: Sequence[CfgNode], args: Namespace) -> list[str]:
    """Return the lines of a table over the finished runs of these configs.

    Sample standard deviation (n - 1); the last round of every seed.
    """
    found = [r for cfg in cfgs if (r := newest(cfg)) is not None]
    rows = []
    for name in METRICS:
        values = [r["results"]["last"].get(name) for r in found]
        known = [float(v) for v in values if v is not None]
        if len(known) == len(values) and known:
            rows.append({
                "metric": name, "mean": sum(known) / len(known), "std": spread(known),
                **{f"seed {c.SEED}": v for c, v in zip(cfgs, known, strict=True)},
            })
    return ["", f"over {len(found)} seeds, last round:", *table_lines(rows)]


def spread(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation; None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))


def newest(cfg: CfgNode) -> Mapping[str, Any] | None:
    """Return the finished results of a config's seeds below ``OUTPUT_DIR``, newest first."""
    pattern = f"**/seed{cfg.SEED}-data{cfg.DATA_SEED}/results.json"
    paths = sorted(Path(cfg.OUTPUT_DIR).glob(pattern), key=lambda p: p.stat().st_mtime_ns)
    return read_results(paths[-1]) if paths else None
