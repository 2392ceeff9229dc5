"""Samples that are texts: class folders of plain files, or a table ``text,label[,split]``.

Folders are 20 Newsgroups' (``20news-bydate-train/<class>/<file>``, ``20news-bydate-test/...``): a
part is a folder that is called train, val or test, or ends in it and holds folders (a class may be
called ``steam-train``); without any, each class is cut 50/20/30 as trees of images are. A file is
one text, whole, in UTF-8 or else Latin-1. In a table, ``DATASET.COLUMNS text=body,label=topic``
says what columns mean where their names do not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fedvlm.core.errors import DataError, did_you_mean
from fedvlm.data.datum import PARTS, DatasetBase, Datum, Passage
from fedvlm.data.formats.folders import OWN_CUT, class_folders, cut_class
from fedvlm.data.formats.parts import PART_NAMES, complete
from fedvlm.data.formats.rows import ImageRow
from fedvlm.data.formats.table import part_of_table, parted
from fedvlm.data.formats.table_files import Lines, read_lines_of
from fedvlm.data.layouts import CopyInfo
from fedvlm.data.locate import IMAGE_SUFFIXES, first_names, folder_contents, subfolders

READER = "texts"
COLUMNS = {
    "text": ("text", "texts", "sentence", "document", "content", "body"),
    "label": ("label", "class", "classname", "category", "target", "topic"),
    "split": ("split", "part", "set"),
}
_MOST = 10 << 20  # bytes of a file: what is larger is no text of one sample


def read_texts(folder: Path, info: CopyInfo) -> DatasetBase:
    """Read the tables ``info.files``, or class folders of plain files where there are none.

    Raises:
        DataError: no classes, an empty text, a file that is no text, or a table without the
            columns that are needed; names the place.
    """
    return _tables(folder, info) if info.files else _folders(folder, info)


def text_parts(folder: Path, drop: Sequence[str] = ()) -> tuple[dict[str, Path], list[str]]:
    """Return the folder of each part, none where folders are classes, and the folders beside them.

    Raises:
        DataError: two folders of one part, or parts without training texts.
    """
    names = [name for name in subfolders(folder) if name not in drop]
    split = {name: re.fullmatch(r"(?:(.*)[-_.])?([^-_.]*)", name.lower()) for name in names}
    called = {name: (found[1] or "", PART_NAMES[found[2]]) for name, found in split.items()
              if found and found[2] in PART_NAMES}
    parts: dict[str, Path] = {}
    for name, (before, part) in called.items():
        twins = [other for other in called if called[other][0] == before]
        if before and len(twins) < 2 and not folder_contents(folder / name)[0]:
            continue  # a class that is called so
        if part in parts:
            raise DataError(f"{folder} has two folders of {part} texts, {parts[part].name} and "
                            f"{name}: name one of them in DATASET.LEAVE_OUT")
        parts[part] = folder / name
    if parts and "train" not in parts:
        raise DataError(f"{folder} has {first_names(parts)} but no folder of training texts")
    return parts, [name for name in names if parts and folder / name not in parts.values()]


def is_class_tree(folder: Path, drop: Sequence[str] = ()) -> bool:
    """Return whether class folders of plain texts lie in a folder or its parts, by a first look."""
    places = list(text_parts(folder, drop)[0].values()) or [folder]
    classes = [p / name for p in places for name in subfolders(p) if name not in drop]
    return len(classes) > 1 and all(_holds_texts(place) for place in classes)


def _holds_texts(folder: Path) -> bool:
    folders, files = folder_contents(folder)
    first = folder / min(files, default="")
    if folders or not files or first.suffix.lower() not in ("", ".txt"):
        return False
    with first.open("rb") as file:
        return b"\0" not in file.read(1 << 12)


def is_table_of_texts(path: Path, columns: str = "") -> bool:
    """Return whether a table has columns of texts and labels, and none of images.

    Args:
        columns: what its columns mean (DATASET.COLUMNS).
    """
    if "text=" in columns:
        return True
    table = read_lines_of(path)
    pictured = any(cell.lower().endswith(IMAGE_SUFFIXES) for _, row in table.lines[:1]
                   for cell in row)
    return not table.embedded and not pictured and all(
        _has(table.header, COLUMNS[what]) for what in ("text", "label"))


def _folders(folder: Path, info: CopyInfo) -> DatasetBase:
    parts, beside = text_parts(folder, info.drop)
    places = parts or {"": folder}
    classes = sorted({c for place in places.values() for c in class_folders(place, info.drop)})
    lists: dict[str, list[Datum]] = {part: [] for part in PARTS}
    for part, place in places.items():
        own = class_folders(place, info.drop)
        for label, name in enumerate(classes):
            if name in own:
                shown = info.renames.get(name, name)
                items = _class_texts(place / own[name], folder, label, shown)
                if part or info.test_share:
                    lists[part or "train"] += items
                    continue
                for to, share in zip(PARTS, cut_class(items, "", name), strict=True):
                    lists[to] += share
    if not parts and not info.test_share:
        return DatasetBase.of(lists, [], [f"{folder.name}: there are no folders of train and test "
                                          f"texts, so {OWN_CUT}"])
    whole, notes = complete(lists, info, str(folder))
    if beside:
        read = first_names(path.name for path in parts.values())
        notes.append(f"{folder.name}: not read, beside {read}: {first_names(beside)}")
    return DatasetBase.of(whole, [], notes)


def _class_texts(folder: Path, root: Path, label: int, classname: str) -> list[Datum]:
    folders, files = folder_contents(folder)
    if folders or not files:
        found = f"folders ({first_names(sorted(folders))})" if folders else "nothing"
        raise DataError(f"the class folder {folder} holds {found}; a class of texts is a folder "
                        "of plain files, one text each")
    return [
        Datum(str(path), label, 0, classname, path.relative_to(root).as_posix(), _text_of(path))
        for path in (folder / name for name in sorted(files))
    ]


def _text_of(path: Path) -> Passage:
    try:
        if path.stat().st_size > _MOST:
            raise DataError(f"{path} has more than {_MOST >> 20} MB: a file is one text; take it "
                            "out, or cut it")
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read the text {path}: {error.strerror}") from error
    if b"\0" in raw:
        raise DataError(f"{path} is no text (it has bytes of 0): DATASET.FORMAT texts reads plain "
                        "files; leave this one out")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    if not text.strip():
        raise DataError(f"the text {path} is empty: take the file out")
    return Passage(text)


def _tables(folder: Path, info: CopyInfo) -> DatasetBase:
    rows: list[ImageRow] = []
    texts: list[str] = []
    notes: list[str] = []
    for path in info.files:
        table = read_lines_of(path)
        inside = path.is_relative_to(folder)
        name = path.relative_to(folder).as_posix() if inside else path.name
        at = _places(table, path, info)
        part = part_of_table(path, info.images) if len(info.files) > 1 else ""
        unused = [name for i, name in enumerate(table.header) if i not in at.values()]
        notes += [f"{path.name}: columns not used: {', '.join(unused)}"] if unused else []
        for number, cells in table.lines:
            where = f"{path}, {table.unit} {number}"
            if len(cells) != len(table.header):
                raise DataError(f"{where}: {len(cells)} cells, but the header has "
                                f"{len(table.header)}")
            said = {what: cells[place].strip() for what, place in at.items()}
            if empty := [table.header[at[what]] for what, text in said.items() if not text]:
                raise DataError(f"{where}: the cell '{empty[0]}' is empty: fill it, or take the "
                                "line out")
            word = said.get("split", "")
            if word and word.lower() not in PART_NAMES:
                raise DataError(f"{where}: unknown split '{word}'{did_you_mean(word, PART_NAMES)} "
                                f"(known: {', '.join(PARTS)})")
            texts.append(said["text"])
            rows.append(ImageRow(
                f"{name}:{number}", said["label"], None, "",
                PART_NAMES[word.lower()] if word else part, where, str(path),
                said.get("client", ""), said.get("group"),
            ))
    if not rows:
        raise DataError(f"{info.files[0]} holds no text; a line is text,label")
    names = sorted({row.target for row in rows},
                   key=lambda name: (int(name), "") if name.isdecimal() else (0, name))
    label = {name: i for i, name in enumerate(names)}
    data = [
        Datum(row.file, label[row.target], 0, info.renames.get(row.target, row.target), row.path,
              Passage(text), client=row.client, group=row.group)
        for row, text in zip(rows, texts, strict=True)
    ]
    return parted(rows, data, [], notes, info)


def _places(table: Lines, path: Path, info: CopyInfo) -> dict[str, int]:
    """Return the place of each column that is used: text, label, split, client, group."""
    header = [name.strip() for name in table.header]
    wished = dict(word.split("=", 1) for word in info.columns.split(",") if "=" in word)
    if strange := [what for what in wished if what not in COLUMNS]:
        raise DataError(f"DATASET.COLUMNS {info.columns}: a table of texts has no '{strange[0]}'"
                        f"{did_you_mean(strange[0], COLUMNS)} (known: {', '.join(COLUMNS)})")
    wished |= {k: v for k, v in (("client", info.clients_by), ("group", info.groups)) if v}
    out = {what: _place(header, (name,), path) for what, name in wished.items()}
    for what, names in COLUMNS.items():
        if what not in out and (what != "split" or _has(header, names)):
            out[what] = _place(header, names, path, what)
    return out


def _has(header: Sequence[str], names: Sequence[str]) -> bool:
    return any(name.lower() in names for name in header)


def _place(header: Sequence[str], names: Sequence[str], path: Path, what: str = "") -> int:
    """Return where the one column of these names stands."""
    low = [name.lower() for name in header]
    found = [i for i, name in enumerate(low) if name in [n.lower() for n in names]]
    if len(found) != 1:
        count = "several columns" if found else "no column"
        hint = "" if found else did_you_mean(names[0], header)
        mend = f"; say which it is with --columns {what}=COLUMN" if what else ""
        raise DataError(f"{path} has {count} '{names[0]}'{hint} (found: {', '.join(header)}){mend}")
    return found[0]
