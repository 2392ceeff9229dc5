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

from fedvlm.core.errors import DataError, did_you_mean, one_form
from fedvlm.core.spelling import name_fault, quote_name, show_name
from fedvlm.data.columns.faults import each_line, refuse_faults
from fedvlm.data.columns.find_images import find_images, path_below
from fedvlm.data.columns.header import (
    TABLE_COLUMNS,
    Header,
    Wish,
    binary_names,
    proposals,
    read_header,
    wish_of,
)
from fedvlm.data.columns.label_sets import read_sets, sets_of
from fedvlm.data.columns.patterns import mark
from fedvlm.data.datum import PARTS, DatasetBase, Datum
from fedvlm.data.formats.folders import OWN_CUT, cut_class
from fedvlm.data.formats.parts import OWN_SHARES, PART_NAMES, complete
from fedvlm.data.formats.rows import ImageRow
from fedvlm.data.formats.table_files import Lines, read_lines_of
from fedvlm.data.layouts import CopyInfo
from fedvlm.data.locate import image_key
from fedvlm.data.whole_groups import cut_whole

READER = "table"
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
    wish = wish_of(info.clients_by, info.groups, info.columns, info.labels, info.captions)
    for path in paths:
        table = read_lines_of(path, info.unpacked)
        part = part_of_table(path, image_dir) if len(paths) > 1 else ""
        more, used, others, said = _rows(table, path, image_dir, part, wish, info.whole)
        notes += [note for note in said if note not in notes]
        if columns and set(used) != columns:
            raise DataError(f"{path} has the columns {', '.join(sorted(used))}, the table before "
                            f"it has {', '.join(sorted(columns))}; give all tables the same")
        columns = set(used)
        if "captions" in used:
            from fedvlm.data.columns import captions  # start-up: for captions only

            more = captions.join_lines(more)
        if others:
            notes.append(f"{path.name}: columns not used: {', '.join(others)}")
        _refuse_twice(more, lines, path, "labels" in used)
        rows += more
    first = paths[0]
    if not rows:
        raise DataError(f"{first} holds no image; a line is {','.join(TABLE_COLUMNS)}")
    domains = sorted({row.domain for row in rows}) if "domain" in columns else []
    if not rows[0].file:
        rows = find_images(rows, image_dir)
    unlabelled = [row for row in rows if _bare(row)]
    rows = [row for row in rows if not _bare(row)]
    _check_bare(unlabelled, rows)
    names: list[str] = []
    if "labels" in columns:
        names, data, said = sets_of(rows, info, domains)
    elif "captions" in columns:
        from fedvlm.data.columns import captions  # start-up: for captions only

        data, said = captions.captioned(rows, info, domains)
    else:
        classes = _labels(rows, columns, first, info.renames, info.whole)
        data = [row.datum(image_dir, label, name, domains)
                for row, (label, name) in zip(rows, classes, strict=True)]
        said = [] if {"label", "classname"} & columns else [
            f"{first.name}: no column names a class, so it is the folder of each image"]
    data = mark(data, info.clients_by, info.groups)
    out = parted(rows, data, domains, [*notes, *said], info)
    out.label_names = names
    if unlabelled:
        out.notes.append(f"{first.name}: {len(unlabelled):,} image(s) have an empty cell for the "
                         "class: images without a label")
        bare = [row.datum(image_dir, -1, "", domains) for row in unlabelled]
        out.add_unlabelled(mark(bare, info.clients_by, info.groups))
    return out


def _refuse_twice(
    rows: Sequence[ImageRow], lines: dict[str, str], path: Path, sets: bool
) -> None:
    """Refuse images that are on two lines.

    Args:
        lines: where each image of the tables before this one is; takes those of ``rows``.
        sets: lines have sets of labels.
    """
    faults = []
    for row in rows:
        if row.path in lines:
            end = (": --labels reads one line for each image: write all labels of an image in one "
                   "cell, a|b" if sets else "; if two files have one name, write each with its "
                   f"folder ('hospital_a/{row.path}'); if it is one, take a line out")
            place = lines[row.path].removeprefix(f"{path}, ")
            faults.append((int(row.where.rpartition(" ")[2]),
                           f"{row.where}: '{row.path}' is also on {place}{end}"))
        lines.setdefault(row.path, row.where)
    refuse_faults(faults)


