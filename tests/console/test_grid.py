"""The matrix of a sweep: texts of its cells, what gives way on a narrow screen, plain lines."""

from __future__ import annotations

import io

import pytest
from rich.console import Console as RichConsole

from fedvlm.console.grid import Grid, GridCell
from fedvlm.console.rows import clock


def drawn(grid: Grid, width: int) -> list[str]:
    console = RichConsole(file=io.StringIO(), width=width, record=True)
    console.print(grid.table(width))
    return console.export_text().splitlines()


def grid(columns: list[str], **cells: GridCell) -> Grid:
    matrix = {("FedAvg", c): cells.get(c, GridCell(3)) for c in columns}
    return Grid("sweep x", matrix, lambda: (61.0, 2), io.StringIO(), live=False)


def test_a_cell_shows_seeds_marks_and_the_mean() -> None:
    assert GridCell(3).text() == "0/3"
    assert GridCell(3, 2, 0, 1, [80.0, 90.0]).text() == "2/3* 85.0"
    assert GridCell(3, 0, 0, 1, queued=2).plus(GridCell(1, queued=1)).text() == "0/4~*"
    assert GridCell(3, 1, 1, 0, [float("nan")]).text() == "1/3!"
    assert GridCell(3, 1, values=[7.0]).text(False) == "1/3"


def test_the_matrix_names_rows_columns_and_what_is_left() -> None:
    text = "\n".join(drawn(grid(["a", "b"], a=GridCell(3, 3, values=[1.0, 2.0, 6.0])), 80))
    assert "FedAvg" in text and "3/3 3.0" in text and "0/3" in text
    assert "3/6 done" in " ".join(text.split())
    assert "about 1:01 left and 2 cells of unknown duration" in " ".join(text.split())


@pytest.mark.parametrize("width", [40, 80, 140])
def test_it_fits_and_keeps_the_running_column(width: int) -> None:
    columns = [f"dataset{i}" for i in range(20)]
    lines = drawn(grid(columns, dataset19=GridCell(3, 1, 0, 1, [50.0])), width)
    assert max(len(line) for line in lines) <= width
    assert any("1/3*" in line for line in lines)
    assert any("more" in line for line in lines) or width == 40


def test_numbers_go_before_columns() -> None:
    columns = [f"set{i}" for i in range(6)]
    full = {c: GridCell(3, 3, values=[50.0]) for c in columns}
    assert any("3/3 50.0" in line for line in drawn(grid(columns, **full), 100))
    narrow = drawn(grid(columns, **full), 70)
    assert not any("50.0" in line for line in narrow) and not any("more" in line for line in narrow)


def test_plain_lines_where_there_is_no_terminal() -> None:
    shown = grid(["a"])
    shown.start()
    shown.say("1/3 a FedAvg seed 1: done\x1b")
    shown.finish()
    assert shown.stream.getvalue() == "1/3 a FedAvg seed 1: done\\x1b\n"
    assert clock(3723) == "1:02:03" and clock(59.6) == "1:00"
