"""A table's file as lines of text cells: CSV, JSON lines, parquet.

Parquet files of Hugging Face hold the images themselves; these are written once into the cache, and
labels that are numbers there become the names that the file's own schema has for them.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedvlm.core.errors import DataError

TABLES = (".csv", ".jsonl", ".ndjson", ".parquet")
_MAGIC = {
    b"\xff\xd8\xff": ".jpg", b"\x89PNG": ".png", b"GIF8": ".gif", b"BM": ".bmp", b"RIFF": ".webp",
    b"II*\0": ".tif", b"MM\0*": ".tif",
}  # fmt: skip


@dataclass(frozen=True)
class Lines:
    """A table as text.

    Attributes:
        header: the columns' names.
        lines: (number, cells) of each line that says something; numbers are ``unit``s of the file.
        embedded: whether the table holds the images themselves.
        places: number to image file of those, once they are unpacked.
    """

    header: list[str]
    lines: list[tuple[int, list[str]]]
    unit: str = "line"
    embedded: bool = False
    places: Mapping[int, str] = field(default_factory=dict)


def read_lines_of(path: Path, unpacked: Path | None = None) -> Lines:
    """Read a table by the ending of its name.

    Args:
        unpacked: folder for the images that a parquet file holds itself; None unpacks none.

    Raises:
        DataError: the file cannot be read as what its name says.
    """
    form = path.suffix.lower()
    if form == ".parquet":
        return _parquet(path, unpacked)
    try:
        return _json_lines(path) if form in (".jsonl", ".ndjson") else _csv(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text file in UTF-8") from error


def _csv(path: Path) -> Lines:
    with path.open(encoding="utf-8-sig", newline="") as file:
        table = csv.reader(file, strict=True)
        try:
            header = next(table, [])
            lines = [(table.line_num, line) for line in table if any(map(str.strip, line))]
        except csv.Error as error:
            raise DataError(
                f"{path}, line {table.line_num}: not a CSV line ({error})"
            ) from error
    return Lines(header, lines)


def _json_lines(path: Path) -> Lines:
    objects: list[tuple[int, dict[str, Any]]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(content, dict):
            raise DataError(f'{path}, line {number}: a line is an object, {{"path": ..., '
                            '"classname": ...}')
        objects.append((number, content))
    header = list(dict.fromkeys(key for _, content in objects for key in content))
    return Lines(header, [(n, [_cell(row.get(key)) for key in header]) for n, row in objects])


def _cell(value: Any) -> str:
    """Return a value as a cell; lists and objects are no cells of a column that is used."""
    if value is None or isinstance(value, (dict, list)):
        return ""
    return str(value)


def _parquet(path: Path, unpacked: Path | None) -> Lines:
    try:
        arrow = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise DataError(
            f"{path}: reading parquet needs pyarrow: pip install 'fedvlm[parquet]' (or pip install "
            "pyarrow)"
        ) from error
    try:
        table = arrow.read_table(path)
        header, columns = list(table.column_names), [c.to_pylist() for c in table.columns]
        names = _label_names(table.schema.metadata or {})
    except Exception as error:  # a crafted file can raise anything
        text = str(error).splitlines()[:1]
        raise DataError(f"{path} is not a parquet file: {''.join(text)[:99]}") from error
    places: dict[int, str] = {}
    embedded = False
    cells: list[Sequence[str]] = []
    for name, values in zip(header, columns, strict=True):
        if any(_is_image(value) for value in values):
            embedded = True
            places, keys = _unpack(path, values, unpacked)
            cells.append(keys)
        elif name in names:
            cells.append([_named(value, names[name], path) for value in values])
        else:
            cells.append([_cell(value) for value in values])
    rows = [list(row) for row in zip(*cells, strict=True)]
    return Lines(header, list(enumerate(rows)), "row", embedded, places)


def _is_image(value: Any) -> bool:
    content = value.get("bytes") if isinstance(value, dict) else value
    return isinstance(content, bytes)


def _label_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """Return the class names by column that the ``datasets`` library keeps in a file's schema."""
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
        return {
            column: [str(name) for name in kind["names"]]
            for column, kind in features.items()
            if isinstance(kind, dict) and isinstance(kind.get("names"), list)
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _named(value: Any, names: Sequence[str], path: Path) -> str:
    if isinstance(value, int) and 0 <= value < len(names):
        return names[value]
    if value in (None, -1):
        return ""  # without a label, in the way of that library
    raise DataError(f"{path}: label {str(value)[:40]} has no name among the file's {len(names)}")


def _unpack(
    path: Path, values: Sequence[Any], folder: Path | None
) -> tuple[dict[int, str], list[str]]:
    """Write a column of images, once; return the file and the key of each row."""
    stat = path.stat()
    digest = hashlib.sha256(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode())
    home = folder / digest.hexdigest()[:16] if folder else None
    places, keys = {}, []
    for number, value in enumerate(values):
        content = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(content, bytes):
            raise DataError(f"{path}, row {number}: holds no image")
        ending = next((e for magic, e in _MAGIC.items() if content.startswith(magic)), "")
        if not ending:
            raise DataError(f"{path}, row {number}: these bytes are not an image of a known format")
        key = f"{path.stem}/{number:07d}{ending}"
        keys.append(key)
        if home is None:
            continue
        place = home / key
        if not place.exists() or place.stat().st_size != len(content):
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                part = place.with_name(f"{place.name}.{os.getpid()}")
                part.write_bytes(content)
                part.replace(place)
            except OSError as error:
                raise DataError(f"cannot unpack {path} into {home}: {error.strerror}; set "
                                "CACHE_DIR or $FEDVLM_CACHE to a folder that can be written"
                                ) from error
        places[number] = str(place)
    return places, keys
