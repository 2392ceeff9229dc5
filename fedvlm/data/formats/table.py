"""Tables of images: ``path,label,classname[,split][,domain]``, one image a line.

A table is a CSV file, JSON lines or parquet (``table_files`` reads them); several of them make one
set, a part each (``train.csv,test.csv``). The header names the columns, in any order; other
projects' words for them are known (``file_name``, ``class``). With ``classname`` alone (or with a
``label`` that holds names) labels count the sorted names; with both, ``label`` is a whole number
from 0. In a ``metadata`` file (Hugging Face's ``imagefolder``) paths start at its own folder, and
without a label the folder that an image lies in is its class.

The part is the column ``split``, else the table's own name, else the first folder of the paths
where these are ``train/`` and ``test/``. Without any of it each class is cut 50/20/30 by this
project, as trees without parts are, and the notes say so. Every line is checked, since the table
comes from outside.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fedvlm.core.errors import DataError, did_you_mean
from fedvlm.data.datum import PARTS, DatasetBase, Datum
from fedvlm.data.formats.folders import OWN_CUT, cut_class
from fedvlm.data.formats.parts import PART_NAMES, complete
from fedvlm.data.formats.rows import ImageRow
from fedvlm.data.formats.table_files import Lines, read_lines_of
from fedvlm.data.layouts import CopyInfo
from fedvlm.data.locate import check_relative, image_key

READER = "table"
TABLE_COLUMNS = ("path", "label", "classname", "split", "domain")
SYNONYMS = {
    "file_name": "path", "filename": "path", "file": "path", "filepath": "path",
    "file_path": "path", "image_path": "path", "image": "path", "img": "path", "img_path": "path",
    "class": "classname", "class_name": "classname", "category": "classname",
    "label_name": "classname", "part": "split", "subset": "split", "site": "domain",
}  # fmt: skip
METADATA = "metadata"  # the file's name in an imagefolder
_HIGHEST = 10**6


def read_table(_folder: Path, info: CopyInfo) -> DatasetBase:
    """Read the table ``info.files``, or several that make one set, with a header, in UTF-8.

    Raises:
        DataError: wrong columns, or a line that is wrong; names the file and the line.
    """
    paths, image_dir = info.files, info.images
    rows: list[ImageRow] = []
    notes: list[str] = []
    columns: set[str] = set()
    lines: dict[str, str] = {}
    for path in paths:
        table = read_lines_of(path, info.unpacked)
        part = part_of_table(path, image_dir) if len(paths) > 1 else ""
        more, used, others = _rows(table, path, image_dir, part)
        if columns and set(used) != columns:
            raise DataError(f"{path} has the columns {', '.join(sorted(used))}, the table before "
                            f"it has {', '.join(sorted(columns))}; give all tables the same")
        columns = set(used)
        if others:
            notes.append(f"{path.name}: columns not used: {', '.join(others)}")
        for row in more:
            if row.path in lines:
                place = lines[row.path].removeprefix(f"{path}, ")
                raise DataError(f"{row.where}: '{row.path}' is also on {place}")
            lines[row.path] = row.where
        rows += more
    first = paths[0]
    if not rows:
        raise DataError(f"{first} holds no image; a line is {','.join(TABLE_COLUMNS)}")
    labels = _labels(rows, columns, first, info.renames)
    domains = sorted({row.domain for row in rows}) if "domain" in columns else []
    data = [
        Datum(r.file or str(image_dir / r.path), label,
              domains.index(r.domain) if domains else 0, name, r.path, client=r.client,
              group=r.group)
        for r, (label, name) in zip(rows, labels, strict=True)
    ]
    if not {"label", "classname"} & columns:
        notes.append(f"{first.name}: no column names a class, so it is the folder of each image")
    return _parted(rows, data, domains, notes, info)


@dataclass(frozen=True)
class Glance:
    """The first look at a table.

    Attributes:
        first: the path in its first line; empty where it holds the images itself.
        labelled: whether a column names the class.
        numbers: the distinct labels where these are numbers without names.
    """

    first: str
    labelled: bool
    numbers: tuple[str, ...] = ()


def glance(path: Path) -> Glance:
    """Look at a table's columns and first line; nothing is unpacked.

    Raises:
        DataError: it cannot be read, has no line, or no column of paths.
    """
    table = read_lines_of(path)
    columns, _ = _header(table.header, path, bare=True)
    if not table.lines:
        raise DataError(f"{path} holds no image; a line is {','.join(TABLE_COLUMNS)}")
    cells = table.lines[0][1]
    at = columns["path"]
    first = cells[at].strip() if at < len(cells) and not table.embedded else ""
    if first:
        check_relative(first, f"{path}, {table.unit} {table.lines[0][0]}")
    numbers: set[str] = set()
    if "label" in columns and "classname" not in columns:
        at = columns["label"]
        labels = {line[at].strip() for _, line in table.lines if at < len(line)}
        numbers = labels if all(label.isdecimal() for label in labels) else set()
    labelled = bool({"label", "classname"} & set(columns))
    return Glance(first, labelled, tuple(sorted(numbers, key=int)))


def part_of_table(path: Path, image_dir: Path) -> str:
    """Return the part that a table's name or folder says, empty where none does.

    ``train.csv``, ``data/test-00000-of-00001.parquet`` and ``validation/metadata.csv`` say it.
    """
    inside = path.relative_to(image_dir).parts if path.is_relative_to(image_dir) else (path.name,)
    words = [*reversed(inside[:-1]), re.split(r"[-_.]", inside[-1])[0]]
    return next((PART_NAMES[w.lower()] for w in reversed(words) if w.lower() in PART_NAMES), "")


def _parted(
    rows: Sequence[ImageRow], data: list[Datum], domains: list[str], notes: list[str],
    info: CopyInfo,
) -> DatasetBase:
    """Share the images out to train, val and test."""
    path = info.files[0]
    parts = [row.split for row in rows]
    folders = {row.path.split("/")[0].lower() if "/" in row.path else "" for row in rows}
    known = {PART_NAMES.get(folder, "") for folder in folders}
    if not any(parts) and len(known) > 1 and "" not in known and "train" in known:
        parts = [PART_NAMES[row.path.split("/")[0].lower()] for row in rows]
        notes.append(f"{path.name}: no column split, so the first folder of a path is its part")
    if not any(parts):
        if info.test_share:
            whole, more = complete({"train": data, "val": [], "test": []}, info, str(path))
            return DatasetBase.of(whole, domains, [*notes, *more])
        notes.append(f"{path.name}: the table has no split column, so {OWN_CUT}")
        return DatasetBase.of(_cut(data, domains), domains, notes)
    lists = {part: [d for d, p in zip(data, parts, strict=True) if p == part] for part in PARTS}
    if not lists["train"]:
        raise DataError(f"{path}: no line has split 'train'; train and test are needed")
    if not lists["test"] and not lists["val"] and not info.test_share:
        raise DataError(f"{path}: no line has split 'test'; train and test are needed, or "
                        "DATASET.TEST_SHARE 0.3, which draws that share of each class by DATA_SEED")
    full, more = complete(lists, info, str(path))
    return DatasetBase.of(full, domains, [*notes, *more])


def _rows(
    table: Lines, path: Path, image_dir: Path, part: str
) -> tuple[list[ImageRow], list[str], list[str]]:
    """Return the checked lines, the columns that are used, and those that are not."""
    metadata = path.stem.lower() == METADATA
    columns, others = _header(table.header, path, metadata)
    if not table.lines:
        raise DataError(f"{path} holds no image; a line is {','.join(columns)}")
    base = ""
    if metadata and path.parent != image_dir and path.is_relative_to(image_dir):
        base = path.parent.relative_to(image_dir).as_posix()
    rows: list[ImageRow] = []
    for number, line in table.lines:
        where = f"{path}, {table.unit} {number}"
        if len(line) != len(table.header):
            raise DataError(f"{where}: {len(line)} cells, but the header has {len(table.header)}")
        row = _row({name: line[at].strip() for name, at in columns.items()}, where, part)
        if base:
            row = row._replace(path=f"{base}/{row.path}")
        if not row.target:
            row = row._replace(target=_folder_class(row))
        rows.append(row._replace(file=table.places.get(number, "")))
    return rows, list(columns), others


def _folder_class(row: ImageRow) -> str:
    folder = PurePosixPath(row.path).parent.name
    if not folder or folder.lower() in PART_NAMES:
        raise DataError(f"{row.where}: no column names a class, and '{row.path}' lies in no class "
                        "folder; add a column classname (or label)")
    return folder


def _header(cells: Sequence[str], path: Path, bare: bool) -> tuple[dict[str, int], list[str]]:
    """Return column to position, and columns that are not used.

    Args:
        bare: the class may come from the images' folders.
    """
    columns: dict[str, int] = {}
    others: list[str] = []
    cells = [" ".join(cell.split()) for cell in cells]
    own = {cell.lower() for cell in cells}
    for position, cell in enumerate(cells):
        name = cell.lower()
        meant = SYNONYMS.get(name, name)
        if name in columns or (meant in columns and meant not in own):
            raise DataError(f"{path}: the column '{meant}' is there twice")
        if name in TABLE_COLUMNS or (meant in TABLE_COLUMNS and meant not in own):
            columns[meant] = position
        elif len(cells) > 1 and meant == name and (near := did_you_mean(name, TABLE_COLUMNS)):
            raise DataError(f"{path}: unknown column '{cell}'{near}")
        else:
            others.append(cell or f"number {position + 1}")
    if "path" not in columns or not (bare or {"label", "classname"} & set(columns)):
        header = ",".join(cells)[:60] or "nothing"
        raise DataError(
            f"{path}: the first line must name the columns path and classname (or label), "
            f"separated by commas, and may name split and domain; it is '{header}'"
        )
    return columns, others


def _row(cells: Mapping[str, str], where: str, part: str) -> ImageRow:
    empty = [name for name, text in cells.items() if not text]
    if empty:
        raise DataError(f"{where}: the cell '{empty[0]}' is empty")
    broken = [name for name, text in cells.items() if len(text.splitlines()) > 1]
    if broken:
        raise DataError(f"{where}: the cell '{broken[0]}' holds a line break; is a quote open?")
    check_relative(cells["path"], where)
    word = cells.get("split", "")
    if word and word.lower() not in PART_NAMES:
        near = did_you_mean(word, PART_NAMES)
        raise DataError(f"{where}: unknown split '{word}'{near} (known: {', '.join(PARTS)})")
    label, name = cells.get("label", ""), cells.get("classname", "")
    return ImageRow(
        image_key(cells["path"]), name or label, _number(label, where) if label and name else None,
        cells.get("domain", ""), PART_NAMES[word.lower()] if word else part, where,
    )


def _labels(
    rows: Sequence[ImageRow], columns: set[str], path: Path, names: Mapping[str, str]
) -> list[tuple[int, str]]:
    """Return label and class name of each line; ``names`` are those of codes."""
    if all(row.label is not None for row in rows):
        return [(row.label or 0, row.target) for row in rows]
    codes = [row.target for row in rows]
    numbers = "label" in columns and all(code.isdecimal() for code in codes)
    absent = sorted({code for code in codes if code not in names})
    if numbers and absent and names:
        raise DataError(f"{path}: label {absent[0]} has no name in DATASET.NAMES_FILE")
    if numbers and absent:
        raise DataError(
            f"{path}: the column label holds numbers only, and prompts need names; add a column "
            "classname, or give the names by number with DATASET.NAMES_FILE"
        )
    distinct = sorted(set(codes), key=lambda code: (int(code), code) if numbers else (0, code))
    order = {code: label for label, code in enumerate(distinct)}
    return [(order[code], names.get(code, code)) for code in codes]


def _number(text: str, where: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) < _HIGHEST):
        raise DataError(f"{where}: the label must be a whole number from 0, not '{text[:40]}'")
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
