"""Readers of image trees: ``<part>/<class>/file``, ``<class>/file`` and ``<domain>/<class>/file``.

Order is sorted by name everywhere, so labels and lists are the same on every machine. A tree
without train and test folders is cut 50/20/30 per class (CoOp's shares) by a fixed stream that no
seed of the run changes; the set's notes say so. With a share for the test images it is cut by
DATA_SEED instead (``parts``), as a tree that has a training folder only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedvlm.core.errors import DataError, fold
from fedvlm.core.rng import numpy_stream
from fedvlm.data.datum import PARTS, DatasetBase, Datum
from fedvlm.data.formats.parts import NO_CUT, PART_NAMES, Cut, complete
from fedvlm.data.locate import folder_contents, listing, subfolders

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
UNLABELLED = ("unlabeled", "unlabelled", "unsup", "unsupervised", "nolabel", "nolabels")
_SHARES = (0.5, 0.7)  # 50 % train, 20 % val, 30 % test
_SPLIT_SEED = 0
OWN_CUT = (
    "each class was cut 50/20/30 into train, val and test by this project: not a published split"
)


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
    paths: list[str] = []
    for here, folders, files in os.walk(folder, onerror=_refuse_unreadable):
        folders[:] = [f for f in folders if not f.startswith(".")]
        relative = Path(here).relative_to(folder).as_posix()
        prefix = "" if relative == "." else f"{relative}/"
        for file in files:  # plain text operations: ImageNet has 1.3 million files
            if file.lower().endswith(SUFFIXES) and not file.startswith("."):
                paths.append(prefix + file)
    return sorted(paths)


def _refuse_unreadable(error: OSError) -> None:
    raise DataError(f"cannot read the folder {error.filename}: {error.strerror}") from error


def class_folders(folder: Path, names: Names) -> list[str]:
    """Return the class folders of a folder, sorted.

    Raises:
        DataError: there are none.
    """
    classes = [name for name in subfolders(folder) if name not in names.drop]
    if not classes:
        content = ", ".join(listing(folder)[:8]) or "nothing"
        raise DataError(
            f"{folder} has no class folders (found: {content}); expected <class>/<image>"
        )
    return classes


def read_folders(folder: Path, names: Names, cut: Cut = NO_CUT) -> DatasetBase:
    """Read ``{train,val,test}/<class>/file`` or, without part folders, ``<class>/file``.

    Without a test folder the images of val are the test images; without either, ``cut`` says which
    of the training images are.

    Raises:
        DataError: no class folders, an empty class, train without test, a tree of domains, images
            without a label that lie like a class.
    """
    parts, notes = _labelled(part_folders(folder, names), names)
    if not parts:
        groups, classes = {"": folder}, class_folders(folder, names)
        refuse_domains(folder, classes)
        refuse_unlabelled_class(folder, classes)
        return _cut_tree(folder, groups, names, classes, cut)
    by_part = {part: class_folders(path, names) for part, path in parts.items()}
    for part, path in parts.items():
        refuse_domains(path, by_part[part])
    refuse_unlabelled_class(parts["train"], by_part["train"])
    classes = sorted({c for folders in by_part.values() for c in folders})
    lists: dict[str, list[Datum]] = {part: [] for part in PARTS}
    for part, path in parts.items():
        for label, name in enumerate(classes):
            if (path / name).is_dir():
                lists[part] += class_data(path / name, folder, label, 0, _clean(name, names))
    lists, more = complete(lists, cut, str(folder))
    return DatasetBase.of(lists, [], notes + more)


def read_domains(
    folder: Path, names: Names, only: Sequence[str] = (), cut: Cut = NO_CUT
) -> DatasetBase:
    """Read ``<domain>/<class>/file`` or ``<domain>/{train,val,test}/<class>/file``.

    Domain and class names come from the tree. Classes are the union over domains, sorted.

    Args:
        only: the domains to read, in this order; other folders are left aside.
        cut: as in ``read_folders``.

    Raises:
        DataError: no domains, no classes, or domains of both kinds.
    """
    domains = list(only) or [name for name in subfolders(folder) if name not in names.drop]
    misread = [name for name in domains if name.lower() in PART_NAMES]
    if misread:
        raise DataError(
            f"{folder} holds '{misread[0]}', a part and no domain; expected "
            "<domain>/<class>/<image> or <domain>/{train,test}/<class>/<image>; a tree without "
            "domains is DATASET.FORMAT folders"
        )
    if not domains:
        raise DataError(f"{folder} has no domain folders; expected <domain>/<class>/<image>")
    parts = {d: part_folders(folder / d, names) for d in domains}
    if all(parts.values()):
        return _read_domain_parts(folder, parts, names, cut)
    mixed = [d for d in domains if parts[d]]
    if mixed:
        raise DataError(
            f"{folder}: domain '{mixed[0]}' has train and test folders but others have none; "
            "use one layout for all domains"
        )
    groups = {d: folder / d for d in domains}
    classes = sorted({c for path in groups.values() for c in class_folders(path, names)})
    return _cut_tree(folder, groups, names, classes, cut)


def _read_domain_parts(
    folder: Path, parts: dict[str, dict[str, Path]], names: Names, cut: Cut
) -> DatasetBase:
    """Read ``<domain>/<part>/<class>``; ``parts`` gives the folders by domain and part."""
    paths = [path for places in parts.values() for path in places.values()]
    classes = sorted({c for path in paths for c in class_folders(path, names)})
    lists: dict[str, list[Datum]] = {part: [] for part in PARTS}
    notes: list[str] = []
    for number, (domain, places) in enumerate(parts.items()):
        own: dict[str, list[Datum]] = {part: [] for part in PARTS}
        for part, path in places.items():
            for label, name in enumerate(classes):
                if (path / name).is_dir():
                    classname = _clean(name, names)
                    own[part] += class_data(path / name, folder, label, number, classname)
        own, more = complete(own, cut, str(folder / domain), domain)
        notes += more
        for part in PARTS:
            lists[part] += own[part]
    return DatasetBase.of(lists, list(parts), notes + _gaps(lists, list(parts), classes))


def _cut_tree(
    folder: Path, groups: dict[str, Path], names: Names, classes: list[str], cut: Cut
) -> DatasetBase:
    """Read ``<class>`` in each group (a domain, or the whole tree) and cut it."""
    domain_names = [d for d in groups if d]
    if cut.share:
        whole: dict[str, list[Datum]] = {part: [] for part in PARTS}
        for number, (_, path) in enumerate(groups.items()):
            for label, name in enumerate(classes):
                if (path / name).is_dir():
                    place, classname = path / name, _clean(name, names)
                    whole["train"] += class_data(place, folder, label, number, classname)
        whole, notes = complete(whole, cut, str(folder))
        return DatasetBase.of(whole, domain_names, notes + _gaps(whole, domain_names, classes))
    lists: dict[str, list[Datum]] = {part: [] for part in PARTS}
    for number, (domain, path) in enumerate(groups.items()):
        for label, name in enumerate(classes):
            if (path / name).is_dir():
                items = class_data(path / name, folder, label, number, _clean(name, names))
                for part, share in zip(PARTS, cut_class(items, domain, name), strict=True):
                    lists[part] += share
    notes = [f"{folder.name}: the tree has no train and test folders, so {OWN_CUT}"]
    return DatasetBase.of(lists, domain_names, notes + _gaps(lists, domain_names, classes))


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


def part_folders(folder: Path, names: Names = Names({})) -> dict[str, Path]:
    """Return the folder of each part; none where the tree has no such folders.

    Raises:
        DataError: parts without training images, or two folders of one part.
    """
    paths: dict[str, Path] = {}
    for name in subfolders(folder):
        part = PART_NAMES.get(name.lower(), "")
        if part and name not in names.drop:
            if part in paths:
                raise DataError(
                    f"{folder} has two folders of {part} images, {paths[part].name} and {name}: "
                    "name one of them in DATASET.LEAVE_OUT"
                )
            paths[part] = folder / name
    if paths and "train" not in paths:
        raise DataError(f"{folder} has {', '.join(sorted(paths))} but no 'train' folder")
    return {part: paths[part] for part in PARTS if part in paths}


def _labelled(parts: dict[str, Path], names: Names) -> tuple[dict[str, Path], list[str]]:
    """Return the parts whose images lie in class folders, and a note on one that has none.

    Raises:
        DataError: a part whose folders are none of train's: images without labels, as it seems.
    """
    if not parts:
        return parts, []
    trained, notes = set(class_folders(parts["train"], names)), []
    for part, path in list(parts.items()):
        folders, files = folder_contents(path)
        folders -= set(names.drop)
        if not folders and any(file.lower().endswith(SUFFIXES) for file in files):
            del parts[part]
            notes.append(f"{path} was left out: its images lie in no class folder, so they have "
                         "no labels")
        elif folders and not folders & trained:
            inner = path / sorted(folders)[0]
            raise DataError(
                f"{inner} is no class of {parts['train']} ({_first(sorted(trained))}), nor is any "
                f"other folder in {path}: unlabelled images are no class; leave them out with "
                f"DATASET.LEAVE_OUT {path.name}, or say their labels in a table (DATASET.FORMAT "
                "csv)"
            )
    return parts, notes


def refuse_unlabelled_class(folder: Path, classes: Sequence[str]) -> None:
    """Refuse a class folder whose name says that its images have no label.

    Raises:
        DataError: says how to leave it out.
    """
    for name in classes:
        if fold(name) in UNLABELLED and len(classes) > 1:
            raise DataError(
                f"{folder / name} looks like unlabelled images and would be read as a class: leave "
                f"it out with DATASET.LEAVE_OUT {name}, or give the class another name"
            )


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
    contents = {name: folder_contents(folder / name) for name in classes}
    for name, (folders, _) in contents.items():
        if {"train", "test"} <= {f.lower() for f in folders}:
            raise DataError(
                f"{folder / name} holds train and test folders, so '{name}' is no class; set "
                "DATASET.FORMAT domains, or give the folder that holds train and test itself"
            )
    files = (file for _, names in contents.values() for file in names)
    if len(contents) < 2 or any(file.lower().endswith(SUFFIXES) for file in files):
        return
    shared = sorted(set.intersection(*(folders for folders, _ in contents.values())))
    if len(shared) > 1:
        raise DataError(
            f"all folders in {folder} ({_first(sorted(contents))}) hold the same folders "
            f"({_first(shared)}), so they are domains and no classes: set DATASET.FORMAT domains; "
            "if they are classes, list the images in a CSV table or a split file"
        )


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _clean(folder_name: str, names: Names) -> str:
    return names.renames.get(folder_name, folder_name)


def _gaps(
    lists: dict[str, list[Datum]], domains: Sequence[str], classes: Sequence[str]
) -> list[str]:
    """Return a note for each domain that lacks classes."""
    notes = []
    for number, domain in enumerate(domains):
        labels = {d.label for part in PARTS for d in lists[part] if d.domain == number}
        if len(labels) < len(classes):
            absent = [c for label, c in enumerate(classes) if label not in labels]
            notes.append(
                f"domain '{domain}' lacks {len(absent)} class(es): {', '.join(absent[:5])}"
            )
    return notes
