"""From the rows of a domain set's lists to checked parts: what must agree, and what is mended.

A row pairs one image with one label. The label is the list's own number, so a class that one domain
lacks shifts nothing; where a list gives names, labels follow the sorted names. Either way a row
whose image lies in another class's folder ends the reading: pairing the two from different lists
is the usual defect of domain code.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from fedvlm.data.datum import PARTS, Datum
from fedvlm.data.facts import Facts
from fedvlm.data.readers import Tree
from fedvlm.errors import DataError

_SHOWN = 5
_BROKEN = {"PACS": "sketch/dog/n02103406_4068-1.png"}  # published, but it cannot be read


class Row(NamedTuple):
    """One line of a list.

    Attributes:
        key: the image below the set's image folder, with ``/``.
        name: the class name.
        label: the list's number from 0; None where it gives names only.
        domain: number into the facts' domains.
        part: train, val or test.
        where: the file and line, for messages.
    """

    key: str
    name: str
    label: int | None
    domain: int
    part: str
    where: str


def below(path: str, anchors: Sequence[str], domain: str, where: str) -> str:
    """Return a list's path as a path below the set's folder, with ``/``.

    Lists carry their author's folders (``../../data/DomainNet/real/dog/1.jpg``, absolute ones). Up
    to the set's own folder they say nothing here and are dropped; nothing after it may lead back.

    Args:
        anchors: names of the set's folder, the author's and the user's.
        domain: the domain's folder, looked for where no anchor is in the path.

    Raises:
        DataError: a path that names neither, or that leaves the set's folder.
    """
    parts = [part for part in path.replace("\\", "/").split("/") if part not in ("", ".")]
    after = None  # plain loops: DomainNet has 6 x 10^5 of these
    for anchor in anchors:
        if anchor in parts:
            after = max(after or 0, len(parts) - parts[::-1].index(anchor))
    if after is None and domain in parts:
        after = parts.index(domain)
    relative = parts[after:] if after is not None else parts
    outside = after is None and (path.startswith(("/", "\\")) or path[1:2] == ":")
    bad = "\0" in path or not (path.isascii() or path.encode(errors="replace").decode() == path)
    if outside or bad or ".." in relative or len(relative) < 3:
        raise DataError(
            f"{where}: the path {path[:99]!r} does not lead to an image below the set's folder "
            f"({' or '.join(anchors)}); expected {domain}/<class>/<image>"
        )
    return "/".join(relative)


def tree_of_rows(rows: Iterable[Row], images: Path, facts: Facts, notes: Sequence[str]) -> Tree:
    """Return the parts that the rows describe, in their order, domains by number.

    Raises:
        DataError: an image with two labels, a label with two names, a name with two labels, an
            image in another class's folder, or a domain without test images of its own.
    """
    given = sorted(rows, key=lambda row: (PARTS.index(row.part), row.domain))  # stable
    broken = _BROKEN.get(facts.name, "")
    rows = [row for row in given if not broken or not row.key.endswith(broken)]
    if len(rows) < len(given):
        notes = [*notes, f"{facts.name}: {broken} was left out; the published file is broken"]
    labels = _labels(rows)
    _check_folders(rows, labels)
    seen: dict[str, Row] = {}
    lists: dict[str, list[Datum]] = {part: [] for part in PARTS}
    both, base = dict.fromkeys(PARTS, 0), str(images)
    for row in rows:
        first = seen.setdefault(row.key, row)
        if first.name != row.name:
            raise DataError(
                f"{row.where}: {row.key} is '{row.name}' here and '{first.name}' in {first.where}"
            )
        if first is row:
            path = os.path.join(base, row.key)
            lists[row.part].append(Datum(path, labels[row.name], row.domain, row.name, row.key))
        elif first.part != row.part:
            both[row.part] += 1
    domains = list(facts.domains)
    told = [*notes, *_overlaps(facts, both), *_lacking(lists, domains, labels)]
    _refuse_untested(lists, domains, facts)
    return Tree(lists, domains, told)


def _labels(rows: Sequence[Row]) -> dict[str, int]:
    """Return the label of each class name."""
    if any(row.label is None for row in rows):
        return {name: label for label, name in enumerate(sorted({row.name for row in rows}))}
    labels: dict[str, int] = {}
    names: dict[int, str] = {}
    for row in rows:
        number = row.label if row.label is not None else -1
        name, label = names.setdefault(number, row.name), labels.setdefault(row.name, number)
        if name != row.name:
            raise DataError(f"{row.where}: label {number} is '{row.name}', elsewhere '{name}'")
        if label != number:
            raise DataError(f"{row.where}: '{row.name}' has label {number}, elsewhere {label}")
    return labels


def _check_folders(rows: Sequence[Row], labels: dict[str, int]) -> None:
    for row in rows:
        folder = row.key.split("/")[-2]
        if folder != row.name and folder in labels:
            raise DataError(
                f"{row.where}: {row.key} is called '{row.name}' but lies in the folder of "
                f"'{folder}'; paths and labels of this list are not paired"
            )


def _overlaps(facts: Facts, both: dict[str, int]) -> list[str]:
    return [
        f"{facts.name}: {n} image(s) of the {part} lists are in an earlier list too (train, then "
        f"val) and were left out of {part}" for part, n in both.items() if n
    ]


def _lacking(
    lists: dict[str, list[Datum]], domains: Sequence[str], labels: dict[str, int]
) -> list[str]:
    """Return a note for each part of a domain that lacks classes."""
    notes = []
    for part in ("train", "test"):
        for number, domain in enumerate(domains):
            held = {d.label for d in lists[part] if d.domain == number}
            gone = [name for name, label in sorted(labels.items()) if label not in held]
            if gone:
                shown = ", ".join(gone[:_SHOWN]) + (", ..." if len(gone) > _SHOWN else "")
                notes.append(f"domain '{domain}' lacks {len(gone)} class(es) in {part}: {shown}")
    return notes


def _refuse_untested(
    lists: dict[str, list[Datum]], domains: Sequence[str], facts: Facts
) -> None:
    for part in ("train", "test"):
        held = {d.domain for d in lists[part]}
        empty = [name for number, name in enumerate(domains) if number not in held]
        if empty:
            raise DataError(
                f"{facts.name}: the lists leave domain '{empty[0]}' without a {part} image of its "
                "own; images that are in train do not count for test"
            )
