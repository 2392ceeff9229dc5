"""The table of attacks and rules: a folder with some of its runs leaves the other numbers."""

from __future__ import annotations

from pathlib import Path

import attack_table as table

SOME = {("head", "scale", "krum"): [70.0, 71.0, 72.0], ("lora", "none", "auto"): [40.0]}


def test_numbers_without_runs_stay_where_they_are_asked_to(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.BEGIN}\n{table.END}\nafter\n", encoding="utf-8")
    table.rewrite(str(page), table.lines(SOME, 36.0))
    old = table.rows_of(page.read_text(encoding="utf-8"), 1)
    assert old == {("FedAvg, linear head", "scale (10)", "krum"): "71.0 ± 2.5",
                   ("FedAvg, LoRA of the text tower", "none", "auto"): "40.0 (1)"}
    more = table.lines({("lora", "none", "auto"): [50.0]}, 36.0, old)
    assert more[-1] == "1 runs, 0.01 hours of rounds. Numbers of 1 cells are of earlier runs."
    assert table.rows_of("\n".join([table.BEGIN, *more]), 1) == {
        **old, ("FedAvg, LoRA of the text tower", "none", "auto"): "50.0 (1)"}


def test_the_published_page_is_read_cell_by_cell() -> None:
    page = (Path(table.__file__).parents[1] / "docs/attacks.md").read_text(encoding="utf-8")
    rows = table.rows_of(page, 1)
    assert len(rows) >= len(table.METHODS) * 25
    assert {row[2] for row in rows} <= {*table.RULES}
