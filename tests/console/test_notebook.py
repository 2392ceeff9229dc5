"""Progress below a notebook's cell: one place, written over, never a flood."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import fedvlm
from fedvlm.console import notebook, screen
from fedvlm.console.notebook import in_notebook
from fedvlm.console.rows import ClientRow, RoundRow
from fedvlm.console.screen import Console, ProgressLine

OutStream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})


class Cell:
    """What is displayed below a cell: every place with the texts that stood there."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self.places: list[list[str]] = []
        self.now = 100.0

    def run(self) -> None:
        """Let what follows write below the cell; in the test itself, as pytest moves streams."""
        self.patch.setattr(sys, "stdout", OutStream())
        self.patch.setattr(sys, "stderr", OutStream())

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw and display_id
        texts = [data["text/plain"]]
        self.places.append(texts)
        return SimpleNamespace(update=lambda new, raw: texts.append(new["text/plain"]))


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    """A notebook's kernel, as far as it is looked at, and its clock."""
    cell = Cell(monkeypatch)
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.version_info = (9, 0)  # type: ignore[attr-defined]
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    display.display = cell.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return cell


@pytest.fixture
def clock(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (notebook, screen):
        monkeypatch.setattr(module.time, "monotonic", lambda: cell.now)


def row(round_: int) -> RoundRow:
    return RoundRow(round_, 0.1, 0.5, 70.0, 60.0, 1000, [ClientRow(0, 8, 0.5, 70.0)])


@pytest.mark.usefixtures("clock")
def test_a_run_has_one_table_drawn_once_a_second(cell: Cell) -> None:
    cell.run()
    console = Console(1000, 1)
    console.header({"method": "FedAvg", "dataset": "Pets"})
    console.round_finished(row(0))
    for round_ in range(1, 1001):
        cell.now += 0.01  # 10 seconds in all
        console.round_started(round_, [0])
        console.round_finished(row(round_))
        console.notes([])
    console.notes(["a note"])
    console.result([{"personal": "70.0"}])
    (table,) = cell.places
    assert 10 <= len(table) <= 14
    assert "round 1000/1000" in table[-1] and "FedAvg  Pets" in table[-1] and "70.0" in table[-1]
    assert "\x1b" not in table[-1]
    lines = sys.stdout.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0] == "method   FedAvg" and lines[2] == "note: a note" and len(lines) == 5


@pytest.mark.usefixtures("clock")
def test_a_step_has_one_line_once_it_takes_a_second(cell: Cell) -> None:
    cell.run()
    progress = ProgressLine()
    for done in range(1, 501):
        progress("checking images", done, 500)  # in no time
    assert not cell.places
    for done in range(1, 501):
        cell.now += 0.01
        progress("image features", done, 500)
    progress.clear()
    (line,) = cell.places
    assert 4 <= len(line) <= 7 and line[-1] == "image features: 500 of 500"
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


def test_training_in_a_notebook(cell: Cell, tmp_path: Path) -> None:
    cell.run()
    fedvlm.train(demo=True, shots=2, rounds=2, num_users=2, local_epochs=1, output_dir=tmp_path,
                 trainer="FedAvg")
    table = cell.places[-1]
    assert len(cell.places) <= 2 and len(table) <= 8
    assert "round 2/2" in " ".join(table[-1].split()) and "client" in table[-1]
    out = sys.stdout.getvalue()  # type: ignore[attr-defined]
    assert "method" in out and "results:" in out and "round 1/2" not in out


def test_elsewhere_nothing_is_displayed(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    cell.run()
    assert in_notebook(sys.stdout)
    assert not in_notebook(io.StringIO())  # captured
    console = Console(1, 1, io.StringIO())
    console.round_finished(row(0))
    assert not cell.places
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: SimpleNamespace())
    assert not in_notebook(sys.stdout)  # IPython in a terminal
    monkeypatch.delitem(sys.modules, "IPython")
    assert not in_notebook(sys.stdout)
