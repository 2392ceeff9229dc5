"""Maps over images: even shares, rows of the CSV, what is drawn where there are numbers alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedvlm.report.figures import style
from fedvlm.report.figures.answers import attention, transport
from fedvlm.report.figures.answers.looks import Looks
from fedvlm.report.figures.catalog import all_figures
from fedvlm.report.figures.selection import FigureRuns
from tests.report.figures.runs import make

GRID = np.array([[[0.1, 0.2], [0.3, 0.2]], [[0.05, 0.05], [0.05, 0.05]]])


def looked(figure: str, **fields: np.ndarray) -> Looks:
    pictures = np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3)
    return Looks(figure, pictures, ["a.png", "b.png"], ["says cat (0.90)", "says dog (0.50)"],
                 fields)


def test_each_figure_takes_its_own_kind_and_nothing_without_images(tmp_path: Path) -> None:
    run = make(tmp_path, "A", 1, [0, 80.0])
    data = looked("transport", own=GRID)
    assert transport.select(FigureRuns([run])) is None
    assert transport.select(FigureRuns([run], looks=data)) is data
    assert attention.select(FigureRuns([run], looks=data)) is None
    assert {"transport", "attention"} <= {figure.NAME for figure in all_figures()}


def test_one_is_an_even_share_and_the_csv_has_the_weights_themselves() -> None:
    data = looked("transport", own=GRID, sure=np.array([0.7, 0.2]))
    assert np.allclose(data.maps["own"], [[[0.5, 1.0], [1.5, 1.0]], [[1, 1], [1, 1]]])
    rows = transport.rows(data)
    assert rows[2] == {"image": "a.png", "said": "says cat (0.90)", "field": "own", "row": 1,
                       "column": 0, "weight": 0.3}
    assert rows[-1] == {"image": "b.png", "said": "says dog (0.50)", "field": "sure",
                        "weight": 0.2}
    assert len(rows) == 2 * (4 + 1)


def test_a_map_lies_over_its_image_in_one_scale_of_colours() -> None:
    figure = transport.draw(looked("transport", own=GRID, shared=GRID[::-1]), "A run")
    heat = [axes.images[1] for axes in figure.axes if len(axes.images) > 1]
    uneven, even = [[0.5, 1.0], [1.5, 1.0]], np.ones((2, 2))
    for drawn, want in zip(heat, (uneven, even, even, uneven), strict=True):
        assert np.allclose(np.asarray(drawn.get_array()), want)
        assert np.allclose(drawn.get_clim(), (0.5, 1.5))
    assert heat[0].get_extent() == [-0.5, 7.5, 7.5, -0.5]
    assert style.png_bytes(figure)


def test_numbers_alone_are_bars() -> None:
    data = looked("attention", frozen=np.array([0.75, 0.1]), own=np.array([0.25, 0.9]))
    figure = attention.draw(data)
    bars = [axes for axes in figure.axes if axes.patches]
    assert [[p.get_width() for p in axes.patches] for axes in bars] == [[0.75, 0.25], [0.1, 0.9]]
    assert len({axes.get_xlim() for axes in bars}) == 1
