"""The ``fedvlm table`` command that a sweep ends with: one that was tried on its runs."""

from __future__ import annotations

import shlex
from pathlib import Path

from fedvlm.cli_sweep_plan import Plan
from fedvlm.errors import FedvlmError
from fedvlm.report.collect import Collected, collect
from fedvlm.report.table import Spec, tables

COMMAND = ("python", "-m", "fedvlm", "table")


def table_lines(plan: Plan, output: Path) -> list[str]:
    """Return the commands that show a sweep's runs: one, or one per data set.

    Data sets of different settings or partitions share no table, so each gets its own.
    """
    cols = ("dataset", "shots") if len(plan.shots) > 1 else ("dataset",)
    more = ("--cols", *cols) if len(cols) > 1 else ()
    whole = shlex.join([*COMMAND, str(output), *more])
    try:
        found = collect([output])
    except FedvlmError:
        return []
    if not found.runs:
        return []
    names = sorted({str(run.protocol.get("dataset")) for run in found.runs})
    if len(names) == 1 or _works(found, Spec(cols=cols)):
        return [f"table of the runs: {whole}"]
    each = [
        shlex.join([*COMMAND, str(output), "--where", f"dataset={name}", *more]) for name in names
    ]
    return ["tables of the runs, one per data set, as their protocols differ:",
            *(f"  {words}" for words in each)]


def _works(found: Collected, spec: Spec) -> bool:
    try:
        tables(found, spec)
    except FedvlmError:
        return False
    return True
