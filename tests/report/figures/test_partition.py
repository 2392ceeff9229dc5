"""The picture of who holds what."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

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
