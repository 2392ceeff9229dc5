"""Drawings: degenerate data, awkward names, nothing clipped, the same bytes every time."""

from __future__ import annotations

import io
import itertools
import math
import re
import sys
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from fedvlm.core.errors import DataError
from fedvlm.report.figures import clients as figure_clients
from fedvlm.report.figures import convergence as figure_convergence
from fedvlm.report.figures import few_shot as figure_few_shot
from fedvlm.report.figures import partition as figure_partition
from fedvlm.report.figures import similarity as figure_similarity
from fedvlm.report.figures import style
from fedvlm.report.figures import traffic as figure_traffic
from fedvlm.report.figures.lines import Line, Panel, spread_out

AWKWARD = r"_a_$b$ & 100 % <c> \alpha{x}^2"
WIDTHS = (style.COLUMN, style.PAGE)


def line(label: str, count: int = 5, base: float = 40.0, seeds: int = 3) -> Line:
    std = [2.0 if seeds > 1 else None] * count
    return Line(label, list(range(count)), [base + i for i in range(count)], std, [seeds] * count)


def lines(labels: list[str], **more: Any) -> Panel:
    return Panel("Set", [line(n, base=40 + 3 * i, **more) for i, n in enumerate(labels)], 33.0)


PANELS: dict[str, list[Panel]] = {
    "plain": [lines(["FedAvg", "FedTV"])],
    "one round": [lines(["FedAvg"], count=1, seeds=1)],
    "flat": [Panel("Set", [Line("A", [0, 1], [100.0, 100.0], [0.0, 0.0], [2, 2])])],
    "gaps": [Panel("Set", [Line("A", [0, 1, 2], [None, math.nan, 30.0], [None, None, math.nan],
                                [1, 1, 1])])],
    "nothing known": [Panel("Set", [Line("A", [0, 1], [None, None], [None, None], [1, 1])])],
    "twenty methods": [lines([f"method {i}" for i in range(20)])],
    "awkward": [Panel(AWKWARD, [line(AWKWARD), line("_hidden")], 20.0)],
    "long": [lines(["x" * 200, "y" * 200])],
    "three panels": [lines(["FedAvg", "FedTV"]) for _ in range(3)],
}
DRAWN: dict[str, Callable[..., Figure]] = {
    "convergence": figure_convergence.draw, "few_shot": figure_few_shot.draw,
    "traffic": figure_traffic.draw,
}


def check(figure: Figure) -> None:
    """Nothing drawn leaves the edges of a figure."""
    with style.styled():
        figure.draw_without_rendering()  # lays out
        drawn = figure.get_tightbbox()  # inches
    width, height = figure.get_size_inches()
    assert drawn.x0 > 0 and drawn.x1 < width, (drawn.x0, drawn.x1, width)
    assert drawn.y0 > 0 and drawn.y1 < height, (drawn.y0, drawn.y1, height)


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("case", PANELS)
def test_lines(kind: str, case: str) -> None:
    for width in WIDTHS if case == "awkward" else WIDTHS[:1]:
        figure = DRAWN[kind](PANELS[case], "personal accuracy (%)", width)
        assert figure.get_figwidth() == width
        check(figure)


def test_names_are_shown_as_they_are() -> None:
    svg = style.svg_text(figure_convergence.draw(PANELS["awkward"], "accuracy"))
    texts = ["".join(e.itertext()) for e in ElementTree.fromstring(svg).iter() if
             e.tag.endswith("text")]
    assert any(t.startswith(AWKWARD) for t in texts) and any("_hidden" in t for t in texts)


def test_the_same_data_give_the_same_svg_without_a_date() -> None:
    first, second = (
        style.svg_text(figure_convergence.draw(PANELS["plain"], "accuracy")) for _ in range(2)
    )
    assert first == second and "dc:date" not in first and "<text" in first


def test_a_users_own_settings_neither_change_a_figure_nor_are_changed() -> None:
    plain = style.svg_text(figure_convergence.draw(PANELS["plain"], "accuracy"))
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        assert style.svg_text(figure_convergence.draw(PANELS["plain"], "accuracy")) == plain
        assert matplotlib.rcParams["font.size"] == 30


