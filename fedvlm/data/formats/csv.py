"""A table of images: ``path,label,classname[,split][,domain]``, one image a line.

The header names the columns, in any order. With ``classname`` alone (or with a ``label`` that holds
names) labels count the sorted names; with both, ``label`` is a whole number from 0. Without a
``split`` column each class is cut 50/20/30 by this project, as trees without parts are, and the
notes say so. Every line is checked, since the table comes from outside.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from fedvlm.core.errors import DataError, did_you_mean
from fedvlm.data.datum import PARTS, DatasetBase, Datum
from fedvlm.data.formats.coop_split import image_key
from fedvlm.data.formats.folders import OWN_CUT, PART_NAMES, cut_class
from fedvlm.data.locate import check_relative

COLUMNS = ("path", "label", "classname", "split", "domain")
_HIGHEST = 10**6


@dataclass(frozen=True)
class _Row:
    where: str
    key: str
    label: str
    classname: str
    part: str
    domain: str


def read_csv(path: Path, image_dir: Path) -> DatasetBase:
    """Read a table.

    Args:
        path: the CSV file, with a header, in UTF-8, separated by commas.
        image_dir: what its paths are relative to; no image is opened.

    Raises:
        DataError: wrong columns, or a line that is wrong; names the file and the line.
    """
    rows, columns, others = _rows(path)
    labels = _labels(rows, columns, path)
    names = sorted({row.domain for row in rows}) if "domain" in columns else []
    data = [
        Datum(str(image_dir / r.key), label, names.index(r.domain) if names else 0, name, r.key)
        for r, (label, name) in zip(rows, labels, strict=True)
    ]
    notes = [f"{path.name}: columns not used: {', '.join(others)}"] if others else []
    if "split" not in columns:
        notes.append(f"{path.name}: the table has no split column, so {OWN_CUT}")
        return DatasetBase.of(_cut(data, names), names, notes)
    lists = {part: [d for d, r in zip(data, rows, strict=True) if r.part == part] for part in PARTS}
    for part in ("train", "test"):
        if not lists[part]:
            raise DataError(f"{path}: no line has split '{part}'; train and test are needed")
    return DatasetBase.of(lists, names, notes)


def _rows(path: Path) -> tuple[list[_Row], list[str], list[str]]:
    """Return the checked lines, the columns that are used, and those that are not."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.reader(file, strict=True)
            columns, others, width = _header(next(table, []), path)
            cells = [(table.line_num, line) for line in table if any(map(str.strip, line))]
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text file in UTF-8") from error
    except csv.Error as error:
        raise DataError(f"{path}, line {table.line_num}: not a CSV line ({error})") from error
    if not cells:
        raise DataError(f"{path} holds no image; a line is {','.join(columns)}")
    rows: list[_Row] = []
    lines: dict[str, int] = {}
    for number, line in cells:
        where = f"{path}, line {number}"
        if len(line) != width:
            raise DataError(f"{where}: {len(line)} cells, but the header has {width}")
        row = _row({name: line[at].strip() for name, at in columns.items()}, where)
        if row.key in lines:
            raise DataError(f"{where}: '{row.key}' is also on line {lines[row.key]}")
        lines[row.key] = number
        rows.append(row)
    return rows, list(columns), others


def _header(cells: list[str], path: Path) -> tuple[dict[str, int], list[str], int]:
    """Return column to position, columns that are not used, and the number of cells."""
    columns: dict[str, int] = {}
    others: list[str] = []
    cells = [" ".join(cell.split()) for cell in cells]
    for position, cell in enumerate(cells):
        name = cell.lower()
        if name in columns:
            raise DataError(f"{path}: the column '{name}' is there twice")
        if name in COLUMNS:
            columns[name] = position
        elif len(cells) > 1 and (near := did_you_mean(name, COLUMNS)):
            raise DataError(f"{path}: unknown column '{cell}'{near}")
        else:
            others.append(cell or f"number {position + 1}")
    if "path" not in columns or not {"label", "classname"} & set(columns):
        header = ",".join(cells)[:60] or "nothing"
        raise DataError(
            f"{path}: the first line must name the columns path and classname (or label), "
            f"separated by commas, and may name split and domain; it is '{header}'"
        )
    return columns, others, len(cells)


def _row(cells: dict[str, str], where: str) -> _Row:
    empty = [name for name, text in cells.items() if not text]
    if empty:
        raise DataError(f"{where}: the cell '{empty[0]}' is empty")
    broken = [name for name, text in cells.items() if len(text.splitlines()) > 1]
    if broken:
        raise DataError(f"{where}: the cell '{broken[0]}' holds a line break; is a quote open?")
    check_relative(cells["path"], where)
    part = cells.get("split", "")
    if part and part.lower() not in PART_NAMES:
        near = did_you_mean(part, PART_NAMES)
        raise DataError(f"{where}: unknown split '{part}'{near} (known: {', '.join(PARTS)})")
    return _Row(
        where, image_key(cells["path"]), cells.get("label", ""), cells.get("classname", ""),
        PART_NAMES[part.lower()] if part else "", cells.get("domain", ""),
    )  # fmt: skip


def _labels(rows: list[_Row], columns: list[str], path: Path) -> list[tuple[int, str]]:
    """Return label and class name of each line."""
    if "label" in columns and "classname" in columns:
        return [(_number(row), row.classname) for row in rows]
    names = [row.classname or row.label for row in rows]
    if "label" in columns and all(name.isdecimal() for name in names):
        raise DataError(
            f"{path}: the column label holds numbers only, and prompts need names; add a column "
            "classname"
        )
    order = {name: label for label, name in enumerate(sorted(set(names)))}
    return [(order[name], name) for name in names]


def _number(row: _Row) -> int:
    text = row.label
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) < _HIGHEST):
        raise DataError(f"{row.where}: the label must be a whole number from 0, not '{text[:40]}'")
    return int(text)


def _cut(data: list[Datum], domains: list[str]) -> dict[str, list[Datum]]:
    """Cut each class of each domain; the order of the lines moves no image."""
    groups: dict[tuple[int, int], list[Datum]] = {}
    for datum in sorted(data, key=lambda d: d.key):
        groups.setdefault((datum.domain, datum.label), []).append(datum)
    lists: dict[str, list[Datum]] = {part: [] for part in PARTS}
    for number, label in sorted(groups):
        items = groups[number, label]
        domain = domains[number] if domains else ""
        for part, share in zip(PARTS, cut_class(items, domain, items[0].classname), strict=True):
            lists[part] += share
    return lists
