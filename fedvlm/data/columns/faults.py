"""What is wrong with a table's lines: each kind of fault is said once, with all lines that have it.

A table by hand has many faults of few kinds, and who is told of one at a time starts once for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from fedvlm.core.errors import DataError, plural
from fedvlm.data.locate import first_names

T = TypeVar("T")
_OWN = re.compile(r"(?<!the cell )'[^']*'|\d+")  # what faults of one kind have each of its own
_MOST = 8  # lines that a message lists


def each_line(
    lines: Sequence[tuple[int, Sequence[str]]], where: str,
    read: Callable[[int, Sequence[str], str], T],
) -> list[T]:
    """Return what ``read`` makes of each line.

    Args:
        lines: number and cells.
        where: the table, for messages.
        read: takes the line's place in ``lines``, its cells and where it is.

    Raises:
        DataError: a line for each kind of fault that ``read`` finds.
    """
    done: list[T] = []
    faults: list[tuple[int, str]] = []
    for at, (number, line) in enumerate(lines):
        try:
            done.append(read(at, line, f"{where} {number}"))
        except DataError as error:
            faults.append((number, str(error)))
    refuse_faults(faults)
    return done


def refuse_faults(faults: Sequence[tuple[int, str]]) -> None:
    """Raise what is wrong with lines, if anything is.

    Args:
        faults: number of the line, and what is wrong with it.

    Raises:
        DataError: as ``each_line``.
    """
    kinds: dict[str, list[tuple[int, str]]] = {}
    for number, words in faults:
        kinds.setdefault(_OWN.sub("", words), []).append((number, words))
    said = [words + same_lines([number for number, _ in rest])
            for (_, words), *rest in kinds.values()]
    if said:
        raise DataError("\n".join(said))


def same_lines(numbers: Sequence[int]) -> str:
    """Return `` (the same on 2 more lines: 5, 9)``; empty without lines."""
    if not numbers:
        return ""
    which = first_names(map(str, numbers), _MOST)
    return f" (the same on {plural(len(numbers), 'more line')}: {which})"
