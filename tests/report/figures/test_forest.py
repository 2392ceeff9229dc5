"""The forest of intervals, the boxes over clients, the Pareto front: their numbers, their looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlm.core.stats import t_interval
from fedvlm.report.collect import collect
from fedvlm.report.figures import client_gain, distribution, forest, pareto, style
from fedvlm.report.figures.drawing.strips import strips
from fedvlm.report.figures.pareto import ParetoPoint
from fedvlm.report.figures.selection import FigureRuns
from fedvlm.report.tables.papers import Paper
from fedvlm.runs.finished import FinishedRun
from tests.report.table_runs import reference, rows, write_run

from .drawings import AWKWARD, check


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> list[FinishedRun]:
    """Give twelve methods on two data sets with three seeds; the first is best by far."""
    root = tmp_path_factory.mktemp("many")
    for data, base in (("Cifar100", 3), ("EuroSAT", 5)):
        for at in range(12):
            name = AWKWARD if at == 11 else f"M{at}"
            for seed in (1, 2, 3):
                right = (base + (4 + seed // 3 if at == 0 else 0), base, max(base - seed % 2, 0))
                clients = rows(*right, n=10)
                mean = sum(row["accuracy"] for row in clients) / 3
                write_run(
                    root, name, data, seed, {"personal": mean, "clients": clients},
                    info={"totals": {"bytes_up": at * 1e6, "bytes_down": 0}},
                    sections={"references": {"logreg": reference("alone", 1, 1, 1),
                                             "majority": reference("alone", 0, 0, 0),
                                             "pooled": reference("bound", 9, 9, 9)}},
                )
    return collect([root]).runs


def test_a_forest_has_the_tables_intervals_and_tells_the_best_apart(
    many: list[FinishedRun],
) -> None:
    panels = forest.select(FigureRuns(many))
    assert isinstance(panels, list)
    assert [panel.title for panel in panels] == ["average of 2", "CIFAR-100", "EuroSAT"]
    average, cifar, _ = panels
    best, other = cifar.methods["M0"], cifar.methods["M1"]
    values = [100 * right / 30 for right in (12, 13, 13)]
    assert best.n == 3 and best.mean == pytest.approx(sum(values) / 3)
    assert best.half == pytest.approx(t_interval(values))
    assert best.peer and other.peer, "13, 13 and 17 points apart: too few seeds for 66 pairs"
    assert average.methods["M0"].mean == pytest.approx(
        (best.mean + panels[2].methods["M0"].mean) / 2)
    assert [(one.kind, one.name, one.value) for one in cifar.levels] == [
        ("alone", "logistic regression", 10.0),
        ("bound", "logistic regression, pooled", 90.0)]
    table = forest.rows(panels)
    assert table[0]["method"] == "M0" and table[0]["worse_than_best"] == "no"
    assert table[12]["method"] == "mean over the data sets (each client alone)"


def test_hollow_is_significantly_worse_on_these_sets(tmp_path: Path) -> None:
    """Ten and 50 points below on every set, one of which has both sets far apart."""
    for data, base in (("Cifar100", 700), ("EuroSAT", 900)):
        for name, gap in (("A", 0), ("B", 2), ("C", 100), ("D", 500)):
            for seed in range(1, 6):
                clients = rows(base - gap + (seed * gap) % 7, base - gap, n=1000)
                write_run(tmp_path, name, data, seed, {
                    "personal": sum(row["accuracy"] for row in clients) / 2, "clients": clients})
    panels = forest.select(FigureRuns(collect([tmp_path]).runs))
    assert isinstance(panels, list)
    for panel in panels:
        assert [k for k, v in panel.methods.items() if v.peer] == ["A", "B"], panel.title


def test_clients_quartiles_stand_beside_their_own_reference(many: list[FinishedRun]) -> None:
    panels = distribution.select(FigureRuns(many))
    assert isinstance(panels, list)
    first = distribution.rows(panels)[0]
    assert first["method"] == "M0" and first["clients"] == 9 and first["worst"] == 20
    assert (first["q1"], first["median"], first["q3"]) == (30, 30, 70)
    assert list(distribution.rows(panels)[12].items())[1] == ("method", distribution.REFERENCE)
    assert distribution.select(FigureRuns(many, "global")) is None


def test_gains_of_clients_are_steps_up_to_all_of_them(many: list[FinishedRun]) -> None:
    """Of M0's nine clients three gain 60 or 70 points and six 10 or 20."""
    panels = client_gain.select(FigureRuns(many))
    assert isinstance(panels, list) and panels[0].title == "CIFAR-100"
    line = panels[0].lines[0]
    assert line.label == "M0" and list(line.x) == sorted(line.x) and line.mean[-1] == 100
    share = dict(zip(line.x, line.mean, strict=True))
    assert share[20.0] == pytest.approx(100 * 6 / 9), "six of nine clients gain at most 20 points"
    assert client_gain.select(FigureRuns(many, "global")) is None
    drawn = client_gain.draw(panels)
    assert {axes.get_ylim() for axes in drawn.axes} == {(0.0, 100.0)}


