"""Texts of others: which can be a name, and how they go into a table file."""

from __future__ import annotations

import unicodedata
from typing import Any

MAX_NAME = 300  # characters
_REFUSED = {"Cc": "a control character", "Cs": "half a surrogate pair", "Zl": "a line separator",
            "Zp": "a paragraph separator"}
# Marks that turn the direction of what follows them.
_TURNS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")  # letters and signs that show nothing
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def name_fault(name: str) -> str:
    """Return what keeps a text from being a name, in words; empty where nothing does."""
    kinds = {c: unicodedata.category(c) for c in set(name)}
    for c, kind in sorted(kinds.items()):
        if kind in _REFUSED or c in _TURNS:
            what = _REFUSED.get(kind, "a mark that turns the direction of what follows")
            return f"holds {what} (U+{ord(c):04X})"
    if not any(kind[0] not in "CZ" and c not in _BLANK for c, kind in kinds.items()):
        return "shows nothing"
    return f"is longer than {MAX_NAME} characters" if len(name) > MAX_NAME else ""


def visible_text(text: str, keep: str = "") -> str:
    """Return a text of somebody else's as a terminal, a file of lines or a message can hold it.

    Control characters, marks that turn the direction of text and line separators are written as
    escapes (``\\x1b``); letters of every script stay.

    Args:
        keep: control characters that stay: line ends where lines are meant.
    """
    if text.isprintable() and not _TURNS.intersection(text):
        return text
    return "".join(
        c if c in keep or (c.isprintable() and c not in _TURNS)
        else c.encode("unicode_escape").decode() for c in text
    )


def show_name(name: str) -> str:
    """Return a faulty name as a message can hold it."""
    return ascii(name if len(name) <= 60 else name[:57] + "...")


def quote_name(name: str) -> str:
    """Return a name of others in quotes, as a message can hold it."""
    return show_name(name) if name_fault(name) else f"'{name}'"


def cell_text(value: Any) -> Any:
    """Return a cell that no spreadsheet runs: a text that begins a formula gets ``'`` before it."""
    if isinstance(value, str) and value.startswith(_FORMULA) and not _is_number(value):
        return f"'{value}"
    return value


def text_of_cell(cell: str) -> str:
    """Return what ``cell_text`` was given."""
    quoted = cell.startswith("'") and cell[1:].startswith(_FORMULA) and not _is_number(cell[1:])
    return cell[1:] if quoted else cell


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