def _bare(row: ImageRow) -> bool:
    """Say whether an image has no label."""
    return not row.target and row.labels is None and not row.captions


def _check_bare(unlabelled: Sequence[ImageRow], labelled: Sequence[ImageRow]) -> None:
    """Refuse images without a label where one is needed."""
    if unlabelled and not labelled:
        raise DataError(f"{unlabelled[0].where}: the cell of the class is empty here and on every "
                        "other line: no image has a label")
    for row in unlabelled:
        if row.split not in ("", "train"):
            raise DataError(f"{row.where}: '{row.path}' has no label, and it is in {row.split}: "
                            "nothing can be measured on it; take the line out, or fill the cell")


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


def glance(path: Path, wish: Wish | None = None) -> Glance:
    """Look at a table's columns and cells, and ask what they leave open; nothing is unpacked.

    Args:
        wish: what the user says of the columns; None: nothing yet, and nothing is asked.

    Raises:
        DataError: it cannot be read, has no line, or no column of paths; or as ``refuse_doubts``.
    """
    table = read_lines_of(path)
    rows = [line for _, line in table.lines]
    header = read_header(table.header, path, True, wish, rows)
    if not table.lines:
        raise DataError(f"{path} holds no image; a line is {','.join(TABLE_COLUMNS)}")
    if wish is not None:
        from fedvlm.data.columns.doubts import refuse_doubts  # start-up: for new tables only

        refuse_doubts(header, table, path, wish)
    first = ""
    if len(rows[0]) == len(table.header) and not table.embedded:
        first = header.path_of(rows[0])
    if first:
        where = f"{path}, {table.unit} {table.lines[0][0]}"
        first = image_key(path_below(first, path.parent, where))
    numbers: set[str] = set()
    if "label" in header.at and "classname" not in header.at:
        at = header.at["label"]
        codes = {line[at].strip() for line in rows if at < len(line)}
        numbers = codes if all(code.isdecimal() for code in codes) else set()
    labelled = bool(header.labels or header.captions or {"label", "classname"} & set(header.at))
    return Glance(first, labelled, tuple(sorted(numbers, key=int)))


def part_of_table(path: Path, image_dir: Path) -> str:
    """Return the part that a table's name or folder says, empty where none does.

    ``train.csv``, ``data/test-00000-of-00001.parquet`` and ``validation/metadata.csv`` say it.
    """
    inside = path.relative_to(image_dir).parts if path.is_relative_to(image_dir) else (path.name,)
    words = [*reversed(inside[:-1]), re.split(r"[-_.]", inside[-1])[0]]
    return next((PART_NAMES[w.lower()] for w in reversed(words) if w.lower() in PART_NAMES), "")


def parted(
    rows: Sequence[ImageRow], data: list[Datum], domains: list[str], notes: list[str],
    info: CopyInfo,
) -> DatasetBase:
    """Share the samples of a table out to train, val and test.

    Raises:
        DataError: no training samples, or neither test samples nor a share of them.
    """
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
    if not info.whole and not info.test_share:
        return DatasetBase.of(lists, domains, notes)
    if not lists["train"]:
        raise DataError(f"{path}: no line has split 'train'; train and test are needed")
    if not lists["test"] and not lists["val"] and not info.test_share:
        raise DataError(f"{path}: no line has split 'test'; train and test are needed, or "
                        "DATASET.TEST_SHARE 0.3, which draws that share of each class by DATA_SEED")
    full, more = complete(lists, info, str(path))
    return DatasetBase.of(full, domains, [*notes, *more])


