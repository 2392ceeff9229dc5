"""The screen: the only room that writes to it.

A live table on a terminal and in a notebook, plain lines elsewhere.

``Console`` takes plain values from whoever subscribes to the round loop and never fails a run: a
closed pipe (``| head``) silences it, text that the terminal cannot encode is escaped.

Before the first round ``progress`` says in one line what is going on: rewritten in place on stderr
of a terminal, and wiped before anything else is written. In a notebook a step that takes a second
has a line of its own, written over once a second; in a file a long step says how far it is every
half minute, and a short one says nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from fedvlm.console.notebook import PAUSE, NotebookText, in_notebook
from fedvlm.console.rows import RoundRow, one_line, round_line, table_lines
from fedvlm.core.spelling import visible_text

if TYPE_CHECKING:
    from fedvlm.console.live import LiveTable

FEW = 10  # items before a rest is told from them
REDRAW, REPORT = 0.25, 30.0  # seconds between two drawings, and between two lines of a log


def wants_live(stream: TextIO | None) -> bool:
    """Return whether ``stream`` is a terminal that can redraw (``TERM=dumb`` cannot)."""
    try:
        return (
            stream is not None
            and stream.isatty()
            and os.environ.get("TERM", "") not in ("", "dumb")
        )
    except (ValueError, AttributeError):  # closed
        return False


class ProgressLine:
    """The line; ``console`` holds the only one."""

    def __init__(self) -> None:
        self.shown = False
        self._step = ""
        self._began = self._last = 0.0
        self._place: NotebookText | None = None

    def __call__(self, what: str, done: int = 0, of: int = 0) -> None:
        """Say how far a step is; never raises.

        Args:
            what: the step in words: ``checking images``.
            done, of: how far it is; without ``of`` only the step is named.
        """
        now = time.monotonic()
        if what != self._step:
            self._step, self._began, self._last = what, now, now - REDRAW
            self._place = None
        try:
            if wants_live(sys.stderr):
                self._redraw(what, done, of, now)
            elif in_notebook(sys.stdout):
                self._below_the_cell(self._text(what, done, of, now), now, bool(of) and done >= of)
            elif of and sys.stderr is not None and now - self._last >= REPORT:
                self._last = now
                sys.stderr.write(f"note: {self._text(what, done, of, now)}\n")
                sys.stderr.flush()
        except (OSError, ValueError):  # the reader is gone
            self.shown = False

    def clear(self) -> None:
        """Wipe the line: something else is about to be written. A notebook keeps it."""
        if self._place is not None:
            self._place, self._step = None, ""
        if not self.shown:
            return
        self.shown, self._step = False, ""
        try:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        except (OSError, ValueError, AttributeError):
            return

    def _redraw(self, what: str, done: int, of: int, now: float) -> None:
        if of and done >= of:
            self.clear()
            return
        if now - self._last < REDRAW:
            return
        self._last, self.shown = now, True
        width = max(shutil.get_terminal_size().columns - 1, 10)
        sys.stderr.write(f"\r\x1b[K{self._text(what, done, of, now)[:width]}")
        sys.stderr.flush()

    def _below_the_cell(self, text: str, now: float, end: bool) -> None:
        if self._place is None:
            if now - self._began < PAUSE:
                return
            self._place = NotebookText()
        if self._place.due or end:
            self._place.show(text)

    def _text(self, what: str, done: int, of: int, now: float) -> str:
        if not of:
            return f"{what} ..."
        spent = now - self._began
        known = spent > 1 and done < of and done >= min(FEW, of / 20)  # the first has a start-up
        left = f", about {spent / done * (of - done):.0f} s left" if known else ""
        return f"{what}: {done:,} of {of:,}{left}"


def say(*lines: str, stream: TextIO | None = None) -> None:
    """Write lines to stdout (or ``stream``).

    Raises:
        BrokenPipeError: the reader is gone; ``cli.main`` ends quietly then.
    """
    out = sys.stdout if stream is None else stream
    if out is None:  # started with a closed stdout (`>&-`)
        return
    progress.clear()
    for line in lines:
        line = visible_text(line, "\n\t")  # the one door to a terminal
        try:
            out.write(line + "\n")
        except UnicodeEncodeError:
            encoding = out.encoding or "ascii"
            out.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    out.flush()


def complain(*texts: str, prefix: str = "error") -> None:
    """Write ``error: ...`` to stderr, one per line of the texts; never raises."""
    lines = [f"{prefix}: {line}" for text in texts for line in text.splitlines()]
    try:
        say(*lines, stream=sys.stderr)
    except (OSError, ValueError):
        return


progress = ProgressLine()  # the only one: whatever is written next wipes it


class Console:
    """Subscriber of the round loop.

    Args:
        live: True for a terminal's table, False for plain lines; None asks the stream.
    """

    def __init__(
        self, total_rounds: int, clients: int, stream: TextIO | None = None,
        live: bool | None = None,
    ) -> None:  # fmt: skip
        self.total, self.clients = total_rounds, clients
        self.stream = sys.stdout if stream is None else stream
        self._below = live is None and in_notebook(self.stream)
        self.live = self._below or (wants_live(self.stream) if live is None else live)
        self.title = ""
        self.silent = False
        self._remarks: set[str] = set()
        self._table: LiveTable | None = None

    def header(self, info: Mapping[str, object]) -> None:
        """Show method, dataset, clients, shots, device, ...: one ``key value`` line each."""
        width = max((len(str(key)) for key in info), default=0)
        self._lines([f"{key:<{width}}  {one_line(value)}" for key, value in info.items()])
        words = [one_line(info[k]) for k in ("method", "dataset") if k in info]
        self.title = "  ".join([*words, f"{self.clients} clients"])

    def round_started(self, round_: int, cids: Sequence[int]) -> None:
        """Show which clients work now (the live table only)."""
        if self.live and self._table is None and not self.silent:
            self._open()
        if self._table is not None:
            self._table.round_started(round_, cids)

    def round_finished(self, row: RoundRow) -> None:
        """Show a round's results."""
        if self._table is not None:
            self._table.round_finished(row)
        elif self.live and row.round < self.total:
            self._open()
            self.round_finished(row)
        else:
            self._lines([round_line(row, self.total)])

    def notes(self, notes: Iterable[str]) -> None:
        """Show remarks, each once: skipped images, a split that is not the published one, ..."""
        new = [note for note in dict.fromkeys(notes) if note not in self._remarks]
        self._remarks.update(new)
        self._lines([f"note: {one_line(note)}" for note in new])

    def result(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Show the final table, one mapping of column to value per row; the live table ends."""
        self.finish()
        self._lines(table_lines(rows))

    def lines(self, lines: Sequence[str]) -> None:
        """Show lines of text as they are."""
        self._lines(lines)

    def finish(self) -> None:
        """Free the screen; safe to call twice and after an error."""
        table, self._table = self._table, None
        self.live = self.live and table is None
        if table is not None:
            self._quietly(table.stop)

    def _open(self) -> None:
        from fedvlm.console.live import LiveTable, NotebookTable  # start-up: rich, 0.1 s

        kind = NotebookTable if self._below else LiveTable
        self._table = kind(self.stream, self.total, self.title)
        self._quietly(self._table.start)

    def _lines(self, lines: Sequence[str]) -> None:
        table = self._table
        if table is not None:
            self._quietly(lambda: table.say(lines))
        else:
            self._quietly(lambda: say(*lines, stream=self.stream))

    def _quietly(self, write: Callable[[], None]) -> None:
        """Write, unless the reader has gone: training goes on without a screen."""
        if self.silent:
            return
        try:
            write()
        except (BrokenPipeError, ValueError, OSError):
            self.silent = True
