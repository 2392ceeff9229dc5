"""What a run is called, the file that makes it finished, and how its images were dealt."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvlm.core.errors import DataError
from fedvlm.core.files import read_json
from fedvlm.core.spelling import text_of_cell

RESULTS = "results.json"  # of a run folder, written last (docs/files.md)
PACKED_FILES = ("config.yaml", "manifest.json", RESULTS)  # what a pack of cells keeps of a run
PACKED = "packed: without metrics, partition and tensors"
_COLUMNS = {"client", "domain", "part", "class", "images"}  # of partition.csv


def is_finished(folder: Path) -> bool:
    """Return whether a run folder has results; ``runs.finished`` reads and checks them."""
    return (folder / RESULTS).is_file()


def is_packable(folder: Path) -> bool:
    """Return whether a run folder holds exactly what a pack of cells keeps of a run."""
    try:
        return {path.name for path in folder.iterdir()} == set(PACKED_FILES)
    except OSError:
        return False


def method_name(protocol: Mapping[str, Any], draft: bool = False) -> str:
    """Return a method's name with trainable set and tag: ``FedAvg [prompt+lora] (tag, draft)``."""
    peft, tag = protocol.get("peft", ""), protocol.get("tag", "")
    tag = ", ".join(filter(None, [tag, "draft" if draft else ""]))
    trainable = f" [{peft}]" if peft else ""
    return f"{protocol['trainer']}{trainable}" + (f" ({tag})" if tag else "")


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


def class_names(folder: Path) -> list[str]:
    """Return the class names by label of ``partition.json`` of a run folder; [] without any."""
    told = read_json(folder / "partition.json")
    names = told.get("classnames") if isinstance(told, dict) else None
    return [str(name) for name in names] if isinstance(names, list) else []
