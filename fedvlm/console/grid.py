"""The matrix of a sweep: methods by data sets, live on a terminal, plain lines elsewhere.

A cell shows finished runs of all, the mean of the headline number, ``~`` while one waits in a batch
system's queue, ``*`` while one is running and ``!`` where one has failed.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedvlm.console.live import live_display
from fedvlm.console.rows import clock, format_number, one_line
from fedvlm.console.screen import say, wants_live
from fedvlm.core.stats import mean


@dataclass
class GridCell:
    """One row and column: all its seeds.

    Attributes:
        total: runs; ``done``, ``failed``, ``running`` and ``queued`` (of a batch system) of them.
        values: headline numbers of the finished ones, percent.
    """

    total: int = 0
    done: int = 0
    failed: int = 0
    running: int = 0
    values: list[float] = field(default_factory=list)
    queued: int = 0

    def text(self, value: bool = True) -> str:
        """Return ``2/3*! 81.4``."""
        marks = "~" * bool(self.queued) + "*" * bool(self.running) + "!" * bool(self.failed)
        average = mean(v for v in self.values if math.isfinite(v))
        text = f" {format_number(average)}" if average is not None and value else ""
        return f"{self.done}/{self.total}{marks}{text}"

    def plus(self, other: GridCell) -> GridCell:
        """Return both together, without values: they are of different data sets."""
        return GridCell(
            self.total + other.total, self.done + other.done, self.failed + other.failed,
            self.running + other.running, queued=self.queued + other.queued,
        )


Cells = Mapping[tuple[str, str], GridCell]


class Grid:
    """The screen of a sweep.

    Args:
        cells: (row, column) -> cell; changed by the caller, read at every drawing.
        seconds_left: asked at every drawing; (seconds, number of cells that cannot be judged).
        live: None asks the stream, which is stdout by default.
    """

    def __init__(
        self, title: str, cells: Cells, seconds_left: Callable[[], tuple[float, int]],
        stream: TextIO | None = None, live: bool | None = None,
    ) -> None:
        self.title, self.cells, self.seconds_left = title, cells, seconds_left
        self.stream = sys.stdout if stream is None else stream
        self.live = wants_live(self.stream) if live is None else live
        self.began, self.status = time.monotonic(), ""
        self._live: Live | None = None

    def start(self) -> None:
        """Take the screen (a terminal only); redrawn at most four times a second."""
        if self.live:
            self._live = live_display(self.stream, lambda rich: self.table(rich.width))
            self._live.start()

    def finish(self) -> None:
        """Draw once more and free the screen; twice is harmless."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def say(self, line: str, *, always: bool = False) -> None:
        """Show a line: above the matrix, or, with plain lines, by itself.

        Args:
            always: also where the matrix is shown and says the same.
        """
        if self._live is not None:
            if always:
                self._live.console.print(one_line(line), markup=False)
        else:
            try:
                say(one_line(line), stream=self.stream)
            except (OSError, ValueError):  # the reader has gone: the sweep goes on without a screen
                self.stream = None  # type: ignore[assignment]

    def foot(self) -> str:
        """Return ``12/132 done, 1 failed, 2 running  0:02:10 elapsed  about 0:20:00 left``."""
        whole = GridCell()
        for cell in list(self.cells.values()):
            whole = whole.plus(cell)
        parts = [f"{whole.done}/{whole.total} done"]
        parts += [f"{whole.failed} failed"] if whole.failed else []
        parts += [f"{whole.running} running"] if whole.running else []
        parts += [f"{whole.queued} queued"] if whole.queued else []
        seconds, unknown = self.seconds_left()
        left = f"about {clock(seconds)} left" if seconds else ""
        if unknown:
            left += f"{' and ' if left else ''}{unknown} cells of unknown duration"
        spent = f"{clock(time.monotonic() - self.began)} elapsed"
        status = [self.status] if self.status else []
        return "  ".join([", ".join(parts), spent, *([left] if left else []), *status])

    def table(self, width: int) -> Table:
        """Return the matrix as it fits ``width`` columns of a terminal.

        Where it does not fit, the numbers go first, then the columns that are quiet, summed up in
        one.
        """
        rows = list(dict.fromkeys(row for row, _ in self.cells))
        columns, value, rest = self._columns(rows, width)
        table = Table(title=Text(one_line(self.title)), caption=Text(self.foot()), expand=False)
        table.add_column("method", overflow="ellipsis", no_wrap=True)
        for name in columns:
            table.add_column(one_line(name), justify="right", no_wrap=True)
        if rest:
            table.add_column(f"{len(rest)} more", justify="right", no_wrap=True)
        for row in rows:
            cells = [self._cell(row, column) for column in columns]
            texts = [_colour(cell, cell.text(value)) for cell in cells]
            if rest:
                whole = GridCell()
                for column in rest:
                    whole = whole.plus(self._cell(row, column))
                texts.append(_colour(whole, whole.text(False)))
            table.add_row(one_line(row), *texts)
        return table

    def _cell(self, row: str, column: str) -> GridCell:
        return self.cells.get((row, column), GridCell())

    def _columns(self, rows: Sequence[str], width: int) -> tuple[list[str], bool, list[str]]:
        """Return (columns shown, with numbers or without, columns summed up)."""
        names = list(dict.fromkeys(column for _, column in self.cells))
        room = width - max([len(r) for r in rows] + [6]) - 4

        def needs(name: str, value: bool) -> int:
            texts = [self._cell(row, name).text(value) for row in rows]
            usual = len("3/3* 81.4") if value else len("3/3*")
            return max(len(name), usual, *(len(t) for t in texts)) + 3

        for value in (True, False):
            if sum(needs(n, value) for n in names) <= room:
                return names, value, []
        quiet = [n for n in names if not any(self._cell(r, n).running for r in rows)]
        columns, rest = list(names), list[str]()
        for name in reversed(quiet):
            if sum(needs(n, False) for n in columns) + 12 <= room or len(columns) == 1:
                break
            columns.remove(name)
            rest.insert(0, name)
        return columns, False, rest


def _colour(cell: GridCell, text: str) -> Text:
    if not cell.total:
        return Text("-", "dim")
    style = "bold red" if cell.failed else "cyan" if cell.running else ""
    return Text(text, style or ("green" if cell.done == cell.total else "dim"))
