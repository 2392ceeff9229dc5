"""From runs to lines: seeds, places, labels."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fedvlm.report.figures import convergence
from fedvlm.report.figures.selection import FigureRuns

from .runs import make


def test_seeds_are_averaged_and_rounds_that_one_lacks_left_out(tmp_path: Path) -> None:
    runs = [make(tmp_path, "A", 1, [10, None, 30]), make(tmp_path, "A", 2, [20, 25, 50])]
    selection = FigureRuns(runs)
    assert selection.problems == []
    (panel,) = convergence.select(selection)
    (line,) = panel.lines
    assert (panel.title, line.label) == ("Set", "A")
    assert line.x == [0.0, 2.0] and line.mean == [15, 40] and line.n == [2, 2]
    assert line.std == pytest.approx([math.sqrt(50), math.sqrt(200)])


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    selection = FigureRuns([make(tmp_path, "A", 1, [10, 30])])
    assert convergence.select(selection)[0].lines[0].std == [None, None]


def test_another_learning_rate_is_another_line_and_says_so(tmp_path: Path) -> None:
    runs = [
        make(tmp_path, "A", 1, [10, 20]),
        make(tmp_path, "A", 2, [10, 40], config={"OPTIM.LR": 0.5}),
        make(tmp_path, "B", 1, [10, 30]),
    ]
    selection = FigureRuns(runs)
    assert [c.label for c in selection.groups] == ["A, LR 0.1", "A, LR 0.5", "B"]
    assert all(len(c.runs) == 1 for c in selection.groups)


def test_the_same_run_twice_is_left_out_and_named(tmp_path: Path) -> None:
    runs = [make(tmp_path, "A", 1, [10, 20]), make(tmp_path, "A", 1, [10, 90], folder="again")]
    selection = FigureRuns(runs)
    assert convergence.select(selection)[0].lines[0].mean == [10, 20]
    assert len(selection.problems) == 1 and "again" in selection.problems[0]


def test_titles_name_what_differs(tmp_path: Path) -> None:
    runs = [make(tmp_path, "A", 1, [0, 5], shots=s) for s in (1, 4)]
    selection = FigureRuns(runs)
    panels = convergence.select(selection)
    assert [p.title for p in panels] == ["Set, 1 shot", "Set, 4 shots"]