def _rows(
    table: Lines, path: Path, image_dir: Path, part: str, wish: Wish, whole: bool
) -> tuple[list[ImageRow], list[str], list[str], list[str]]:
    """Return the checked lines, the columns that are used, those that are not, and notes."""
    metadata = path.stem.lower() == METADATA
    lines = [line for _, line in table.lines]
    header = read_header(table.header, path, metadata, wish, lines)
    if not table.lines:
        raise DataError(f"{path} holds no image; a line is {','.join(header.at)}")
    refuse_faults([
        (number, f"{path}, {table.unit} {number}: {len(line)} cells, but the header has "
                 f"{len(table.header)}")
        for number, line in table.lines if len(line) != len(table.header)])
    notes = [f"{path.name}: {sentence}" for sentence in proposals(header, lines)]
    names, note = _binary(header, lines, wish)
    sets = (read_sets(header, table.lines, f"{path}, {table.unit}", whole) if header.labels
            else [])
    texts: list[tuple[str, ...]] = []
    if header.captions:
        from fedvlm.data.columns.captions import read_captions  # start-up: for captions only

        texts = read_captions(header, table.lines, f"{path}, {table.unit}")
    notes += [f"{path.name}: {note}"] if note else []
    if not sets:
        _refuse_bars(header, table, path)
    base = ""
    if metadata and path.parent != image_dir and path.is_relative_to(image_dir):
        base = path.parent.relative_to(image_dir).as_posix()

    def read(at: int, line: Sequence[str], where: str) -> ImageRow | None:
        if names and names[at] is None:
            return None
        cells = {name: one_form(line[place].strip()) for name, place in header.at.items()}
        cells["path"] = header.path_of(line)
        if names:
            cells |= {"classname": names[at] or ""}
        row = _row(cells, where, part, header, path.parent if base else image_dir)
        if sets:
            row = row._replace(labels=sets[at])
        if texts:
            row = row._replace(captions=texts[at])
        if header.client:
            row = row._replace(client=_holder(header, line, header.client, where))
        if header.group:
            row = row._replace(group=_holder(header, line, header.group, where))
        if base:
            row = row._replace(path=f"{base}/{row.path}")
        if not {"label", "classname"} & set(header.at) and not sets and not texts:
            row = row._replace(target=_folder_class(row))
        return row._replace(file=table.places.get(table.lines[at][0], ""))

    found = each_line(table.lines, f"{path}, {table.unit}", read)
    rows = [row for row in found if row is not None]
    _refuse_sets(rows)
    return rows, header.used, header.unused(), notes


def _binary(
    header: Header, lines: Sequence[Sequence[str]], wish: Wish
) -> tuple[list[str | None], str]:
    """Return the classes of a column of 0 and 1 that was named or guessed to say the class."""
    at = header.at.get("classname")
    if at is None or ("classname" not in header.guessed and "classname" not in wish.columns):
        return [], ""
    return binary_names(header.names[at], [line[at].strip() for line in lines])


def _holder(header: Header, line: Sequence[str], places: tuple[int, ...], where: str) -> str:
    """Return what names a client or a group."""
    for at in places:
        if not line[at].strip():
            raise DataError(f"{where}: the cell '{header.names[at]}' is empty; fill it, or take "
                            "the line out")
    text = one_form(header.cell(line, places))
    if fault := name_fault(text):
        raise DataError(f"{where}: the name {show_name(text)} {fault}")
    return text


def _refuse_bars(header: Header, table: Lines, path: Path) -> None:
    """Refuse a column of classes in which a cell lists several, also where others are empty."""
    for place in {header.at.get("classname"), header.at.get("label")} - {None}:
        for number, line in table.lines:
            if place is not None and "|" in line[place]:
                cell, where = line[place].strip(), f"{path}, {table.unit} {number}"
                _refuse_sets([ImageRow("", cell, None, "", "", where)])


