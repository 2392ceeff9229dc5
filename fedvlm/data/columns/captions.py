"""Captions of images in a table: a line for each, a JSON list in a cell, or several columns.

An image whose lines name it several times is one image with several captions. Its class, by which
images are split, drawn and dealt, is its topic: the class column where the table has one (also
``topic``), else a group of images whose captions share words (``topics``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from fedvlm.core.errors import DataError
from fedvlm.data.columns.header import Header
from fedvlm.data.columns.topics import group_texts
from fedvlm.data.datum import Datum
from fedvlm.data.formats.rows import ImageRow
from fedvlm.data.layouts import CopyInfo
from fedvlm.data.locate import first_names


def read_captions(
    header: Header, lines: Sequence[tuple[int, Sequence[str]]], where: str
) -> list[tuple[str, ...]]:
    """Return the captions of each line, at least one, blanks made single.

    Raises:
        DataError: an empty caption; names the line.
    """
    out = []
    for number, line in lines:
        texts: list[str] = []
        for at in header.captions:
            name, place = header.names[at], f"{where} {number}"
            found = [" ".join(text.split()) for text in _listed(line[at].strip(), name, place)]
            if not found or "" in found:
                raise DataError(f"{place}: the caption '{name}' is empty: write one, or take the "
                                "line out")
            texts += found
        out.append(tuple(dict.fromkeys(texts)))
    return out


def _listed(cell: str, name: str, place: str) -> list[str]:
    """Return the texts of a cell: those of a JSON list, else its own."""
    if not (cell.startswith(("[\"", "[ \"", "['")) or cell == "[]"):
        return [cell]
    try:
        texts = json.loads(cell)
    except ValueError:
        texts = None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{place}: the cell '{name}' is no JSON list of captions: {cell[:60]}")
    return texts


def join_lines(rows: Sequence[ImageRow]) -> list[ImageRow]:
    """Return one row for each image, with the captions of all its lines, in their order.

    Raises:
        DataError: lines of one image that say another part, topic, domain, client or group.
    """
    found: dict[str, ImageRow] = {}
    for row in rows:
        first = found.setdefault(row.path, row)
        if first is row:
            continue
        for what in ("split", "target", "domain", "client", "group"):
            mine, other = getattr(row, what), getattr(first, what)
            if mine != other:
                raise DataError(
                    f"{row.where}: '{row.path}' has the {'class' if what == 'target' else what} "
                    f"'{mine}' here and '{other}' in {first.where}: captions of one image must "
                    "agree in it")
        texts = dict.fromkeys((*first.captions, *row.captions))
        found[row.path] = first._replace(captions=tuple(texts))
    return list(found.values())


def captioned(
    rows: Sequence[ImageRow], info: CopyInfo, domains: Sequence[str]
) -> tuple[list[Datum], list[str]]:
    """Return the images, and a note on their captions and topics."""
    targets = [row.target for row in rows]
    own = not all(targets)
    if own and any(targets):
        row = next(row for row in rows if not row.target)
        raise DataError(f"{row.where}: '{row.path}' has no topic, and other images have one: fill "
                        "it in, or leave the column out for all")
    if own:
        targets = group_texts([row.captions for row in rows], info.topics)
    names = sorted(set(targets))
    number = {name: i for i, name in enumerate(names)}
    data = [row.datum(info.images, number[name], info.renames.get(name, name), domains)
            for row, name in zip(rows, targets, strict=True)]
    how = "by the words of their captions" if own else "as the table says"
    return data, [f"{info.files[0].name}: {sum(len(row.captions) for row in rows):,} captions of "
                  f"{len(rows):,} images, {len(names)} topics {how} ({first_names(names, 3)})"]