def test_a_png_has_200_dots_per_inch() -> None:
    data = style.png_bytes(figure_convergence.draw(PANELS["plain"], "accuracy", style.COLUMN))
    with Image.open(io.BytesIO(data)) as png:
        assert png.format == "PNG" and png.width == 660


def test_pyplot_is_not_loaded() -> None:
    if "matplotlib.pyplot" in sys.modules:
        pytest.skip("another test loaded pyplot in this process")
    figure_convergence.draw(PANELS["plain"], "accuracy")
    assert "matplotlib.pyplot" not in sys.modules


def test_a_method_that_sends_nothing_stands_at_a_tick_of_zero() -> None:
    silent = Line("Local", [0.0, 0.0], [40.0, 50.0], [1.0, 1.0], [2, 2])
    sends = Line("FedAvg", [0.0, 5.0, 10.0], [40.0, 50.0, 60.0], [1.0] * 3, [2] * 3)
    figure = figure_traffic.draw([Panel("Set", [silent, sends])], "accuracy")
    figure.draw_without_rendering()
    shown = [t.get_text() for t in figure.axes[0].get_xticklabels()]
    assert shown == ["0", "5", "10"]


def test_a_tick_below_the_least_traffic_is_not_zero() -> None:
    silent = Line("Local", [0.0, 0.0], [40.0, 50.0], [1.0, 1.0], [2, 2])
    sends = Line("FedAvg", [0.0, 1.3, 9.0], [40.0, 50.0, 60.0], [1.0] * 3, [2] * 3)
    figure = figure_traffic.draw([Panel("Set", [silent, sends])], "accuracy")
    figure.draw_without_rendering()
    shown = [t.get_text() for t in figure.axes[0].get_xticklabels()]
    assert shown == ["0", "1", "2", "5", "10"]


def test_titles_of_neighbours_stay_apart() -> None:
    names = [f"Caltech101, base2new, {n} shots, dirichlet-0.3-K10-f1" for n in (1, 2, 4, 8)]
    found = [Panel(name, [line("A")]) for name in names]
    figure = figure_convergence.draw(found, "accuracy", style.PAGE)
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


def records(clients: int, rounds: int) -> list[dict[str, Any]]:
    return [
        {"round": r, "clients": [
            {"client": c, "accuracy": None if c == 1 else (7 * c + 3 * r) % 100}
            for c in range(clients)] if r != 2 else []}
        for r in range(rounds)
    ]


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (10, 5), (100, 4)])
def test_clients(shape: tuple[int, int]) -> None:
    check(figure_clients.draw(figure_clients.from_rounds(records(*shape)), AWKWARD, style.COLUMN))


def test_clients_are_sorted_by_their_last_accuracy_and_unknown_rounds_are_blank() -> None:
    data = figure_clients.from_rounds(records(3, 4))
    assert data.clients == [2, 0, 1] and data.rounds == [0, 1, 2, 3]
    assert data.grid == [[14, 17, None, 23], [0, 3, None, 9], [None] * 4]
    assert len(figure_clients.rows_of(data)) == 6


def alike(k: int, tensors: int = 2) -> dict[str, Any]:
    table = [[1.0 if i == j else ((i * j) % 7 - 3) / 4 for j in range(k)] for i in range(k)]
    name = AWKWARD + "long." * 9
    return {"clients": list(range(k)), "update": table,
            "to_global": {f"{name}{t}": [0.9 + 0.001 * c for c in range(k)] for t in
                          range(tensors)}}


@pytest.mark.parametrize("case", [(1, 1, 1), (2, 5, 2), (2, 100, 20)])
def test_similarity(case: tuple[int, int, int]) -> None:
    rounds, k, tensors = case
    found = {r: alike(k, tensors) for r in range(1, rounds + 1)}
    check(figure_similarity.draw(found, AWKWARD, style.COLUMN))
    check(figure_similarity.draw_global(found, AWKWARD, style.COLUMN))


