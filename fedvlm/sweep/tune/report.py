"""What a tuning prints and writes beside its result: a table for the screen, CSV files and figures.

All of it follows from ``tuned.json`` and ``runs.jsonl`` in the tuning's folder, or from what
stands beside published results (``tuning.jsonl.xz``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvlm.console.rows import clock, table_lines
from fedvlm.console.screen import complain, say
from fedvlm.sweep.tune.progress import SearchProgress, progress_of
from fedvlm.sweep.tune.records import PACKED, TrialRecords
from fedvlm.sweep.tune.tuned import read_tuned

FOLDER = "report"  # beside ``tuned.json``
LEGEND = (
    "best: percent of validation images, its standard error over clients; gain over the "
    "method's defaults, paired; repeat: standard error of a score over other seeds; alike: number "
    "of trials within two standard errors of the best (itself included)"
)


def report(tuned: Path, into: Path | None = None) -> None:
    """Print cost and uncertainty of a tuning; write CSV files and figures.

    Args:
        tuned: the tuning's ``tuned.json``.
        into: where to; None: ``report/`` in the tuning's own folder, nowhere beside published
            results.

    Raises:
        DataError: it is damaged, or the folder cannot be written.
    """
    record = read_tuned(tuned)
    records = TrialRecords(tuned.parent)
    if not records.lines:
        complain(f"{records.path}: contains no run, so the budget used is unknown", prefix="note")
    if records.damaged:
        complain(f"{records.path}: {records.damaged} line(s) are damaged and were ignored",
                 prefix="note")
    methods = progress_of(record, records.lines.values())
    folder = into or (None if records.path.name == PACKED else tuned.parent / FOLDER)
    if not methods:
        complain(f"{tuned}: no method was tuned, so there is nothing to report", prefix="note")
        return
    say(*table_lines(map(_row, methods)), LEGEND)
    if folder is None:
        say("for CSV files and figures add --into FOLDER")
        return
    from fedvlm.sweep.tune.curves import write_curves  # start-up: 1 s of matplotlib

    write_curves(methods, [_numbers(method) for method in methods], folder)
    say(f"budget used and uncertainty of the scores: {folder}")


def _numbers(method: SearchProgress) -> Mapping[str, Any]:
    scored, dropped, failed = method.counts
    last, (gain, error) = method.points[-1], method.gain or (None, None)
    return {
        "method": method.label, "trials": len(method.points), "scored": scored,
        "dropped": dropped, "failed": failed, "runs": method.runs, "steps": last.steps,
        "cpu": last.cpu, "seconds": last.seconds, "first": method.first, "best": last.best,
        "error_clients": method.noise.clients, "error_seeds": method.noise.seeds,
        "error_repeat": method.noise.repeat, "gain": gain, "gain_error": error,
        "alike": method.noise.alike,
    }


def _row(method: SearchProgress) -> dict[str, str]:
    scored, dropped, failed = method.counts
    parts = [f"{scored} scored", *([f"{dropped} dropped"] if dropped else []),
             *([f"{failed} failed"] if failed else [])]
    last, gain = method.points[-1], method.gain
    return {
        "method": method.label, "trials": ", ".join(parts), "defaults": _percent(method.first),
        "best": f"{_percent(last.best)} ± {_percent(method.noise.clients)}",
        "gain": f"{gain[0]:+.1f} ± {gain[1]:.1f}" if gain else "-",
        "repeat": _percent(method.noise.repeat), "alike": str(method.noise.alike),
        "steps": f"{last.steps:,}", "cpu": clock(last.cpu),
    }


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
