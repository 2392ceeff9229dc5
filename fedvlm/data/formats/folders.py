"""Readers of image trees: ``<part>/<class>/file``, ``<class>/file`` and ``<domain>/<class>/file``.

Order is sorted by name everywhere, so labels and lists are the same on every machine. A tree
without train and test folders is cut 50/20/30 per class (CoOp's shares) by a fixed stream that no
seed of the run changes; the set's notes say so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedvlm.core.errors import DataError
from fedvlm.core.rng import numpy_stream
from fedvlm.data.datum import PARTS, Datum
from fedvlm.data.locate import inside, listing, subfolders

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
PART_NAMES = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
_SHARES = (0.5, 0.7)  # 50 % train, 20 % val, 30 % test
_SPLIT_SEED = 0
OWN_CUT = (
    "each class was cut 50/20/30 into train, val and test by this project: not a published split"
)


@dataclass(frozen=True)
class Tree:
    """The lists read from a tree: parts, domain names and what to tell the user."""

    parts: dict[str, list[Datum]]
    domain_names: list[str]
    notes: list[str]


@dataclass(frozen=True)
class Names:
    """Class-name clean-ups: ``renames`` folder to name, ``drop`` folders that are no class."""

    renames: Mapping[str, str]
    drop: Sequence[str] = ()


def image_files(folder: Path) -> list[str]:
    """Return the image files under a folder as sorted ``/``-paths relative to it.

    Links to folders are not followed, so a loop of links cannot trap the walk.

    Raises:
        DataError: a folder that cannot be read; its images are never left out silently.
    """
    found: list[str] = []
    for here, folders, files in os.walk(folder, onerror=_refuse_unreadable):
        folders[:] = [f for f in folders if not f.startswith(".")]
        below = Path(here).relative_to(folder).as_posix()
        prefix = "" if below == "." else f"{below}/"
        for file in files:  # plain text operations: ImageNet has 1.3 million files
            if file.lower().endswith(SUFFIXES) and not file.startswith("."):
                found.append(prefix + file)
    return sorted(found)


def _refuse_unreadable(error: OSError) -> None:
    raise DataError(f"cannot read the folder {error.filename}: {error.strerror}") from error


def class_folders(folder: Path, names: Names) -> list[str]:
    """Return the class folders of a folder, sorted.

    Raises:
        DataError: there are none, or one holds no image.
    """
    found = [name for name in subfolders(folder) if name not in names.drop]
    if not found:
        seen = ", ".join(listing(folder)[:8]) or "nothing"
        raise DataError(f"{folder} has no class folders (found: {seen}); expected <class>/<image>")
    return found


def read_folders(folder: Path, names: Names) -> Tree:
    """Read ``{train,val,test}/<class>/file`` or, without part folders, ``<class>/file``.

    Raises:
        DataError: no class folders, an empty class, train without test, a tree of domains.
    """
    parts = _part_folders(folder)
    if not parts:
        groups, classes = {"": folder}, class_folders(folder, names)
        refuse_domains(folder, classes)
        return _read_uncut(folder, groups, names, classes)
    held = {part: class_folders(path, names) for part, path in parts.items()}
    for part, path in parts.items():
        refuse_domains(path, held[part])
    classes = sorted({c for found in held.values() for c in found})
    lists: dict[str, list[Datum]] = {part: [] for part in PARTS}
    for part, path in parts.items():
        for label, name in enumerate(classes):
            if (path / name).is_dir():
                lists[part] += class_data(path / name, folder, label, 0, _clean(name, names))
    return Tree(lists, [], [])


def read_domains(folder: Path, names: Names, only: Sequence[str] = ()) -> Tree:
    """Read ``<domain>/<class>/file`` or ``<domain>/{train,val,test}/<class>/file``.

    Domain and class names come from the tree. Classes are the union over domains, sorted.

    Args:
        only: the domains to read, in this order; other folders are left aside.

    Raises:
        DataError: no domains, no classes, or domains of both kinds.
    """
    domains = list(only) or subfolders(folder)
    parts = [name for name in domains if name.lower() in PART_NAMES]
    if parts:
        raise DataError(
            f"{folder} holds '{parts[0]}', a part and no domain; expected <domain>/<class>/<image> "
            "or <domain>/{train,test}/<class>/<image>; a tree without domains is DATASET.FORMAT "
            "folders"
        )
    if not domains:
        raise DataError(f"{folder} has no domain folders; expected <domain>/<class>/<image>")
    cut = {d: _part_folders(folder / d) for d in domains}
    if all(cut.values()):
        return _read_cut_domains(folder, cut, names)
    mixed = [d for d in domains if cut[d]]
    if mixed:
        raise DataError(
            f"{folder}: domain '{mixed[0]}' has train and test folders but others have none; "
            "use one layout for all domains"
        )
    groups = {d: folder / d for d in domains}
    classes = sorted({c for path in groups.values() for c in class_folders(path, names)})
    return _read_uncut(folder, groups, names, classes)


def _read_cut_domains(folder: Path, cut: dict[str, dict[str, Path]], names: Names) -> Tree:
    every = [path for parts in cut.values() for path in parts.values()]
    classes = sorted({c for path in every for c in class_folders(path, names)})
    lists: dict[str, list[Datum]] = {part: [] for part in PARTS}
    for number, parts in enumerate(cut.values()):
        for part, path in parts.items():
            for label, name in enumerate(classes):
                if (path / name).is_dir():
                    named = _clean(name, names)
                    lists[part] += class_data(path / name, folder, label, number, named)
    return Tree(lists, list(cut), _lacking(lists, list(cut), classes))


def _read_uncut(folder: Path, groups: dict[str, Path], names: Names, classes: list[str]) -> Tree:
    lists: dict[str, list[Datum]] = {part: [] for part in PARTS}
    for number, (domain, path) in enumerate(groups.items()):
        for label, name in enumerate(classes):
            if (path / name).is_dir():
                mine = class_data(path / name, folder, label, number, _clean(name, names))
                for part, items in zip(PARTS, cut_class(mine, domain, name), strict=True):
                    lists[part] += items
    domain_names = [d for d in groups if d]
    notes = [f"{folder.name}: the tree has no train and test folders, so {OWN_CUT}"]
    return Tree(lists, domain_names, notes + _lacking(lists, domain_names, classes))


def cut_class(items: list[Datum], domain: str, name: str) -> list[list[Datum]]:
    """Cut one class 50/20/30; test keeps one image and train one wherever there are two.

    Args:
        items: the images of one class and domain, in an order that the machine does not choose.
        domain, name: of the domain and the class; they alone choose the stream.
    """
    order = numpy_stream(_SPLIT_SEED, "tree-split", domain, name).permutation(len(items))
    a, b = (int(share * len(items)) for share in _SHARES)
    a, b = max(a, 1), max(b, 1)
    b = min(b, max(len(items) - 1, 1))
    bounds = ((0, a), (a, b), (b, len(items)))
    return [[items[i] for i in sorted(order[lo:hi])] for lo, hi in bounds]


def _part_folders(folder: Path) -> dict[str, Path]:
    found = {
        PART_NAMES[n.lower()]: folder / n for n in subfolders(folder) if n.lower() in PART_NAMES
    }
    if found and not {"train", "test"} <= set(found):
        lacks = "test" if "train" in found else "train"
        raise DataError(f"{folder} has {', '.join(sorted(found))} but no '{lacks}' folder")
    return {part: found[part] for part in PARTS if part in found}


def class_data(folder: Path, root: Path, label: int, domain: int, classname: str) -> list[Datum]:
    """Return the images below a class folder, sorted; keys are relative to ``root``.

    Raises:
        DataError: there is none.
    """
    files = image_files(folder)
    if not files:
        raise DataError(
            f"the class folder {folder} holds no image ({', '.join(SUFFIXES)}); "
            "fill it or remove it"
        )
    base = folder.relative_to(root).as_posix()
    place = str(folder)
    return [
        Datum(f"{place}/{file}", label, domain, classname, f"{base}/{file}") for file in files
    ]


def refuse_domains(folder: Path, classes: Sequence[str]) -> None:
    """Refuse ``<domain>/<class>`` and ``<domain>/{train,test}``: domains would pass for classes.

    Raises:
        DataError: a class that holds train and test, or at least two classes that hold no image
            themselves but the same two folders or more.
    """
    below = {name: inside(folder / name) for name in classes}
    for name, (folders, _) in below.items():
        if {"train", "test"} <= {f.lower() for f in folders}:
            raise DataError(
                f"{folder / name} holds train and test folders, so '{name}' is no class; set "
                "DATASET.FORMAT domains, or give the folder that holds train and test itself"
            )
    own = (file for _, files in below.values() for file in files)
    if len(below) < 2 or any(file.lower().endswith(SUFFIXES) for file in own):
        return
    shared = sorted(set.intersection(*(folders for folders, _ in below.values())))
    if len(shared) > 1:
        raise DataError(
            f"all folders in {folder} ({_some(sorted(below))}) hold the same folders "
            f"({_some(shared)}), so they are domains and no classes: set DATASET.FORMAT domains; "
            "if they are classes, list the images in a CSV table or a split file"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _clean(folder_name: str, names: Names) -> str:
    return names.renames.get(folder_name, folder_name)


def _lacking(
    lists: dict[str, list[Datum]], domains: Sequence[str], classes: Sequence[str]
) -> list[str]:
    """Return a note for each domain that lacks classes."""
    notes = []
    for number, domain in enumerate(domains):
        held = {d.label for part in PARTS for d in lists[part] if d.domain == number}
        if len(held) < len(classes):
            missing = [c for label, c in enumerate(classes) if label not in held]
            notes.append(
                f"domain '{domain}' lacks {len(missing)} class(es): {', '.join(missing[:5])}"
            )
    return notes
