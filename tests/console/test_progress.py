"""The progress line: in place on a terminal, rare in a file, wiped before anything else."""

from __future__ import annotations

import io
import sys

import pytest

from fedvlm.console import screen as console
from fedvlm.console import screen as console_progress
from fedvlm.console.live import columns
from fedvlm.console.screen import ProgressLine


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test sets."""
    now = [0.0]
    monkeypatch.setattr(console_progress.time, "monotonic", lambda: now[0])
    return now


def take_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Put a terminal of 40 columns in stderr's place (pytest undoes it between its phases)."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


def test_a_terminal_shows_how_far_and_is_redrawn_four_times_a_second(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
):
    terminal = take_terminal(monkeypatch)
    line = ProgressLine()
    for done in range(1, 1001):
        clock[0] += 0.01  # ten seconds in all
        line("encoding images", done, 1000)
    drawn = terminal.getvalue().split("\r\x1b[K")
    assert 30 <= len(drawn) <= 42
    assert drawn[20].startswith("encoding images: ") and "of 1,000" in drawn[20]
    assert max(map(len, drawn)) < 40, "the line must not wrap"
    assert drawn[-1] == "" and not line.shown, "the end wipes it"


def test_what_is_written_next_wipes_the_line(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
):
    terminal = take_terminal(monkeypatch)
    line = ProgressLine()
    monkeypatch.setattr(console, "progress", line)
    line("loading PyTorch")
    assert terminal.getvalue().endswith("loading PyTorch ...")
    console.complain("bad")
    assert terminal.getvalue().endswith("...\r\x1b[Kerror: bad\n")


def test_a_file_gets_a_line_every_half_minute(
    clock: list[float], capsys: pytest.CaptureFixture[str]
):
    line = ProgressLine()
    line("loading PyTorch")
    for done in range(1, 101):
        clock[0] += 1.0
        line("encoding images", done, 100)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("note: encoding images: 31 of 100, about 67 s left")


def test_the_first_items_say_nothing_of_the_rest(clock: list[float]) -> None:
    line = ProgressLine()
    line("checking images")
    clock[0] += 60.0
    assert line._text("checking images", 1, 2000, clock[0]) == "checking images: 1 of 2,000"
    assert line._text("x", 10, 2000, clock[0]).endswith(" s left")
    assert line._text("x", 1, 4, clock[0]).endswith(", about 180 s left")


def test_a_closed_stream_is_no_error(monkeypatch: pytest.MonkeyPatch):
    terminal = take_terminal(monkeypatch)
    line = ProgressLine()
    line("a", 1, 2)
    terminal.close()
    line("b", 1, 2)
    line.clear()
    monkeypatch.setattr(sys, "stderr", None)
    line("c", 1, 2)


def test_narrow_terminals_lose_columns_not_digits():
    assert columns(80) == ["client", "n", "loss", "accuracy", "change", "history", "state"]
    assert columns(60) == ["client", "n", "loss", "accuracy", "change", "state"]
    assert columns(40) == ["client", "loss", "accuracy", "state"]
