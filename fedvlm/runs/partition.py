"""``partition.csv``: how many images of which class each client of a run has."""

from __future__ import annotations

import csv
from pathlib import Path

from fedvlm.core.errors import DataError
from fedvlm.core.spelling import text_of_cell

_COLUMNS = {"client", "domain", "part", "class", "images"}


def read_partition(folder: Path) -> list[dict[str, str]]:
    """Return the rows of a run folder's ``partition.csv``.

    Raises:
        DataError: it cannot be read, or has other columns.
    """
    path = folder / "partition.csv"
    try:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            reader = csv.DictReader(file)
            lacking = _COLUMNS - set(reader.fieldnames or ())
            rows = [{k: text_of_cell(v or "") for k, v in row.items()} for row in reader]
    except OSError as error:
        raise DataError(f"cannot read {path} ({error.strerror})") from error
    if lacking:
        raise DataError(f"{path} lacks the columns {', '.join(sorted(lacking))}")
    return rows
