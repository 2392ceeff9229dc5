"""``metrics.jsonl``: one JSON object per line and event, whole lines only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvlm import atomic
from fedvlm.errors import DataError


def append_metrics(path: Path, record: Mapping[str, Any]) -> None:
    """Append ``record`` as one line and make it durable before returning.

    NaN and infinities become null; their places and kinds are kept in ``non_finite``.

    Raises:
        DataError: disk full, folder read-only or deleted; earlier lines are intact.
    """
    atomic.append_line(path, json.dumps(atomic.json_ready(dict(record)), allow_nan=False))


def read_metrics(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the records of a file that may be cut, and a note per line left out.

    A file that does not exist has no records.
    """
    records: list[dict[str, Any]] = []
    notes: list[str] = []
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return records, notes
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise DataError(f"cannot read '{path}': {why}; make it readable") from error
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        last = number == len(lines)
        if not line.strip() and (last or line == b""):
            continue
        record = None if last else _parse(line)
        if record is not None:
            records.append(record)
        elif last:
            notes.append(f"{path.name}: the last line ({number}) is cut and was dropped")
        else:
            notes.append(f"{path.name}: line {number} is damaged and was dropped")
    return records, notes


def truncate_metrics(path: Path, after_round: int) -> list[str]:
    """Drop records of rounds later than ``after_round``, cut and damaged lines; return notes.

    A record without ``round`` counts as round 0. With ``after_round = -1`` nothing is left. The
    file is rewritten atomically, and only if something goes.

    Raises:
        DataError: the file cannot be read or written.
    """
    records, notes = read_metrics(path)
    kept = [r for r in records if _round(r) <= after_round]
    dropped = len(records) - len(kept)
    if dropped:
        notes.append(f"{path.name}: {dropped} lines after round {after_round} are done again")
    if notes:
        atomic.write_text(path, "".join(json.dumps(r, allow_nan=False) + "\n" for r in kept))
    return notes


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _round(record: Mapping[str, Any]) -> float:
    value = record.get("round", 0)
    return float(value) if isinstance(value, int | float) else 0.0
