"""Live displays (rich): the table of a run's clients.

On a terminal redrawn four times a second, in a notebook once.
"""

from __future__ import annotations

import io
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TextIO, cast

from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedvlm.console.notebook import NotebookText
from fedvlm.console.rows import (
    FEW,
    ClientRow,
    RoundRow,
    clock,
    format_number,
    human_bytes,
    of_clients,
    select_clients,
    spark,
)

_PER_SECOND = 4
_WIDTH = 100  # of a notebook's output, in characters
_STYLES = {"training": "cyan", "dropped": "yellow", "no answer": "yellow", "late": "yellow",
           "away": "dim", "NaN": "bold red", "absent": "dim"}


def columns(width: int) -> list[str]:
    """Return the table's columns that fit a terminal of ``width``; what is known least goes."""
    names = ["client", "n", "loss", "accuracy", "change", "history", "state"]
    for name, needs in (("history", 74), ("n", 59), ("change", 51)):
        if width < needs:
            names.remove(name)
    return names


class QuietStream(io.TextIOBase):
    """A stream for rich's refresh thread that forgets what a closed pipe refuses."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.broken = stream, False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The wrapped stream's encoding."""
        return getattr(self.stream, "encoding", None) or "ascii"

    def fileno(self) -> int:
        """The wrapped stream's descriptor: rich asks it for the terminal's size."""
        return self.stream.fileno()

    def isatty(self) -> bool:
        """It stands for a terminal."""
        return True

    def write(self, text: str) -> int:
        """Write, unless the reader has gone."""
        if not self.broken:
            try:
                self.stream.write(text)
            except (OSError, ValueError):
                self.broken = True
        return len(text)

    def flush(self) -> None:
        """Flush, unless the reader has gone."""
        if not self.broken:
            try:
                self.stream.flush()
            except (OSError, ValueError):
                self.broken = True


def live_display(stream: TextIO, draw: Callable[[RichConsole], RenderableType]) -> Live:
    """Return rich's live display on a terminal; nothing is drawn before its ``start``.

    Args:
        stream: the terminal. ``NO_COLOR`` is honoured by rich; a closed one silences the display.
        draw: console -> what stands on it now; called by the refresh thread.
    """
    rich = RichConsole(
        file=cast(TextIO, QuietStream(stream)), highlight=False, force_terminal=True,
        force_jupyter=False,
    )
    return Live(
        get_renderable=lambda: draw(rich), console=rich, refresh_per_second=_PER_SECOND,
        redirect_stdout=False, redirect_stderr=False,
    )


