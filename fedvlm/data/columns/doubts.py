"""What a table leaves open is asked for when it is first looked at, and is not guessed.

Only ``data add`` and ``--images`` ask: a saved YAML or config is read as it was. Each question says
which flag answers it, or how the cell is to be written.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from fedvlm.core.errors import DataError
from fedvlm.core.spelling import quote_name
from fedvlm.data.columns.faults import same_lines
from fedvlm.data.columns.header import (
    CLIENT_WORDS,
    GROUP_WORDS,
    SYNONYMS,
    TABLE_COLUMNS,
    Header,
    Wish,
    flags_words,
    is_binary,
    said_values,
)
from fedvlm.data.formats.table_files import Lines
from fedvlm.data.locate import first_names

_OTHER_MARKS = (",", "/", "+", "&")  # which may separate labels, and may be part of a name
_OF_PROGRAMS = re.compile(r"\{|set\(|\(\s*(['\")]|$)")  # sets and tuples as Python writes them
_EMPTY = frozenset({"na", "n/a", "#n/a", "<na>", "nan", "nat", "null", "none"})
_NO_VALUE = _EMPTY - {"none"}  # which may be a class: none of the others
_WHOLE = re.compile(r"\d+\.0+")
_NO_CLASS = ("sex", "gender", "flip", "fold", "is_train", "is_val", "is_valid", "is_test")
_SHOWN = 60  # characters of a cell


def refuse_doubts(header: Header, table: Lines, path: Path, wish: Wish) -> None:
    """Ask for what a table's columns and cells leave open.

    Args:
        wish: what the user said; it is not asked again.

    Raises:
        DataError: columns that hold the same two values as the guessed class, a cell that seems to
            list several labels, a class, client or group named as programs write an empty cell, or
            one number in two spellings.
    """
    _other_flags(header, table, path)
    for at in sorted({header.at[what] for what in ("label", "classname") if what in header.at
                      and what not in wish.columns}):
        _lists(table, path, at, header.names[at], False)
    for at in sorted({header.at[what] for what in ("label", "classname") if what in header.at}):
        _classes(table, path, at, header.names[at])
    if len(header.labels) == 1:
        _lists(table, path, header.labels[0], header.names[header.labels[0]], True)
    domain = header.at.get("domain", -1)
    for at in sorted({*header.client, *header.group, domain} - {-1}):
        _holders(table, path, at, header.names[at], at == domain)


def _other_flags(header: Header, table: Lines, path: Path) -> None:
    """Ask where other columns could be the class as well as the guessed one, or all be labels."""
    rows = [line for _, line in table.lines]
    guess = next((header.at[w] for w in ("classname", "label") if w in header.guessed), None)
    values = said_values(rows, guess) if guess is not None else set()
    if guess is None or not 0 < len(values) < 3:
        return
    read = {*header.at.values(), *header.client, *header.group, *header.captions} - {guess}
    known = {*CLIENT_WORDS, *GROUP_WORDS, *TABLE_COLUMNS, *SYNONYMS, *_NO_CLASS}
    alike = []
    for at, name in enumerate(header.names):
        other = said_values(rows, at)
        same = is_binary(other) if is_binary(values) else other <= values
        if name and same and len(other) == 2 and at not in read and name.lower() not in known:
            alike.append(name)
    if len(alike) < 2:
        return
    one = header.names[guess]
    if is_binary(values):
        raise DataError(f"{path}: several columns may name the class: {flags_words(alike, one)}")
    raise DataError(
        f"{path}: {first_names(alike, 9)} hold the same values ({', '.join(sorted(values))}), and "
        f"each may name the class: --columns classname={one} reads one; to read them as an image's "
        f"set of labels write 1 and 0 in them, then --labels {','.join(alike[:9])}")


def _lists(table: Lines, path: Path, at: int, name: str, sets: bool) -> None:
    """Ask what a cell means that may list several labels.

    Args:
        sets: the column is read as sets of labels, and ``|`` or ``;`` separates them.
    """
    first = _first_lines(table, at)
    used = sets and any(m in cell for cell in first for m in "|;" if cell[:1] != "[")
    times = Counter(part for cell in first for m in _OTHER_MARKS
                    for part in _parts(cell, m))
    for cell, number in first.items():
        where, shown = f"{path}, {table.unit} {number}", cell[:_SHOWN]
        if _OF_PROGRAMS.match(cell):
            raise DataError(
                f"{where}: the cell {quote_name(name)} is '{shown}', a set as a program writes it: "
                "write a|b in it, or a JSON list, [\"a\", \"b\"]" + (
                    "" if sets else f", then --labels {name}"))
        if cell[:1] == "[" or used:
            continue
        mark = next((m for m in _OTHER_MARKS for part in _parts(cell, m)
                     if part in first or (sets and times[part] > 1)), "")
        if sets and mark:
            raise DataError(
                f"{where}: the cell {quote_name(name)} is '{shown}', and other cells have a part "
                f"of it: if {mark} separates labels, write | in its place; if this is one label, "
                f"write it as a JSON list, [\"{shown}\"]")
        whole = _parts(cell, ";")
        mark = mark or (";" if whole and not whole & first.keys() else "")
        if not sets and mark:  # one that lists classes with ; is refused in any case
            write = "" if mark == ";" else f" (write | in the place of {mark})"
            raise DataError(
                f"{where}: the class '{shown}' is a set of labels, or one class of that name: "
                f"--labels {name} reads the column as sets{write}; --columns classname={name} "
                "reads each cell as one class")


def _first_lines(table: Lines, at: int) -> dict[str, int]:
    """Return the number of the first line of each text in a column."""
    first: dict[str, int] = {}
    for number, line in table.lines:
        if at < len(line):
            first.setdefault(line[at].strip(), number)
    return first


def _parts(cell: str, mark: str) -> set[str]:
    """Return the parts, two or more, that a mark separates in a cell; nothing where it does not."""
    parts = {part for p in cell.split(mark) if (part := p.strip())}
    return parts if len(parts) > 1 else set()


def _more_lines(table: Lines, at: int, cell: str) -> list[int]:
    """Return the numbers of the lines after the first that have a text in a column."""
    return [n for n, line in table.lines if at < len(line) and line[at].strip() == cell][1:]


def _classes(table: Lines, path: Path, at: int, name: str) -> None:
    """Ask for a class that hardly is one."""
    for cell, number in _first_lines(table, at).items():
        if cell.lower() in _NO_VALUE:
            raise DataError(
                f"{path}, {table.unit} {number}: the cell {quote_name(name)} is '{cell}', as "
                "programs write an empty one, and would be a class: where the class is not known "
                "leave the cell empty (an image without a label), or take the line out; if it is "
                f"a class, write it otherwise{same_lines(_more_lines(table, at, cell))}")


def _holders(table: Lines, path: Path, at: int, name: str, domain: bool) -> None:
    """Ask for names of clients, groups or domains that hardly are names."""
    first = _first_lines(table, at)
    for cell, number in first.items():
        where = f"{path}, {table.unit} {number}: the cell {quote_name(name)} is '{cell[:_SHOWN]}'"
        if cell.lower() in _EMPTY:
            raise DataError(f"{where}, as programs write an empty one, and would be a name: fill "
                            "it, or take the line out; if it is a name, write it otherwise"
                            + ("; --columns domain=- leaves the column out" if domain else "")
                            + same_lines(_more_lines(table, at, cell)))
        whole = cell.partition(".")[0]
        if _WHOLE.fullmatch(cell) and whole in first:
            raise DataError(f"{where} here and '{whole}' on {table.unit} {first[whole]}: two names "
                            f"for one number; write {whole} on all lines")
