"""Variants against their method: paired by seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlm.core.stats import t_interval
from fedvlm.report.figures.selection import FigureRuns
from fedvlm.report.figures.settings import ablation
from tests.report.figures.runs import make


def test_bars_are_paired_differences_to_the_run_without_a_tag(tmp_path: Path) -> None:
    runs = []
    for tag, gap in (("", (0.0, 0.0, 0.0)), ("without", (-5.0, -6.0, -7.0)), ("more", (2.0, -2.0))):
        for seed, moved in enumerate(gap, start=1):
            run = make(tmp_path, "A", seed, [0, 60 + 10 * seed + moved], folder=tag,
                       config={"TRAINER.A.PART": tag})
            run.protocol["tag"] = tag  # type: ignore[index]
            runs.append(run)
    ((title, bars),) = ablation.select(FigureRuns(runs)).items()  # type: ignore[union-attr]
    assert title == "Set"
    assert [(bar.variant, bar.seeds, bar.sure) for bar in bars] == [
        ("without", 3, True), ("more", 2, False)]
    assert bars[0].mean == pytest.approx(-6)
    assert bars[0].half == pytest.approx(t_interval([-5.0, -6.0, -7.0]))
    axes = ablation.draw({title: bars}).axes[0]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["A: more", "A: without"]
    assert ablation.rows({title: bars})[0]["difference"] == pytest.approx(-6)


def test_without_variants_there_is_no_figure(tmp_path: Path) -> None:
    selection = FigureRuns([make(tmp_path, "A", seed, [0, 5]) for seed in (1, 2)])
    assert ablation.select(selection) == "no method has runs with and without a tag"
