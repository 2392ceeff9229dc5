"""Accuracy over a numeric setting: which runs a line joins."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.collections import LineCollection, PolyCollection

from fedvlm.report.figures.selection import FigureRuns
from fedvlm.report.figures.settings import axis
from tests.report.figures.runs import make


def test_a_line_joins_runs_that_differ_in_one_setting_alone(tmp_path: Path) -> None:
    runs = [make(tmp_path, "A", seed, [0, 40 + clients + seed], folder=f"r{clients}",
                 config={"FED.CLIENTS": clients, "OPTIM.MOMENTUM": 0.3})
            for clients in (2, 4, 64) for seed in (1, 2)]
    runs.append(make(tmp_path, "B", 1, [0, 90], config={"FED.CLIENTS": 4, "OPTIM.MOMENTUM": 0.9}))
    (panel,) = axis.select(FigureRuns(runs))
    assert panel.title == "Set: clients"
    (line,) = panel.lines  # B has one value, and another momentum
    assert (line.label, line.x, line.n) == ("A", [2, 4, 64], [2, 2, 2])
    assert line.mean == pytest.approx([43.5, 45.5, 105.5])
    axes = axis.draw([panel]).axes[0]
    assert axes.get_xscale() == "log"
    assert [row["value"] for row in axis.rows([panel])] == [2, 4, 64]


def test_the_words_of_a_tag_that_all_have_stay_in_the_name(tmp_path: Path) -> None:
    runs = [make(tmp_path, "A", 1, [0, 50.0 + n], folder=f"{tag}{n}", config={
        "FED.ROUNDS": n, "TRAINER.A.PART": part})
        for tag, n, part in (("", 2, True), ("long", 6, True), ("no-part", 2, False),
                             ("long-no-part", 6, False))]
    for run, tag in zip(runs, ("", "long", "no-part", "long-no-part"), strict=True):
        run.protocol["tag"] = tag  # type: ignore[index]
    (panel,) = axis.select(FigureRuns(runs))
    assert [(line.label, line.x) for line in panel.lines] == [
        ("A", [2, 6]), ("A (no-part)", [2, 6])]


def test_two_settings_that_differ_are_named(tmp_path: Path) -> None:
    """A legend says what tells lines of a method apart, an axis which setting it is."""
    runs = [make(tmp_path, "A", 1, [0, 40.0 + n], folder=f"{n}-{rate}", config={
        "FED.CLIENTS": n, "OPTIM.LR": rate}) for n in (2, 4) for rate in (0.1, 0.5)]
    clients, rates = axis.select(FigureRuns(runs))
    assert [line.label for line in clients.lines] == ["A, learning rate 0.1",
                                                      "A, learning rate 0.5"]
    assert [line.label for line in rates.lines] == ["A, clients 2", "A, clients 4"]
    assert axis.draw([clients]).get_supxlabel() == "clients"
    assert axis.draw([clients, rates]).get_supxlabel() == (
        "value of the setting: clients or learning rate")


def test_a_point_of_one_seed_has_no_band_and_the_axis_says_what_bands_are(tmp_path: Path) -> None:
    runs = [make(tmp_path, "A", seed, [0, 40 + rate + 2 * seed], folder=f"r{rate}",
                 config={"OPTIM.LR": rate})
            for rate, seeds in ((1, 2), (2, 2), (3, 1), (4, 2)) for seed in range(1, seeds + 1)]
    (panel,) = axis.select(FigureRuns(runs))
    figure = axis.draw([panel])
    assert figure.get_supxlabel() == (
        "learning rate\nband: mean ± one standard deviation over n = 1 or 2 seeds; n = 1 has none")
    bands = [c for c in figure.axes[0].collections if isinstance(c, PolyCollection)]
    places = {float(x) for band in bands for path in band.get_paths() for x in path.vertices[:, 0]}
    assert places == {1, 2, 4}  # nothing leads to 3
    bars = [c for c in figure.axes[0].collections if isinstance(c, LineCollection)]
    assert [float(x) for bar in bars for s in bar.get_segments() for x in s[:, 0]] == [4, 4]


def test_a_setting_without_words_is_named_as_its_key_is_typed(tmp_path: Path) -> None:
    runs = [make(tmp_path, "A", 1, [0, 40.0 + n + weight], folder=f"{n}-{weight}", config={
        "OPTIM.HEAD.LR": n, "TRAINER.A.WEIGHT": weight}) for n in (2, 4) for weight in (0.1, 0.5)]
    panels = axis.select(FigureRuns(runs))
    assert [panel.title for panel in panels] == ["Set: OPTIM.HEAD.LR", "Set: TRAINER.A.WEIGHT"]
    rates, weights = ([line.label for line in panel.lines] for panel in panels)
    assert rates == ["A, WEIGHT 0.1", "A, WEIGHT 0.5"]  # beside the name of its method
    assert weights == ["A, OPTIM.HEAD.LR 2", "A, OPTIM.HEAD.LR 4"]


def test_nothing_differs(tmp_path: Path) -> None:
    runs = [make(tmp_path, "A", seed, [0, 5]) for seed in (1, 2)]
    assert axis.select(FigureRuns(runs)) == (
        "no two runs of a method differ in one numeric setting alone")
