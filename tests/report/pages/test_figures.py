"""Figures of a page over many runs."""

from __future__ import annotations

from pathlib import Path

from fedvlm.report.collect import collect
from fedvlm.report.figures.selection import FigureRuns
from fedvlm.report.pages import figures
from tests.report.page_runs import Reader
from tests.report.table_runs import write_run


def test_figures_of_a_sweep_keep_a_method_s_colour(tmp_path: Path):
    write_run(tmp_path, "Ditto", "Cars", last={"personal": 1.0}, curve=[1, 2])
    write_run(tmp_path, "Zeta", "Cars", last={"personal": 1.0}, curve=[1, 2])
    write_run(tmp_path, "Zeta", "Pets", last={"personal": 1.0}, curve=[1, 2])
    page = figures.of_runs(FigureRuns(collect([tmp_path]).runs))
    assert Reader(page).tags["figure"] == 3, "a forest, two of rounds; nothing was sent"
    pets = page[page.index("<h3>Pets</h3>"):]
    assert "stroke:var(--fig-2)" in pets, "Zeta is the second method here too"
