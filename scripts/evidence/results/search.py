"""What the page shows of a tuning: its noise, its curves, its hyper-parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from evidence.results.curves import grid
from evidence.results.tuning import Search
from fedvlm.console.screen import complain
from fedvlm.core import files
from fedvlm.report.figures import style
from fedvlm.report.tables.papers import Paper
from fedvlm.report.tables.render import table_markdown
from fedvlm.report.tables.tex import Style, tex
from fedvlm.sweep.tune.appendix import hyperparameters
from fedvlm.sweep.tune.curves import curve_rows
from fedvlm.sweep.tune.progress import progress_of
from fedvlm.sweep.tune.records import PACKED, TrialRecords

FIGURES, TABLES, NAME = "figures", "tables", "hyperparameters"
CURVES = {  # of ``curves.AXES`` -> file
    "best_by_trials": "tuning-by-trials", "best_by_steps": "tuning-by-steps",
    "best_by_seconds": "tuning-by-seconds",
}


def search_of(tuned: Path, record: Mapping[str, Any], papers: Mapping[str, Paper]) -> Search:
    """Write figures and tables of a tuning beside its ``tuned.json``; return what the page shows.

    Args:
        record: what ``tuned.json`` says.

    Raises:
        ConfigError: a method, or a key of its values, is gone.
        DataError: the record of its runs is damaged, or the folder cannot be written.
    """
    into = tuned.parent
    made = [replace(table, made=f"fedvlm table --hyperparameters docs/results/{tuned.name} "
                    f"({str(record['digest'])[:12]})")
            for table in hyperparameters(tuned, "", papers)]
    with files.explain_errors(into):
        (into / TABLES).mkdir(parents=True, exist_ok=True)
    path = into / TABLES / f"{NAME}.tex"
    files.write_text(path, tex(made, False, Style(f"tab:{NAME}", papers, 5.5, "results")))
    shown = tuple(table_markdown([replace(t, caption="", notes=())]).rstrip("\n") for t in made)
    search = Search(shown, tuple(t.caption for t in made), f"{TABLES}/{path.name}")
    records = TrialRecords(into)
    if not records.lines:
        complain(f"{into / PACKED} is missing or empty: the page shows no noise and no "
                 "curves of the tuning (--tuned FILE copies it from the tuning's folder)",
                 prefix="note")
        return search
    methods = progress_of(record, records.lines.values())
    table = curve_rows(methods)
    for name, file in CURVES.items():
        style.write_figure(into / FIGURES, file, grid(name, methods), table)
        (into / FIGURES / f"{file}.png").unlink()  # the page shows the SVG, papers take the PDF
    return replace(
        search, figures=tuple(f"{FIGURES}/{file}.svg" for file in CURVES.values()),
        noise={one.label: {"error": one.noise.clients, "seeds": one.noise.seeds,
                           "repeat": one.noise.repeat, "alike": one.noise.alike,
                           "first": one.first, "steps": one.points[-1].steps,
                           "cpu": one.points[-1].cpu} for one in methods},
    )
