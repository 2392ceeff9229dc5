"""Trees of domains: ``<domain>/<class>/file`` or ``<domain>/{train,val,test}/<class>/file``.

The parts of some have names of their own: ``<domain>/<part>/<class>/file``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedvlm.core.errors import DataError
from fedvlm.data.datum import PARTS, DatasetBase, Datum
from fedvlm.data.formats.folders import (
    class_folders,
    cut_tree,
    folders_by_name,
    part_folders,
    tree_data,
)
from fedvlm.data.formats.parts import PART_NAMES, complete
from fedvlm.data.formats.rows import ImageRow, build_lists, gap_notes
from fedvlm.data.layouts import CopyInfo
from fedvlm.data.locate import image_files, subfolders

READER = ("domains", "part_folders")


def read_domains(_folder: Path, info: CopyInfo) -> DatasetBase:
    """Read the domains that ``info.folders`` names, in this order, else all that are there.

    Classes are the union over domains, sorted. Where ``info.folders`` names the domains they are
    called as in ``info.domains``, else as their folders; where ``info.classes`` names the classes,
    other class folders are left out, with a note.

    Raises:
        DataError: no domains, no classes, an empty class, or domains of both kinds.
    """
    folder, notes = info.images, []
    own = folders_by_name(folder, info.drop)
    domains = list(info.folders) or list(own)
    if info.classes:
        there = {name for domain in domains for name in subfolders(folder / domain)}
        if others := sorted(there - set(info.classes)):
            info = replace(info, drop=(*info.drop, *others))
            notes.append(f"{info.name}: {len(others)} class folders that the set does not have "
                         "were left out")
    parts = _parts_by_domain(folder, domains, info)
    if all(parts.values()):
        lists, more, classes = _read_parts(folder, parts, info)
    else:
        groups = {domain: folder / own.get(domain, domain) for domain in domains}
        classes = sorted({c for path in groups.values() for c in class_folders(path, info.drop)})
        lists, more = cut_tree(folder, groups, classes, info)
    labels = {name: label for label, name in enumerate(classes)}
    every = [datum for part in PARTS for datum in lists[part]]
    notes += [*more, *gap_notes(every, domains, labels)]
    return DatasetBase.of(lists, info.domains if info.folders else domains, notes)


def read_part_folders(folder: Path, info: CopyInfo) -> DatasetBase:
    """Read the folders ``info.parts`` of each domain.

    Raises:
        DataError: a part without class folders, or a domain without test images.
    """
    rows: list[ImageRow] = []
    for domain in info.domains:
        for part, inner in info.parts.items():
            place = inner.format(domain)
            for name, there in class_folders(folder / place, info.drop).items():
                base, target = f"{place}/{there}", info.renames.get(name, name)
                rows += [ImageRow(f"{base}/{file}", target, None, domain, part, base)
                         for file in image_files(folder / base)]
    return build_lists(rows, info)


def _parts_by_domain(
    folder: Path, domains: Sequence[str], info: CopyInfo
) -> dict[str, dict[str, Path]]:
    """Return the folders by domain and part; no part of any domain where they have none."""
    misread = [name for name in domains if name.lower() in PART_NAMES]
    if misread:
        raise DataError(
            f"{folder} holds '{misread[0]}', a part and no domain; expected "
            "<domain>/<class>/<image> or <domain>/{train,test}/<class>/<image>; a tree without "
            "domains is DATASET.FORMAT folders"
        )
    if not domains:
        raise DataError(f"{folder} has no domain folders; expected <domain>/<class>/<image>")
    own = folders_by_name(folder)
    parts = {d: part_folders(folder / own.get(d, d), info.drop, info.whole) for d in domains}
    mixed = [d for d in domains if parts[d]]
    if mixed and not all(parts.values()):
        raise DataError(
            f"{folder}: domain '{mixed[0]}' has train and test folders but others have none; "
            "use one layout for all domains"
        )
    return parts


def _read_parts(
    folder: Path, parts: Mapping[str, Mapping[str, Path]], info: CopyInfo
) -> tuple[dict[str, list[Datum]], list[str], list[str]]:
    """Read ``<domain>/<part>/<class>``; return lists, notes and classes."""
    paths = [path for places in parts.values() for path in places.values()]
    classes = sorted({c for path in paths for c in class_folders(path, info.drop)})
    lists: dict[str, list[Datum]] = {part: [] for part in PARTS}
    notes: list[str] = []
    for number, (domain, places) in enumerate(parts.items()):
        own = {p: tree_data(places[p], folder, classes, number, info) if p in places else []
               for p in PARTS}
        own, more = complete(own, info, str(folder / domain), domain)
        notes += more
        for part in PARTS:
            lists[part] += own[part]
    return lists, notes, classes