class LiveTable:
    """One row per client; ``Console`` feeds it. ``start`` takes the screen, ``stop`` frees it.

    A client that a round left alone keeps its last numbers; of many clients only those of the
    newest round are shown.
    """

    def __init__(self, stream: TextIO, total: int, title: str) -> None:
        self.total, self.title = total, title
        self.row: RoundRow | None = None
        self.history: dict[int, list[float]] = defaultdict(list)
        self.known: dict[int, ClientRow] = {}  # with their last numbers
        self.working: frozenset[int] = frozenset()
        self.round = 0
        self.spent: list[float] = []
        self.sent = 0
        self.began = time.monotonic()
        self.live = live_display(stream, self.table)

    def start(self) -> None:
        """Take the screen; the refresh thread redraws at most four times a second."""
        self.live.start()

    def stop(self) -> None:
        """Draw once more and free the screen."""
        self.live.stop()

    def say(self, lines: Sequence[str]) -> None:
        """Print lines above the table."""
        for line in lines:
            self.live.console.print(line, markup=False)

    def round_started(self, round_: int, cids: Sequence[int]) -> None:
        """Mark the clients that work now."""
        self.round, self.working = round_, frozenset(cids)

    def round_finished(self, row: RoundRow) -> None:
        """Take the results of a round."""
        for client in row.clients:
            if client.accuracy is not None:
                self.history[client.cid].append(client.accuracy)
            old = self.known.get(client.cid, client)
            self.known[client.cid] = replace(
                client, loss=old.loss if client.loss is None else client.loss,
                accuracy=old.accuracy if client.accuracy is None else client.accuracy,
            )
        self.row, self.working, self.round = row, frozenset(), row.round
        self.sent += row.bytes
        if row.round:
            self.spent.append(row.seconds)

    def table(self, rich: RichConsole) -> Table:
        """Return the table as it stands; called by the refresh thread."""
        row, ascii_only = self.row, not str(rich.encoding).lower().startswith("utf")
        table = Table(title=Text(self._head()), caption=Text(self._foot(row)), expand=False)
        names = columns(rich.width)
        for name in names:
            left = name in ("history", "state")
            table.add_column(name, justify="left" if left else "right", no_wrap=True)
        every = self._clients(row) if row else []
        rows, middle = select_clients(every)
        for client in rows:
            past = list(self.history[client.cid])
            state = "training" if client.cid in self.working else client.state
            cells: dict[str, str | Text] = {
                "client": str(client.cid), "n": str(client.n),
                "loss": format_number(client.loss, 3), "accuracy": format_number(client.accuracy),
                "history": spark(past, ascii_only=ascii_only),
                "change": f"{past[-1] - past[-2]:+.1f}" if len(past) > 1 else "-",
                "state": Text(state, _STYLES.get(state, "")),
            }  # fmt: skip
            table.add_row(*(cells[name] for name in names))
        if middle is not None:
            rated = sum(client.accuracy is not None for client in every)
            last = {"client": "median", "accuracy": format_number(middle), "state": f"of {rated}"}
            table.add_row(*(last.get(name, "") for name in names))
        return table

    def _clients(self, row: RoundRow) -> list[ClientRow]:
        """Return the round's clients, and where they are few also those it left alone."""
        here = {client.cid for client in row.clients}
        if len(self.known) > FEW:
            return [self.known[cid] for cid in here]
        return [
            client if cid in here else replace(client, state="absent")
            for cid, client in self.known.items()
        ]

    def _head(self) -> str:
        to_do = self.total - (self.row.round if self.row else 0)
        left = f"  about {clock(to_do * self._pace())} left" if self.spent and to_do else ""
        return f"{self.title}  round {self.round}/{self.total}{left}"

    def _foot(self, row: RoundRow | None) -> str:
        if row is None:
            return "first round running"
        of = f" of {of_clients(row)}" if row.asked is not None else ""
        accuracy = f"mean {format_number(row.personal)}{of}  worst {format_number(row.worst)}"
        if not self.spent:
            return f"{accuracy}  before training"
        return f"{accuracy}  {human_bytes(self.sent)} sent  {self._pace():.1f} s per round"

    def _pace(self) -> float:
        """Seconds per round over the last five."""
        recent = self.spent[-5:]
        return sum(recent) / len(recent) if recent else 0.0


class NotebookTable(LiveTable):
    """The same table below a notebook's cell: in one place, drawn by the calls and no thread."""

    def __init__(self, stream: TextIO, total: int, title: str) -> None:
        super().__init__(stream, total, title)
        self.place = NotebookText()

    def start(self) -> None:
        """Take a place below the cell."""
        self._draw()

    def stop(self) -> None:
        """Draw once more."""
        self._draw()

    def say(self, lines: Sequence[str]) -> None:
        """Print lines below the table."""
        for line in lines:
            print(line, flush=True)

    def round_started(self, round_: int, cids: Sequence[int]) -> None:
        """See ``LiveTable``."""
        super().round_started(round_, cids)
        if self.place.due:
            self._draw()

    def round_finished(self, row: RoundRow) -> None:
        """See ``LiveTable``."""
        super().round_finished(row)
        if self.place.due:
            self._draw()

    def _draw(self) -> None:
        text = io.StringIO()
        rich = RichConsole(
            file=text, width=_WIDTH, color_system=None, force_terminal=False, force_jupyter=False,
            highlight=False,
        )
        rich.print(self.table(rich))
        self.place.show(text.getvalue().rstrip())
