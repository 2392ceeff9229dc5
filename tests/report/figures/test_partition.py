"""The picture of who holds what."""

from __future__ import annotations

import io
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image

from fedvlm.core.errors import DataError
from fedvlm.report.figures import partition, style

from .drawings import AWKWARD, check


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
    figure = partition.draw(partition.from_rows(rows), AWKWARD, style.COLUMN)
    assert figure.get_figwidth() <= style.COLUMN + 1e-9
    check(figure)


def test_the_svg_of_a_large_partition_is_small_and_its_names_are_escaped() -> None:
    rows = counts(100, 100, name=AWKWARD)
    svg = style.svg_text(partition.draw(partition.from_rows(rows), AWKWARD))
    assert len(svg) < 700_000 and AWKWARD in "".join(ElementTree.fromstring(svg).itertext())


def test_partition_counts_training_images_and_keeps_the_sets_order() -> None:
    rows = [
        {"client": 1, "domain": "b", "part": "train", "class": "y", "images": 4},
        {"client": 0, "domain": "c", "part": "train", "class": "x", "images": 2},
        {"client": 0, "domain": "c", "part": "test", "class": "y", "images": 9},
    ]
    data = partition.from_rows(rows, ["x", "empty", "y"])
    assert data.clients == [1, 0] and data.domains == ["b", "c"]
    assert data.classes == ["x", "empty", "y"] and data.counts == {(0, 2): 4, (1, 0): 2}


def test_a_partition_over_all_domains_is_not_grouped() -> None:
    rows = [{"client": c, "domain": d, "part": "train", "class": "x", "images": 1}
            for c in (0, 1) for d in "ab"]
    assert partition.from_rows(rows).domains == ["", ""]


def test_a_damaged_partition_is_a_sentence() -> None:
    with pytest.raises(DataError, match="are numbers"):
        partition.from_rows([{"client": "a", "domain": "", "part": "train", "class": "x",
                                     "images": "1"}])


def test_dots_grow_with_the_area_not_the_diameter() -> None:
    rows = [{"client": 0, "domain": "", "part": "train", "class": n, "images": v}
            for n, v in (("x", 25), ("y", 100))]
    figure = partition.draw(partition.from_rows(rows))
    small, large = (each.get_markersize() for each in figure.axes[0].lines)
    assert large == pytest.approx(2 * small)


def circles(svg: str) -> list[tuple[float, float, float]]:
    """Return place and diameter of every dot of a run's own SVG."""
    return [(float(e.get("cx", "")), float(e.get("cy", "")), 2 * float(e.get("r", "")))
            for e in ElementTree.fromstring(svg).iter() if e.tag.endswith("circle")]


@pytest.mark.parametrize("rows", [counts(12, 12, 4), counts(5, 9, name=AWKWARD)])
def test_a_runs_own_picture_shows_what_the_figure_shows(rows: list[dict]) -> None:
    """Drawn without matplotlib: the same dots in the same order, the same words."""
    data = partition.from_rows(rows)
    files = partition.pictures(data, AWKWARD)
    assert files == partition.pictures(data, AWKWARD)
    svg, figure = files["partition.svg"].decode(), partition.draw(data, AWKWARD)
    with style.use_style():
        figure.draw_without_rendering()
    words = {str(t.get_text()) for t in figure.findobj(Text)} - {""}
    assert {e.text for e in ElementTree.fromstring(svg).iter() if e.tag.endswith("text")} == words
    marks = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    drawn = sorted((y, x, line.get_markersize()) for line in marks
                   for x, y in np.asarray(line.get_xydata()).tolist())
    dots = circles(svg)[: len(drawn)]
    assert [round(d, 2) for *_, d in dots] == pytest.approx([d for *_, d in drawn], abs=0.01)
    for own, place in ((0, 1), (1, 0)):  # one place of the picture for each of the table
        at = dict(sorted((d[place], dot[own]) for d, dot in zip(drawn, dots, strict=True)))
        assert all(at[d[place]] == dot[own] for d, dot in zip(drawn, dots, strict=True))
        assert list(at.values()) == sorted(set(at.values()))
    key = circles(svg)[len(drawn):]
    plan = partition.dot_layout(data)
    assert sorted(d for *_, d in key) == pytest.approx(
        [plan.size(n) for n, _ in plan.shown()], abs=0.01)
    image = Image.open(io.BytesIO(files["partition.png"])).convert("RGB")
    scale = style.DPI / 72
    assert all(image.getpixel((round(x * scale), round(y * scale))) == (0, 0x72, 0xB2)
               for x, y, _ in circles(svg))


def test_a_runs_own_picture_of_many_clients_is_small() -> None:
    data = partition.from_rows(counts(300, 60))
    layout = partition.dot_layout(data)
    svg = partition._svg(partition._scene(data, layout, "", style.PAGE))
    assert len(svg) < 200_000 and "data:image/png;base64," in svg
    assert len(circles(svg)) == len(layout.shown())