def test_similarity_takes_the_first_and_the_last_round() -> None:
    rounds = [{"round": 0}, *({"round": r, "similarity": alike(2)} for r in (1, 2, 5))]
    found = figure_similarity.rounds_with(rounds)
    assert list(found) == [1, 5] and len(figure_similarity.rows_of(found)) == 2 * 4
    assert len(figure_similarity.global_rows_of(found)) == 2 * 2 * 2


def counts(clients: int, classes: int, domains: int = 0, name: str = "class") -> list[dict]:
    return [
        {"client": str(c), "domain": f"domain {c % domains}" if domains else "", "part": part,
         "class": f"{name} {j}", "images": str(1 + (c * j) % 9)}
        for c in range(clients) for part in ("train", "test") for j in range(classes)
        if (c + j) % 3 == 0
    ]


@pytest.mark.parametrize("rows", [
    counts(1, 1), counts(5, 10), counts(12, 12, 4), counts(70, 80), counts(5, 9, name=AWKWARD * 3),
], ids=["one", "small", "domains", "70x80", "awkward"])
def test_partition(rows: list[dict]) -> None:
    figure = figure_partition.draw(figure_partition.from_rows(rows), AWKWARD, style.COLUMN)
    assert figure.get_figwidth() <= style.COLUMN + 1e-9
    check(figure)


def test_the_svg_of_a_large_partition_is_small_and_its_names_are_escaped() -> None:
    rows = counts(100, 100, name=AWKWARD)
    svg = style.svg_text(figure_partition.draw(figure_partition.from_rows(rows), AWKWARD))
    assert len(svg) < 700_000 and AWKWARD in "".join(ElementTree.fromstring(svg).itertext())


def test_partition_counts_training_images_and_keeps_the_sets_order() -> None:
    rows = [
        {"client": 1, "domain": "b", "part": "train", "class": "y", "images": 4},
        {"client": 0, "domain": "c", "part": "train", "class": "x", "images": 2},
        {"client": 0, "domain": "c", "part": "test", "class": "y", "images": 9},
    ]
    data = figure_partition.from_rows(rows, ["x", "empty", "y"])
    assert data.clients == [1, 0] and data.domains == ["b", "c"]
    assert data.classes == ["x", "empty", "y"] and data.counts == {(0, 2): 4, (1, 0): 2}


def test_a_partition_over_all_domains_is_not_grouped() -> None:
    rows = [{"client": c, "domain": d, "part": "train", "class": "x", "images": 1}
            for c in (0, 1) for d in "ab"]
    assert figure_partition.from_rows(rows).domains == ["", ""]


def test_a_damaged_partition_is_a_sentence() -> None:
    with pytest.raises(DataError, match="are numbers"):
        figure_partition.from_rows([{"client": "a", "domain": "", "part": "train", "class": "x",
                                     "images": "1"}])


def test_dots_grow_with_the_area_not_the_diameter() -> None:
    rows = [{"client": 0, "domain": "", "part": "train", "class": n, "images": v}
            for n, v in (("x", 25), ("y", 100))]
    figure = figure_partition.draw(figure_partition.from_rows(rows))
    small, large = (each.get_markersize() for each in figure.axes[0].lines)
    assert large == pytest.approx(2 * small)


def test_ticks_are_thinned_by_round_numbers() -> None:
    assert style.thinned(5, 10) == [0, 1, 2, 3, 4]
    assert style.thinned(100, 10) == list(range(0, 100, 10))
    assert style.thinned(0, 3) == []


def test_what_cannot_be_printed_is_a_space() -> None:
    assert style.shortened("a\nb\x00\udc80c", 9) == "a b  c"
    assert re.fullmatch("a{5}.a{4}", style.shortened("a" * 50, 10))


def test_a_name_without_glyphs_warns_nobody(recwarn: pytest.WarningsRecorder):
    with style.styled():
        figure = figure_convergence.draw([lines(["\u6570\u5b66"])], "accuracy (%)", style.PAGE)
    style.png_bytes(figure)
    assert not [w for w in recwarn if "Glyph" in str(w.message)]
