"""Accuracy against bytes: methods that send nothing, and the ticks of the rest."""

from __future__ import annotations

from pathlib import Path

from fedvlm.report.figures import traffic
from fedvlm.report.figures.drawing.lines import LinePanel, MethodLine
from fedvlm.report.figures.selection import FigureRuns

from .runs import make


def test_a_method_that_sends_nothing_stands_at_a_tick_of_zero() -> None:
    silent = MethodLine("Local", [0.0, 0.0], [40.0, 50.0], [1.0, 1.0], [2, 2])
    sends = MethodLine("FedAvg", [0.0, 5.0, 10.0], [40.0, 50.0, 60.0], [1.0] * 3, [2] * 3)
    figure = traffic.draw([LinePanel("Set", [silent, sends])])
    figure.draw_without_rendering()
    shown = [t.get_text() for t in figure.axes[0].get_xticklabels()]
    assert shown == ["0", "5", "10"]


def test_a_tick_below_the_least_traffic_is_not_zero() -> None:
    silent = MethodLine("Local", [0.0, 0.0], [40.0, 50.0], [1.0, 1.0], [2, 2])
    sends = MethodLine("FedAvg", [0.0, 1.3, 9.0], [40.0, 50.0, 60.0], [1.0] * 3, [2] * 3)
    figure = traffic.draw([LinePanel("Set", [silent, sends])])
    figure.draw_without_rendering()
    shown = [t.get_text() for t in figure.axes[0].get_xticklabels()]
    assert shown == ["0", "1", "2", "5", "10"]


def test_traffic_adds_up_both_ways_in_megabytes(tmp_path: Path) -> None:
    selection = FigureRuns([make(tmp_path, "A", 1, [10, 20, 30], mb=4.0)])
    assert traffic.select(selection)[0].lines[0].x == [0.0, 4.0, 8.0]