def _refuse_sets(rows: Sequence[ImageRow]) -> None:
    """Refuse cells that hold a set of labels: the text of one would become a class of its own."""
    names = {row.target for row in rows}
    for row in rows:
        parts = {p.strip() for p in re.split(r"[|;]", row.target)}
        if row.target.startswith("[") or (len(parts) > 1 and parts & names) or (
                "|" in row.target and len(parts) > 1):
            raise DataError(
                f"{row.where}: the class '{row.target[:60]}' is a set of labels: --labels COLUMN "
                "reads that column as such; or give a column with one label (--columns "
                "classname=COLUMN; a column of 0 and 1 gives 'x' and 'no x')")


def _folder_class(row: ImageRow) -> str:
    folder = PurePosixPath(row.path).parent.name
    if not folder or folder.lower() in PART_NAMES:
        raise DataError(f"{row.where}: no column names a class, and '{row.path}' lies in no class "
                        "folder; add a column classname (or label)")
    return one_form(folder)


def _row(cells: Mapping[str, str], where: str, part: str, header: Header, folder: Path) -> ImageRow:
    classes = {"label", "classname"} & set(cells)
    bare = classes if not any(cells[name] for name in classes) else ()  # an image without a label
    for what, text in cells.items():
        bad = "is empty" if not text and what not in bare else (
            "holds a line break; is a quote open?" if len(text.splitlines()) > 1 else "")
        if bad:
            own = header.names[header.at[what]] if what in header.at else what
            raise DataError(f"{where}: the cell {quote_name(own)} {bad}")
    word = cells.get("split", "")
    if word and word.lower() not in PART_NAMES:
        near = did_you_mean(word, PART_NAMES)
        raise DataError(f"{where}: unknown split '{word}'{near} (known: {', '.join(PARTS)})")
    label, name = cells.get("label", ""), cells.get("classname", "")
    return ImageRow(
        image_key(path_below(cells["path"], folder, where)), name or label,
        _number(label, where) if label and name else None,
        cells.get("domain", ""), PART_NAMES[word.lower()] if word else part, where,
    )


def _labels(
    rows: Sequence[ImageRow], columns: set[str], path: Path, names: Mapping[str, str], whole: bool
) -> list[tuple[int, str]]:
    """Return label and class name of each line; ``names`` are those of codes."""
    if all(row.label is not None for row in rows):
        given = [row.label or 0 for row in rows]
        order = {n: n if whole else i for i, n in enumerate(sorted(set(given)))}
        return [(order[n], row.target) for n, row in zip(given, rows, strict=True)]
    codes = [row.target for row in rows]
    numbers = "label" in columns and all(code.isdecimal() for code in codes)
    absent = sorted({code for code in codes if code not in names})
    if numbers and absent and names:
        raise DataError(f"{path}: label {absent[0]} has no name in DATASET.NAMES_FILE")
    if numbers and absent:
        raise DataError(
            f"{path}: the column label holds numbers only, and prompts need names; add a column "
            "classname, or give the names by number with DATASET.NAMES_FILE (a line is: 0 NAME)"
        )
    distinct = sorted(set(codes), key=lambda code: (int(code), code) if numbers else (0, code))
    place = {code: label for label, code in enumerate(distinct)}
    return [(place[code], names.get(code, code)) for code in codes]


def _number(text: str, where: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) < _HIGHEST):
        raise DataError(f"{where}: the label must be a whole number from 0, not '{text[:40]}'")
    return int(text)


def _cut(data: list[Datum], domains: list[str]) -> dict[str, list[Datum]]:
    """Cut each class of each client and domain, groups whole; the lines' order moves no image."""
    if any(d.group is not None for d in data):
        return dict(zip(PARTS, cut_whole(data, OWN_SHARES), strict=True))
    groups: dict[tuple[str, int, int], list[Datum]] = {}
    for datum in sorted(data, key=lambda d: d.key):
        groups.setdefault((datum.client, datum.domain, datum.label), []).append(datum)
    lists: dict[str, list[Datum]] = {part: [] for part in PARTS}
    for client, number, label in sorted(groups):
        items = groups[client, number, label]
        domain = client or (domains[number] if domains else "")
        for part, share in zip(PARTS, cut_class(items, domain, items[0].classname), strict=True):
            lists[part] += share
    return lists
