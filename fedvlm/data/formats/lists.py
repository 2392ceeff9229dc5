"""Text lists of domains, one ``path label`` a line: DomainNet's, Dassl's, the folds of PACS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedvlm.core.errors import DataError
from fedvlm.data.datum import PARTS, DatasetBase
from fedvlm.data.formats.rows import ImageRow, build_lists, image_path
from fedvlm.data.layouts import CopyInfo
from fedvlm.data.locate import read_lines

READER = "lists"
_DIGITS = 6  # of a label


def read_lists(folder: Path, info: CopyInfo) -> DatasetBase:
    """Read the lists ``info.parts``; class names are the folders that images lie in.

    Raises:
        DataError: a list that cannot be read, a line that is not ``path label``, or rows that do
            not agree.
    """
    rows: list[ImageRow] = []
    anchors = tuple(dict.fromkeys((folder.name, info.usual_folder, info.name)))
    for domain in info.domains:
        for part in PARTS:
            if part in info.parts:
                path = folder / info.parts[part].format(domain)
                for where, name, label in _lines(path, info.first):
                    key = image_path(name, anchors, domain, where)
                    rows.append(ImageRow(key, key.split("/")[-2], label, domain, part, where))
    return build_lists(rows, info)


def _lines(path: Path, first: int) -> Iterator[tuple[str, str, int]]:
    """Yield (file and line, path, label from 0)."""
    for number, line in read_lines(path):
        where = f"{path}:{number}"
        name, label = (line.rsplit(None, 1) + [""])[:2]
        if not (label.isascii() and label.isdigit()) or len(label) > _DIGITS:
            raise DataError(f"{where}: a line is 'path label', not '{line[:60]}'")
        if int(label) < first:
            raise DataError(f"{where}: label {label}, but this list counts from {first}")
        yield where, name, int(label) - first
