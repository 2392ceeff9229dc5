"""What an acceptance file says already, and must go on saying: a measured cell is never lost.

A command with other keys, weights or seeds measures other cells, or the same ones otherwise. The
file keeps both: of one protocol and one backbone the measurement of more seeds (the newer of equal
ones), the rest under ``earlier``. What was measured stays; the number that it is compared with, and
how near is near, are the recipe's of today.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fedvlm.core import files
from fedvlm.core.errors import DataError
from fedvlm.recipes.verdict import Line, judge_again

NAMES = {one.name for one in fields(Line)}
UNDATED = "an earlier file"
DAY = 10  # characters of a time that name the day
Key = tuple[str, str, str, str]


def lines_of(path: Path) -> list[Line]:
    """Return the measured cells of an acceptance file, those under ``earlier`` behind the others.

    Each says when it was measured and by which version: the file's own, but for what that kept.

    Raises:
        DataError: it is there and no whole acceptance file.
    """
    if not path.is_file():
        return []
    with files.explain_errors(path):
        data = path.read_bytes()
    try:
        record: dict[str, Any] = json.loads(data)
        cells = [*record["cells"], *record.get("earlier", [])]
        made = ", fedvlm ".join(filter(None, (str(record.get("written", ""))[:DAY],
                                              str(record.get("fedvlm", "")))))
        lines = [Line(**{k: v for k, v in cell.items() if k in NAMES}) for cell in cells
                 if cell["measured"] is not None]
        return [line if line.made else replace(line, made=made or UNDATED) for line in lines]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DataError(
            f"{path}: is not a complete acceptance file, and its measured numbers would be lost: "
            "move it away"
        ) from None


def merge_measurements(
    lines: Sequence[Line], before: Iterable[Line], tolerance: float
) -> tuple[list[Line], list[Line], int]:
    """Return the cells, the earlier measurements, and how many cells are from the file alone.

    Args:
        lines: what was measured now, a line for each cell.
        before: what the file says (``lines_of``); of cells that the recipe has, judged again.
        tolerance: the recipe's, in points.
    """
    now = {_key(line): line for line in lines}
    best = {_basis(line): line for line in lines if line.measured is not None}
    newest: dict[tuple[Any, ...], Line] = dict(best)
    for old in before:
        cell = now.get(_key(old))
        line = judge_again(old, cell, tolerance) if cell else old
        there = newest.get(_basis(line))
        if there is None or line.n > there.n:
            newest[_basis(line)] = line
    out, kept = [], 0
    for key, line in now.items():
        mine = [one for one in newest.values() if _key(one) == key]
        stands = newest[_basis(line)] if line.measured is not None else (mine or [line])[0]
        kept += stands is not line
        out.append(stands)
        newest.pop(_basis(stands), None)
    return out, list(newest.values()), kept


def _key(line: Line) -> Key:
    return line.dataset, line.method, line.metric, line.where


def _basis(line: Line) -> tuple[Any, ...]:
    """Return what two measurements of a cell must share to be of one thing."""
    return *_key(line), line.weights, line.why
