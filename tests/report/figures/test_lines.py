"""Figures of lines: degenerate data, awkward names, nothing clipped, the same bytes every time."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from fedvlm.report.figures import convergence, few_shot, style, traffic
from fedvlm.report.figures.drawing.lines import LinePanel, MethodLine, spread_out
from fedvlm.report.figures.selection import FigureRuns

from .drawings import AWKWARD, check, line, lines
from .runs import make

WIDTHS = (style.COLUMN, style.PAGE)
PANELS: dict[str, list[LinePanel]] = {
    "plain": [lines(["FedAvg", "FedTV"])],
    "one round": [lines(["FedAvg"], count=1, seeds=1)],
    "flat": [LinePanel("Set", [MethodLine("A", [0, 1], [100.0, 100.0], [0.0, 0.0], [2, 2])])],
    "gaps": [LinePanel("Set", [MethodLine("A", [0, 1, 2], [None, math.nan, 30.0],
                                          [None, None, math.nan], [1, 1, 1])])],
    "nothing known": [
        LinePanel("Set", [MethodLine("A", [0, 1], [None, None], [None, None], [1, 1])])],
    "ten methods": [lines([f"method {i}" for i in range(10)])],
    "awkward": [LinePanel(AWKWARD, [line(AWKWARD), line("_hidden")], 20.0)],
    "long": [lines(["x" * 200, "y" * 200])],
    "three panels": [lines(["FedAvg", "FedTV"]) for _ in range(3)],
}
DRAWN: dict[str, Callable[..., Figure]] = {
    "convergence": convergence.draw, "few_shot": few_shot.draw,
    "traffic": traffic.draw,
}


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("case", PANELS)
def test_lines(kind: str, case: str) -> None:
    for width in WIDTHS if case == "awkward" else WIDTHS[:1]:
        figure = DRAWN[kind](PANELS[case], width=width)
        assert figure.get_figwidth() == width
        check(figure)


def test_names_are_shown_as_they_are() -> None:
    svg = style.svg_text(convergence.draw(PANELS["awkward"]))
    texts = ["".join(e.itertext()) for e in ElementTree.fromstring(svg).iter() if
             e.tag.endswith("text")]
    assert any(t.startswith(AWKWARD) for t in texts) and any("_hidden" in t for t in texts)


def test_titles_of_neighbours_stay_apart() -> None:
    names = [f"Caltech101, base2new, {n} shots, dirichlet-0.3-K10-f1" for n in (1, 2, 4, 8)]
    found = [LinePanel(name, [line("A")]) for name in names]
    figure = convergence.draw(found, width=style.PAGE)
    figure.draw_without_rendering()
    shown = [a.get_title("left") for a in figure.axes]
    assert [words.replace("\n", " ") for words in shown] == names
    texts = [t for t in figure.findobj(Text) if isinstance(t, Text) and t.get_text() in shown]
    boxes = sorted((t.get_window_extent() for t in texts), key=lambda box: float(box.x0))
    assert len(boxes) == 4
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


@pytest.mark.parametrize(("at", "wanted"), [
    ([], []), ([3.0], [3.0]), ([0.0, 20.0], [0.0, 20.0]), ([5.0, 5.0], [0.0, 10.0]),
    ([0.0, 9.0, 18.0], [-1.0, 9.0, 19.0]), ([0.0, 1.0, 100.0], [-4.5, 5.5, 100.0]),
])
def test_labels_are_spread_out(at: list[float], wanted: list[float]) -> None:
    assert spread_out(at, 10) == pytest.approx(wanted)


def test_the_csv_holds_the_very_numbers(tmp_path: Path) -> None:
    name = 'A, "quoted" & 100 %'
    selection = FigureRuns([make(tmp_path, "A", 1, [10, 1 / 3], config={"X": name})])
    panels = convergence.select(selection)
    rows = list(csv.DictReader(io.StringIO(style.figure_csv(convergence.rows(panels)))))
    assert [float(r["mean"]) for r in rows] == [10, 1 / 3, 30], "the last is zero-shot's"
    assert [r["std"] for r in rows] == [""] * 3 and rows[0]["seeds"] == "1"


def test_a_line_ends_before_the_final_fine_tuning(tmp_path: Path) -> None:
    run = make(tmp_path, "Rep", 1, [10, 20, 50])
    path = run.path / "metrics.jsonl"
    first, second, last = path.read_text().splitlines()
    path.write_text("\n".join([first, second, last.replace(
        '"personal": 50', '"personal": 50, "personal_before_ft": 30')]) + "\n")
    selection = FigureRuns([run, make(tmp_path, "A", 1, [10, 20, 40])])
    for figure in (convergence, traffic):
        plain, tuned = figure.select(selection)[0].lines
        assert tuned.mean == [10, 20, 30] and tuned.after is not None
        assert tuned.after[1] == 50 and plain.after is None
        assert [row["metric"] for row in figure.rows(figure.select(selection))][3:7] == [
            *["personal_before_ft"] * 3, "personal"]
        drawing = figure.draw(figure.select(selection))
        check(drawing)
        ends = [list(one.get_ydata()) for one in drawing.axes[0].lines]
        assert [10, 20, 30, 50] not in ends and [50] in ends, "joined by nothing"


def test_many_methods_have_axes_each_or_the_best_a_colour() -> None:
    panel = lines([f"method {i}" for i in range(12)])
    alone = convergence.draw([panel], width=5.5)
    titles = [each.get_title("left") for each in alone.axes]
    assert titles[0] == "method 11" and len(titles) == 12, "the best first"
    assert [one.get_color() for one in alone.axes[0].lines].count(style.REST) == 11
    together = convergence.draw([panel, panel], width=5.5)
    colours = [one.get_color() for one in together.axes[0].lines]
    assert colours.count(style.REST) == 6 and len({*colours}) == 7
