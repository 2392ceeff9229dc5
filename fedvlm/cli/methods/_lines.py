"""How many lines of code a method is, and what it shares with others: read without running it.

A line counts if it has code: no docstring, no comment, no blank. What a method shares are the
pieces of ``PIECES`` that its file imports from ``fedvlm.method``; what the core had to learn for it
are those that no other method imports.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fedvlm.core.repository import repository
from fedvlm.federation.cards import card, headline

METHOD = "fedvlm.method"
# Rooms of pieces that are there for methods: a trainer's base, its tools, what it changes.
PIECES = (
    "fedvlm.federation.toolbox", "fedvlm.models.adapt", "fedvlm.federation.peft_trainer",
    "fedvlm.federation.module_trainer", "fedvlm.federation.aggregation", "fedvlm.models.towers",
)
_IDLE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Size:
    """A method's file.

    Attributes:
        name: of the method, as its card begins.
        lines: of code.
        pieces: modules of ``PIECES`` that it imports, sorted.
    """

    name: str
    lines: int
    pieces: tuple[str, ...]


def trainer_size(path: Path, stem: str) -> Size:
    """Return the size of a trainer's file.

    Raises:
        ConfigError: the file is not Python.
    """
    text = path.read_text(encoding="utf-8")
    known = _places()
    pieces = {
        known.get(name, module) if module == METHOD else module
        for name, module in _imports(text)
    }
    used = sorted(piece for piece in pieces if piece.startswith(PIECES))
    return Size(headline(card(path), stem)[0], code_lines(text), tuple(used))


@cache
def _places() -> dict[str, str]:
    """Return the module of each name of ``fedvlm.method``, which is read, not loaded."""
    return dict(_imports(_file(METHOD).read_text(encoding="utf-8")))


def _imports(text: str) -> list[tuple[str, str]]:
    """Return (name, module that it stands in) of each import from a module."""
    pairs = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                pairs.append((alias.name, inner if _file(inner).is_file() else node.module))
    return pairs


def _file(module: str) -> Path:
    return (repository() / Path(*module.split("."))).with_suffix(".py")


def code_lines(text: str) -> int:
    """Return the number of lines of Python ``text`` that have code."""
    seen: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _IDLE:
            seen |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            said = node.body[0]
            seen -= set(range(said.lineno, (said.end_lineno or said.lineno) + 1))
    return len(seen)


def sizes(files: Mapping[str, Path]) -> list[Size]:
    """Return the size of each file, the shortest first."""
    every = [trainer_size(path, stem) for stem, path in files.items()]
    return sorted(every, key=lambda size: (size.lines, size.name.lower()))


def piece_name(module: str) -> str:
    """Return a piece's name as tables have it: its room and its file."""
    return module.removeprefix("fedvlm.").removeprefix("federation.").removeprefix("models.")


def method_rows(every: Iterable[Size]) -> list[dict[str, str]]:
    """Return one row for each method: its lines, and the pieces that it stands on."""
    return [
        {"method": s.name, "lines": str(s.lines),
         "shares": ", ".join(map(piece_name, s.pieces)) or "-"}
        for s in every
    ]


def piece_rows(every: Iterable[Size]) -> list[dict[str, str]]:
    """Return one row for each shared piece: its lines, how many methods import it, and which.

    Four or more methods are counted, not named. A piece of one method is what the core had to learn
    for that one.
    """
    users: dict[str, list[str]] = {}
    for size in every:
        for piece in size.pieces:
            users.setdefault(piece, []).append(size.name)
    rows = []
    for piece, names in sorted(users.items(), key=lambda item: (-len(item[1]), item[0])):
        lines = str(code_lines(_file(piece).read_text(encoding="utf-8")))
        who = ", ".join(sorted(names, key=str.lower)) if len(names) < 4 else f"{len(names)} methods"
        rows.append({"piece": piece_name(piece), "lines": lines, "of": who})
    return rows
