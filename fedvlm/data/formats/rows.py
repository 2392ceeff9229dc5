"""One row for each image that a list or a table names, and the lists that the rows make.

A row's label is the list's own number, so a class that one domain lacks shifts nothing; where a
list gives names, labels follow the sorted names. A row whose image lies in another class's folder
ends the reading: pairing the two from different lists is the usual defect of domain code.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedvlm.core.errors import DataError
from fedvlm.data.datum import PARTS, DatasetBase, Datum
from fedvlm.data.layouts import CopyInfo
from fedvlm.data.locate import first_names

_BROKEN = {"PACS": "sketch/dog/n02103406_4068-1.png"}  # published, but it cannot be read
_FIRST = 5  # classes that a note lists


class ImageRow(NamedTuple):
    """One line of a list or a table.

    Attributes:
        path: the image below the set's image folder, with ``/``.
        target: its class name, or in a table the code of its class.
        label: the class's number from 0; None where the list gives names only.
        domain: its name; empty where there is one unnamed domain.
        split: train, val, test, or empty where it is not known yet.
        where: the file and line, for messages.
        file: the image file, where it is not below the image folder.
        client: who holds the image; empty where the partition decides.
        group: what it shares with images that are no independent evidence; None without one.
        labels: names of its set of labels; None where it has one class, ``target``.
        captions: texts that describe it.
    """

    path: str
    target: str
    label: int | None
    domain: str
    split: str
    where: str
    file: str = ""
    client: str = ""
    group: str | None = None
    labels: tuple[str, ...] | None = None
    captions: tuple[str, ...] = ()

    def datum(
        self, images: Path, label: int, name: str, domains: Sequence[str],
        labels: tuple[int, ...] | None = None,
    ) -> Datum:
        """Return the image with its class; ``domains`` are their names by number, perhaps none."""
        return Datum(
            self.file or str(images / self.path), label,
            domains.index(self.domain) if domains else 0, name, self.path, client=self.client,
            group=self.group, labels=labels, captions=self.captions,
        )


def image_path(path: str, anchors: Sequence[str], domain: str, where: str) -> str:
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


def build_lists(rows: Iterable[ImageRow], info: CopyInfo) -> DatasetBase:
    """Return the parts that the rows describe, in their order, domains as ``info`` numbers them.

    Raises:
        DataError: an image with two labels, a label with two names, a name with two labels, an
            image in another class's folder, or a domain without test images of its own.
    """
    notes = []
    domains = {name: number for number, name in enumerate(info.domains)}
    ordered = sorted(rows, key=lambda row: (PARTS.index(row.split), domains[row.domain]))  # stable
    broken = _BROKEN.get(info.name, "")
    rows = [row for row in ordered if not broken or not row.path.endswith(broken)]
    if len(rows) < len(ordered):
        notes.append(f"{info.name}: {broken} was left out; the published file is broken")
    labels = _labels(rows)
    _check_folders(rows, labels)
    first_rows: dict[str, ImageRow] = {}
    lists: dict[str, list[Datum]] = {part: [] for part in PARTS}
    repeats, base = dict.fromkeys(PARTS, 0), str(info.images)
    for row in rows:
        first = first_rows.setdefault(row.path, row)
        if first.target != row.target:
            raise DataError(f"{row.where}: {row.path} is '{row.target}' here and '{first.target}' "
                            f"in {first.where}")
        if first is row:
            lists[row.split].append(Datum(
                os.path.join(base, row.path), labels[row.target], domains[row.domain], row.target,
                row.path, client=row.client, group=row.group,
            ))
        elif first.split != row.split:
            repeats[row.split] += 1
    notes += [
        f"{info.name}: {n} image(s) of the {part} lists are in an earlier list too (train, then "
        f"val) and were left out of {part}" for part, n in repeats.items() if n
    ]
    for part in ("train", "test"):
        notes += gap_notes(lists[part], info.domains, labels, f" in {part}")
    _refuse_gaps(lists, info)
    return DatasetBase.of(lists, info.domains, notes)


def _labels(rows: Sequence[ImageRow]) -> dict[str, int]:
    """Return the label of each class name."""
    if any(row.label is None for row in rows):
        return {name: label for label, name in enumerate(sorted({row.target for row in rows}))}
    labels: dict[str, int] = {}
    names: dict[int, str] = {}
    for row in rows:
        number = row.label if row.label is not None else -1
        name, label = names.setdefault(number, row.target), labels.setdefault(row.target, number)
        if name != row.target:
            raise DataError(f"{row.where}: label {number} is '{row.target}', elsewhere '{name}'")
        if label != number:
            raise DataError(f"{row.where}: '{row.target}' has label {number}, elsewhere {label}")
    return labels


def _check_folders(rows: Sequence[ImageRow], labels: dict[str, int]) -> None:
    for row in rows:
        folder = row.path.split("/")[-2]
        if folder != row.target and folder in labels:
            raise DataError(
                f"{row.where}: {row.path} is called '{row.target}' but lies in the folder of "
                f"'{folder}'; paths and labels of this list are not paired"
            )


def gap_notes(
    items: Sequence[Datum], domains: Sequence[str], labels: Mapping[str, int], where: str = ""
) -> list[str]:
    """Return a note for each domain that lacks classes; ``where`` says in which list."""
    notes = []
    for number, domain in enumerate(domains):
        there = {d.label for d in items if d.domain == number}
        gaps = [name for name, label in sorted(labels.items()) if label not in there]
        if gaps:
            notes.append(f"domain '{domain}' lacks {len(gaps)} class(es){where}: "
                         f"{first_names(gaps, _FIRST)}")
    return notes


def _refuse_gaps(lists: Mapping[str, Sequence[Datum]], info: CopyInfo) -> None:
    for part in ("train", "test"):
        there = {d.domain for d in lists[part]}
        empty = [name for number, name in enumerate(info.domains) if number not in there]
        if empty:
            raise DataError(
                f"{info.name}: the lists leave domain '{empty[0]}' without a {part} image of its "
                "own; images that are in train do not count for test"
            )