def test_a_panel_goes_by_its_data_set_where_that_is_enough(many: list[FinishedRun]) -> None:
    figure, axes = strips(["A"], ["CIFAR-100, 10 shots", "DTD, all images of it"], 2.5, "x")
    assert [one.get_title() for one in axes] == ["CIFAR-100", "DTD"]
    figure, axes = strips(["A"], ["DTD, 1 shot", "DTD, 2 shots"], 2.5, "x")
    assert [one.get_title().split() for one in axes] == [
        ["DTD,", "1", "shot"], ["DTD,", "2", "shots"],
    ]


def test_the_front_holds_who_is_best_for_as_few_bytes(many: list[FinishedRun]) -> None:
    points = [ParetoPoint("cheap", 1, 50, None, 1), ParetoPoint("same bytes", 1, 40, None, 1),
              ParetoPoint("dear", 9, 60, None, 1), ParetoPoint("worse and dearer", 20, 55, None, 1)]
    assert pareto.front_of(points) == ["cheap", "dear"]
    planes = pareto.select(FigureRuns(many))
    assert isinstance(planes, list) and planes[0].front == ["M0"], "best and sends nothing"


def test_methods_of_the_front_that_stand_close_are_told_apart() -> None:
    """Each has a marker and a colour of its own, in the legend too, and numbers do not meet."""
    points = [ParetoPoint(name, mb, value, None, 1) for name, mb, value in
              (("a", 45, 80.9), ("b", 46, 81.0), ("c", 47, 81.1), ("d", 900, 40.0))]
    figure = pareto.draw([pareto.Plane("x", points, pareto.front_of(points))])
    figure.draw_without_rendering()
    axes, legend = figure.axes[0], figure.legends[0]
    looks = [[(line.get_marker(), line.get_color()) for line in lines] for lines in (
        [x for x in axes.lines if x.get_markerfacecolor() == "none"], legend.get_lines()[:3])]
    assert looks[0] == looks[1] and [len(set(one)) for one in zip(*looks[0], strict=True)] == [3, 3]
    numbers = [text for text in axes.texts if text.get_text() in "123"]
    assert [text.get_color() for text in numbers] == [colour for _, colour in looks[0]]
    boxes = [text.get_window_extent() for text in numbers]
    assert len(boxes) == 3
    assert not any(a.overlaps(b) for a, b in zip(boxes, boxes[1:], strict=False))


@pytest.mark.parametrize("worse", [False, True])
def test_a_legend_has_the_others_where_there_are_any(worse: bool) -> None:
    points = [ParetoPoint("a", 1, 50, None, 1), ParetoPoint("b", 2, 40 if worse else 60, None, 1)]
    (legend,) = pareto.draw([pareto.Plane("x", points, pareto.front_of(points))]).legends
    words = [text.get_text() for text in legend.get_texts()]
    assert ("another is better with as few bytes" in words) == worse


@pytest.mark.parametrize("figure", [forest, distribution, client_gain, pareto])
def test_many_methods_fit_a_narrow_and_a_wide_page(figure, many: list[FinishedRun]) -> None:
    papers = {"M0": Paper("M0", "no collaboration"), "M1": Paper("M1", "personal models")}
    data = figure.select(FigureRuns(many, papers=papers))
    with style.font("serif"):
        check(figure.draw(data, width=5.5))
    check(figure.draw(data, width=style.COLUMN))


def test_one_seed_has_no_interval_and_one_run_no_comparison(tmp_path: Path) -> None:
    write_run(tmp_path, "A", last={"personal": 50.0})
    alone = FigureRuns(collect([tmp_path]).runs)
    assert [one.select(alone) for one in (forest, distribution, client_gain, pareto)] == [None] * 4
    write_run(tmp_path, "B", last={"personal": 40.0})
    panels = forest.select(FigureRuns(collect([tmp_path]).runs))
    assert isinstance(panels, list)
    one = panels[0].methods["A"]
    assert one.half is None and one.peer and len(panels) == 1
    check(forest.draw(panels))
