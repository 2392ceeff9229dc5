"""Few-shot curves: places, their average, the zero-shot star."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fedvlm.report.figures import few_shot
from fedvlm.report.figures.drawing.levels import Level, mean_levels
from fedvlm.report.figures.selection import FigureRuns

from .runs import make


def test_few_shot_averages_what_all_places_have(tmp_path: Path) -> None:
    runs = [
        make(tmp_path, "A", seed, [0, base + shots + seed], shots=shots, dataset=name, zero=zero)
        for name, base, zero in (("One", 10, 20.0), ("Two", 30, 40.0))
        for shots in ((1, 2, 4) if name == "One" else (2, 4)) for seed in (1, 2)
    ]
    selection = FigureRuns(runs)
    one, two, average = few_shot.select(selection)
    assert [p.title for p in (one, two, average)] == ["One", "Two", "average of 2"]
    assert one.lines[0].x == [1, 2, 4] and one.lines[0].mean == [12.5, 13.5, 15.5]
    assert [p.zero_shot for p in (one, two, average)] == [20, 40, 30]
    line = average.lines[0]
    assert line.x == [2, 4] and line.mean == [23.5, 25.5]
    assert line.std == pytest.approx([math.sqrt(0.5)] * 2)  # seeds 1 and 2 differ by 1


def test_references_are_averaged_where_all_places_have_one() -> None:
    one = [Level("alone", "a", 10.0, 2.0), Level("alone", "a", 20.0, 4.0)]
    two = [Level("alone", "b", 30.0, 4.0), Level("bound", "c", 90.0, 4.0)]
    assert mean_levels([one, two]) == [Level("alone", "mean over the data sets", 25.0, 4.0)]
    assert mean_levels([]) == []


@pytest.mark.parametrize(("partitions", "words"), [
    (["iid-K2-f1"] * 2, "labelled images per class at each client"),
    (["disjoint-K2-f1", "n_classes-2-K2-f1"], "labelled images per class at each client"),
    (["disjoint-repeat0.2-K2-f1"] * 2, "labelled images per class"),
    (["dirichlet-1-K5-f1", "quantity-1-K5-f1"], "labelled images per class, all clients together"),
    (["domain_dirichlet-1-K5-f1"] * 2,
     "labelled images per class and domain, all clients together"),
    (["sites-K2-f1"] * 2, "labelled images per class"),
    (["iid-K2-f1", "dirichlet-1-K5-f1"], "labelled images per class"),
])
def test_the_axis_says_whose_images_are_counted(
    tmp_path: Path, partitions: list[str], words: str
) -> None:
    """Shots are drawn by each client, or once and then dealt: ``data.partition.kinds``."""
    runs = []
    for name, partition in zip(("One", "Two"), partitions, strict=True):
        for shots in (1, 2):
            runs.append(make(tmp_path, "A", 1, [0, 10.0 + shots], shots=shots, dataset=name))
            runs[-1].protocol["partition"] = partition  # type: ignore[index]
    assert few_shot.draw(few_shot.select(FigureRuns(runs))).get_supxlabel() == words


def test_few_shot_needs_two_numbers_of_shots(tmp_path: Path) -> None:
    selection = FigureRuns([make(tmp_path, "A", 1, [0, 5])])
    assert few_shot.select(selection) == "the runs of no dataset differ in shots"
