"""How the doctor's findings are shown: a table that fits the terminal, then one line a sentence.

Where the output is no terminal, all columns are there and no line is broken.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TextIO, cast

from fedvlm.console import progress, say
from fedvlm.console_progress import wants_live
from fedvlm.console_rows import number, one_line, table_lines

_DROPPED = ("published", "layout", "remarks")  # in this order, where they do not fit
_STYLES = {"ready": "green", "prepared": "green", "built in": "green", "broken": "bold red",
           "partly": "yellow", "absent": "dim"}  # fmt: skip
_GAP, _INDENT = 2, 4


def show_table(rows: Sequence[Mapping[str, object]], stream: TextIO | None = None) -> None:
    """Show rows of named cells; the cell ``state`` has a colour on a terminal."""
    out = sys.stdout if stream is None else stream
    plain = [{k: one_line(number(v)) for k, v in row.items()} for row in rows]
    if not wants_live(out):
        say(*table_lines(plain), stream=stream)
    elif plain:
        _rich_table(plain, out, shutil.get_terminal_size().columns)


def show_lines(lines: Sequence[str], stream: TextIO | None = None) -> None:
    """Show sentences; on a terminal they are broken between words, with an indent."""
    out = sys.stdout if stream is None else stream
    shown = [one_line(line) for line in lines]
    if wants_live(out):
        width = max(shutil.get_terminal_size().columns, 2 * _INDENT)
        shown = [
            part for line in shown
            for part in textwrap.wrap(line, width, subsequent_indent=" " * _INDENT,
                                      break_long_words=False, break_on_hyphens=False) or [""]
        ]
    say(*shown, stream=stream)


def fitting(rows: Sequence[Mapping[str, str]], width: int) -> list[str]:
    """Return the columns that fit ``width``; what can be read elsewhere goes first."""
    columns = list(dict.fromkeys(name for row in rows for name in row))

    def needs() -> int:
        cells = [[name, *(row.get(name, "-") for row in rows)] for name in columns]
        return sum(max(map(len, column)) + _GAP for column in cells)

    for name in _DROPPED:
        if needs() > width and name in columns:
            columns.remove(name)
    return columns


def _rich_table(rows: Sequence[Mapping[str, str]], out: TextIO, width: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fedvlm.console_live import QuietStream

    table = Table(box=None, padding=(0, _GAP, 0, 0), header_style="bold")
    columns = fitting(rows, width)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        style = _STYLES.get(row.get("state", ""), "")
        cells = [Text(row.get(name, "-"), style if name == "state" else "") for name in columns]
        table.add_row(*cells)
    progress.clear()
    quiet = cast(TextIO, QuietStream(out))
    Console(file=quiet, width=width, highlight=False, force_terminal=True).print(table)
