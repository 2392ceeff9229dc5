"""What a server takes of the rows of numbers that sites send: see ``policy`` for their updates.

A row is held against what the server asked for and what the site told of its images when it was
met. Whether the numbers are true, only their site knows; that they can be, is seen here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from fedvlm.evaluation.scores import ABSENT, CONFUSION, UNSEEN, WITHHELD
from fedvlm.federation.server import Measure, Row

_COUNTS = {"client", "n", "correct"}
_ALWAYS = _COUNTS | {"accuracy", "macro_f1", "balanced"}
_CELL = re.compile(rf"{CONFUSION}\.(\d{{1,6}})\.(-1|\d{{1,6}})")  # -1: ``scores.BROKEN``
_RARE = {"broken", ABSENT}  # in some rows only
_SLACK = 1e-6  # percent, or nats
_MOST = 1e300


def odd_row(row: Row, images: int, measure: Measure) -> str:
    """Return why a client's row is not taken: a clause; empty where it is.

    Args:
        row: with ``client``, and numbers or None else (``schema.row``).
        images: how many the site told of the split.
        measure: what was asked for.

    Numbers of the classes ``new`` and the domain ``unseen`` may lack: not every data set has them.
    """
    cells = [n for n in row if n.startswith(f"{CONFUSION}.")]
    names = row.keys() - set(cells)
    wanted = _ALWAYS | ({"nll", "ece"} if measure.calibration else set())
    wanted |= {"base_all", "base_other"} if measure.cross else set()
    extra = {"new"} if measure.cross else set()
    extra |= {UNSEEN} if measure.away else set()
    if wanted - names:
        return f"its row lacks '{min(wanted - names)}'"
    if names - wanted - extra - _RARE or (cells and not measure.confusion):
        return "its row has numbers that were not asked for"
    if any(type(row[n]) is not int for n in _COUNTS):
        return "its row counts in other than whole numbers"
    n, correct = int(row["n"] or 0), int(row["correct"] or 0)
    if ABSENT in row:
        none = all(v is None for name, v in row.items() if name not in _COUNTS | {ABSENT})
        fine = row[ABSENT] == WITHHELD and none and not n and not correct
        return "" if fine else "its row says that it is absent, and has numbers"
    if n != images or not 0 <= correct <= n:
        return f"its row counts {correct} right of {n} images, and {images} were told"
    return _odd_numbers(row, n, correct) or _odd_cells(row, cells, n, correct)


def _odd_numbers(row: Row, n: int, correct: int) -> str:
    for name in row.keys() - _COUNTS - {"broken", "nll"}:
        value = row[name]
        if not _CELL.fullmatch(name) and value is not None and not 0 <= value <= 100 + _SLACK:
            return f"'{name}' of its row is no percentage"
    share, loss, broken = row["accuracy"], row.get("nll"), row.get("broken", 0)
    if (share is None) != (n == 0) or (
        share is not None and abs(share - 100 * correct / n) > _SLACK
    ):
        return "the accuracy of its row is not that of its counts"
    if loss is not None and not -_SLACK <= loss <= _MOST:
        return "'nll' of its row is no loss"
    if type(broken) is not int or not 0 <= broken <= n:
        return "'broken' of its row is no count of its images"
    return ""


def _odd_cells(row: Row, cells: list[str], n: int, correct: int) -> str:
    """Return what is odd in confusion counts; a site may leave out all of them."""
    total = right = 0
    for name in cells:
        match, value = _CELL.fullmatch(name), row[name]
        if match is None or type(value) is not int or value < 0:
            return "the confusion counts of its row are none"
        total, right = total + value, right + (value if match[1] == match[2] else 0)
    if cells and (total, right) != (n, correct):
        return "the confusion counts of its row are not of its images"
    return ""


def outvoted_rows(rows: Mapping[int, Row]) -> dict[int, str]:
    """Return why rows are not taken whose names are other than most others'; of two, the fewer."""
    names = {c: frozenset(n for n in row if n not in _RARE and not n.startswith(f"{CONFUSION}."))
             for c, row in rows.items()}
    votes = Counter(names.values())
    most = max(votes, key=lambda one: (votes[one], -len(one)), default=frozenset[str]())
    return {c: "its row has other numbers than the others'" for c, n in names.items() if n != most}
