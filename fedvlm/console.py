"""The screen: the only room that writes to it. A live table on a terminal, plain lines elsewhere.

``Console`` takes plain values from whoever subscribes to the round loop and never fails a run: a
closed pipe (``| head``) silences it, text that the terminal cannot encode is escaped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from fedvlm.console_progress import ProgressLine, wants_live
from fedvlm.console_rows import ClientRow, RoundRow, one_line, round_line, table_lines

if TYPE_CHECKING:
    from fedvlm.console_live import LiveTable

__all__ = ["ClientRow", "Console", "RoundRow", "complain", "progress", "say", "wants_live"]


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
        total_rounds: T.
        clients: K.
        stream: where to write; stdout by default.
        live: True for the table, False for plain lines; None asks the stream.
    """

    def __init__(
        self, total_rounds: int, clients: int, stream: TextIO | None = None,
        live: bool | None = None,
    ) -> None:  # fmt: skip
        """Keep the arguments; the screen is taken at the first round."""
        self.total, self.clients = total_rounds, clients
        self.stream = sys.stdout if stream is None else stream
        self.live = wants_live(self.stream) if live is None else live
        self.title = ""
        self.silent = False
        self._table: LiveTable | None = None

    def __enter__(self) -> Console:
        """Return itself: the screen is freed when the block ends, also by an error."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        """Free the screen."""
        self.finish()

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
        """Show remarks: skipped images, a split that is not the published one, ..."""
        self._lines([f"note: {one_line(note)}" for note in notes])

    def result(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Show the final table, one mapping of column to value per row; the live table ends."""
        self.finish()
        self._lines(table_lines(rows))

    def finish(self) -> None:
        """Free the screen; safe to call twice and after an error."""
        table, self._table = self._table, None
        self.live = self.live and table is None
        if table is not None:
            self._quietly(table.stop)

    def _open(self) -> None:
        from fedvlm.console_live import LiveTable  # rich: only where it is shown

        self._table = LiveTable(self.stream, self.total, self.title)
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
