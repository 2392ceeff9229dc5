"""Sets of labels in a table: cells that list them, or a column of 0 and 1 for each label.

A set may be empty ("no finding"). What is dealt, drawn and cut by class (partitions, shots, splits)
goes by an image's rarest label, as in Sechidis et al. 2011 (On the stratification of multi-label
data, ECML PKDD), which deals the images of the rarest label first: a frequent label is then spread
anyway. Images without a label are a class of their own there.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from fedvlm.core.errors import DataError, fold, one_form
from fedvlm.data.columns.faults import each_line
from fedvlm.data.columns.header import BINARY, Header
from fedvlm.data.datum import NO_LABEL, Datum
from fedvlm.data.formats.rows import ImageRow
from fedvlm.data.layouts import CopyInfo
from fedvlm.data.locate import first_names

_MARKS = ("|", ";")
_NOTHING = frozenset({
    "nofinding", "nofindings", "none", "nolabel", "normal", "negative", "unremarkable",
    "keinbefund", "ohnebefund", "ohne", "keine", "unauff\u00e4llig", "aucun", "sinhallazgos",
})  # fmt: skip
_FIRST = 5  # labels that a note lists
Lines = Sequence[tuple[int, Sequence[str]]]


def read_sets(
    header: Header, lines: Lines, where: str, whole: bool = True
) -> list[tuple[str, ...]]:
    """Return the set of labels of each line, as names.

    Args:
        header: ``labels`` says in which columns.
        lines: number and cells.
        where: the table, for messages.
        whole: as ``CopyInfo``: a single column of 0 and 1 is then no set.

    Raises:
        DataError: a cell that is neither 0 nor 1 in one of several columns, or in a single column
            cells of two forms; names the line.
    """
    if len(header.labels) > 1:
        return each_line(lines, where, lambda _, line, place: _flags(header, line, place))
    at = header.labels[0]
    cells = [(f"{where} {number}", line[at].strip()) for number, line in lines]
    name = header.names[at]
    if any(cell for _, cell in cells) and all(c.lower() in BINARY for _, c in cells if c):
        if not whole:
            return each_line(lines, where, lambda _, line, place: _flags(header, line, place))
        raise DataError(
            f"--labels {name}: one column of 0 and 1 is no set: name a column for each label "
            f"(--labels {name},OTHER), or read it as two classes (--columns classname={name})")
    used = [mark for mark in _MARKS if any(mark in cell for _, cell in cells if cell[:1] != "[")]
    if len(used) > 1:
        first = next(place for place, cell in cells if ";" in cell and cell[:1] != "[")
        raise DataError(f"{first}: the column '{name}' separates labels by | and by ;: write one "
                        "of the two")
    return each_line(lines, where, lambda _, line, place: _listed(
        line[at].strip(), used[0] if used else "", place, name))


def _flags(header: Header, line: Sequence[str], where: str) -> tuple[str, ...]:
    names = []
    for at, word in zip(header.labels, header.words, strict=True):
        cell = line[at].strip()
        if cell.lower() not in BINARY:
            raise DataError(
                f"{where}: the cell '{header.names[at]}' is '{cell[:40]}', but a column of "
                "--labels holds 0 and 1 (an unknown or uncertain label has to be decided, or its "
                "line taken out)")
        if BINARY[cell.lower()]:
            names.append(label_name(word))
    return tuple(names)


def label_name(column: str) -> str:
    """Return the label that a column of 0 and 1 stands for, as prompts have it."""
    return " ".join(one_form(column).replace("_", " ").split())


def _listed(cell: str, mark: str, where: str, name: str) -> tuple[str, ...]:
    """Return the labels that one cell lists."""
    if cell[:1] == "[":
        try:
            words = json.loads(cell)
        except ValueError:
            words = None
        if not isinstance(words, list) or not all(isinstance(w, str | int) for w in words):
            raise DataError(f"{where}: the cell '{name}' is no JSON list of names: {cell[:60]}")
        parts = [str(word).strip() for word in words]
    else:
        parts = [part.strip() for part in (cell.split(mark) if mark else [cell])]
        parts = [] if parts == [""] else parts
    if "" in parts:
        raise DataError(f"{where}: the cell '{name}' lists an empty label: '{cell[:60]}'")
    return tuple(dict.fromkeys(map(one_form, parts)))


def _notes(rows: Sequence[ImageRow], names: Sequence[str], info: CopyInfo) -> list[str]:
    """Return notes on the sets, and on a label of cells that says "none of the others"."""
    sets, table = [row.labels or () for row in rows], info.files[0].name
    bare = sum(not labels for labels in sets)
    notes = [f"{table}: sets of {len(names)} labels ({first_names(names, _FIRST)})"
             + (f"; {bare} image(s) without any label" if bare else "")]
    if "," in info.labels:
        return notes  # columns: the user named each
    alone = (labels[0] for labels in sets if len(labels) == 1)
    counts = Counter(name for name in alone if fold(name) in _NOTHING)
    together = {name for labels in sets if len(labels) > 1 for name in labels}
    if found := sorted(counts.keys() - together):
        notes.append(f"{table}: '{found[0]}' is read as a label like the others "
                     f"({counts[found[0]]} images): where it means that there is none, leave those "
                     "cells empty")
    return notes


def sets_of(
    rows: Sequence[ImageRow], info: CopyInfo, domains: Sequence[str]
) -> tuple[list[str], list[Datum], list[str]]:
    """Return the names of all labels, the images, and notes.

    Columns give labels in their order, cells give them sorted.

    Raises:
        DataError: there are less than two labels.
    """
    counts = Counter(name for row in rows for name in row.labels or ())
    words = [label_name(word) for word in info.labels.split(",") if word.strip()]
    codes = words if len(words) > 1 else sorted(counts)
    if len(codes) < (2 if info.whole else 1):
        raise DataError(
            f"{info.files[0]}: --labels {info.labels}: " + (
                f"there is one label only, {codes[0]}; a set needs two (--columns classname=COLUMN "
                "reads one)" if codes else "no image has a label"))
    number = {code: i for i, code in enumerate(codes)}
    names = [info.renames.get(code, code) for code in codes]
    data = []
    for row in rows:
        labels = tuple(sorted(number[name] for name in row.labels or ()))
        rarest = min(labels, key=lambda i: (counts[codes[i]], i), default=len(names))
        name = names[rarest] if labels else NO_LABEL
        data.append(row.datum(info.images, rarest, name, domains, labels))
    return names, data, _notes(rows, names, info)
