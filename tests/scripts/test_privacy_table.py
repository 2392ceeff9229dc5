"""The table of accuracy against epsilon: a folder with some of its runs wipes no other numbers."""

from __future__ import annotations

from pathlib import Path

import privacy_table as table
import pytest
from attack_table import END

FULL = {("head", 10, "none", "none"): [70.0], ("head", 10, "client", "8"): [30.0, 31.0],
        ("fedtv", 50, "image", "1"): [40.0]}


def test_a_folder_without_some_runs_leaves_the_page_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.BEGIN}\n{END}\nafter\n", encoding="utf-8")
    table.write(page, FULL, 3600.0)
    text = page.read_text(encoding="utf-8")
    assert "| one client | 10 | 70.0 (1) | 30.5 (2) | missing | missing |" in text
    assert text.startswith("before") and text.endswith("after\n")
    some = {key: values for key, values in FULL.items() if key[0] == "head"}
    with pytest.raises(SystemExit, match=r"numbers of 1 cells .*FedTV, one image, 50 clients, eps"):
        table.write(page, some, 10.0)
    assert page.read_text(encoding="utf-8") == text
    table.write(page, some | {("head", 10, "image", "3"): [20.0]}, 10.0, add=True)
    added = page.read_text(encoding="utf-8")
    assert table.rows_of(added) == {
        **table.rows_of(text), ("FedAvg, linear head", "one image", "10", "epsilon 3"): "20.0 (1)"}
    assert "4 runs" in added and "Numbers of 1 cells are of earlier runs" in added
    again = {("head", 10, "image", "3"): [20.0], ("head", 10, "client", "8"): [50.0]}
    table.write(page, FULL | again, 3600.0)
    assert "50.0 (1)" in page.read_text(encoding="utf-8"), "the same cells are written anew"


def test_the_published_page_is_read_cell_by_cell() -> None:
    """96 cells less those that are missing."""
    docs = Path(table.__file__).parents[1] / "docs"
    page = (docs / "private_accuracy.md").read_text(encoding="utf-8")
    cells = 4 * 6 * 4
    missing = page.partition(table.BEGIN)[2].partition(END)[0].count("| missing")
    assert len(table.rows_of(page)) == cells - missing > 70
