"""Markdown: tables whose cells may hold anything, and fenced blocks."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence


def row(*cells: str) -> tuple[str, ...]:
    """Return the cells of a row, each on one line, with bars that are no borders."""
    return tuple(" ".join(cell.split()).replace("|", "\\|") for cell in cells)


def escape_markup(text: str) -> str:
    """Return a text whose brackets make no link and whose stars no emphasis."""
    return text.replace("[", "\\[").replace("*", "\\*")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; cells as ``row`` gives them."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def code(language: str, text: str) -> str:
    """Return a fenced block; the indentation that all lines share goes."""
    head, newline, rest = text.strip("\n").partition("\n")
    return f"```{language}\n{head.strip()}{newline}{textwrap.dedent(rest).rstrip()}\n```"
