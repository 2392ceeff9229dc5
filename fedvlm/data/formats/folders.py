"""Class folders: ``<part>/<class>/file`` or ``<class>/file``, and what other trees are read with.

Order is sorted by name everywhere, so labels and lists are the same on every machine. A tree
without train and test folders is cut 50/20/30 per class (CoOp's shares) by a fixed stream that no
seed of the run changes; the set's notes say so. With a share for the test images it is cut by
DATA_SEED instead (``parts``), as a tree that has a training folder only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedvlm.core.errors import DataError, fold, one_form
from fedvlm.core.rng import numpy_stream
from fedvlm.data.columns.find_images import refuse_dicom
from fedvlm.data.columns.patterns import files_of, is_pattern, mark
from fedvlm.data.datum import PARTS, DatasetBase, Datum
from fedvlm.data.formats.parts import OWN_SHARES, PART_NAMES, complete
from fedvlm.data.layouts import CopyInfo
from fedvlm.data.locate import (
    IMAGE_SUFFIXES,
    describe_content,
    first_names,
    folder_contents,
    image_files,
    refuse_lost_links,
    subfolders,
)
from fedvlm.data.whole_groups import cut_whole

READER = "folders"
UNLABELLED = ("unlabeled", "unlabelled", "unsup", "unsupervised", "nolabel", "nolabels")
OWN_CUT = (
    "each class was cut 50/20/30 into train, val and test by this project: not a published split"
)
_SHARES = (0.5, 0.7)  # 50 % train, 20 % val, 30 % test
_SPLIT_SEED = 0


def read_folders(_folder: Path, info: CopyInfo) -> DatasetBase:
    """Read ``{train,val,test}/<class>/file`` or, without part folders, ``<class>/file``.

    Without a test folder the images of val are the test images; without either, ``test_share``
    says how many of the training images are. A tree that is only tested on needs no train folder.

    Raises:
        DataError: no class folders, an empty class, train without test, a tree of domains, images
            without a label that lie like a class, two folders of one name.
    """
    folder = info.images
    if is_pattern(info.clients_by) and "{class}" in info.clients_by:
        return _read_pattern(folder, info)
    if info.unlabelled:
        out = read_folders(_folder, replace(
            info, unlabelled="", drop=(*info.drop, info.unlabelled)))
        out.add_unlabelled(_bare_images(folder, info))
        return out
    parts, notes = _labelled(part_folders(folder, info.drop, info.whole), info.drop)
    if not parts:
        classes = list(own := class_folders(folder, info.drop))
        refuse_domains(folder, own.values())
        refuse_unlabelled_class(folder, classes)
        lists, notes = cut_tree(folder, {"": folder}, classes, info)
        return DatasetBase.of(lists, [], notes)
    by_part = {part: class_folders(path, info.drop) for part, path in parts.items()}
    for part, path in parts.items():
        refuse_domains(path, by_part[part].values())
    first = next(iter(parts))
    refuse_unlabelled_class(parts[first], list(by_part[first]))
    classes = sorted({c for folders in by_part.values() for c in folders})
    lists = {p: tree_data(parts[p], folder, classes, 0, info) if p in parts else [] for p in PARTS}
    lists, more = complete(lists, info, str(folder))
    return DatasetBase.of(lists, [], notes + more)


def _bare_images(folder: Path, info: CopyInfo) -> list[Datum]:
    """Return the images of the folder without labels, beside the classes or the parts."""
    bases = (folder, *(folder / name for name in subfolders(folder)
                       if PART_NAMES.get(name.lower()) == "train"))
    places = [p / own[name] for p in bases for own in [folders_by_name(p)] for name in own
              if name == info.unlabelled]
    return mark([d for p in places for d in class_data(p, folder, -1, 0, "")],
                info.clients_by, info.groups)


def _read_pattern(folder: Path, info: CopyInfo) -> DatasetBase:
    """Read a tree whose folders name client and class in the order that a pattern says."""
    rows = files_of(folder, info.clients_by, info.drop)
    bare = [Datum(f"{folder}/{key}", -1, key=key) for key, name, _ in rows
            if info.unlabelled and name == info.unlabelled]
    rows = [row for row in rows if row[1] != info.unlabelled]
    classes = sorted({name for _, name, _ in rows})
    lists: dict[str, list[Datum]] = {part: [] for part in PARTS}
    named = {PART_NAMES.get(part.lower(), "") for _, _, part in rows}
    for key, name, part in rows:
        where = PART_NAMES.get(part.lower(), "train") if "" not in named else "train"
        lists[where].append(Datum(f"{folder}/{key}", classes.index(name), 0,
                                  info.renames.get(name, name), key))
    lists = {part: mark(rows, info.clients_by, info.groups) for part, rows in lists.items()}
    if "" not in named or info.test_share:
        lists, notes = complete(lists, info, str(folder))
    else:
        lists = dict(zip(PARTS, cut_whole(lists["train"], OWN_SHARES), strict=True))
        notes = [f"{folder.name}: the tree has no train and test folders, so {OWN_CUT}"]
    out = DatasetBase.of(lists, [], notes)
    if bare:
        out.add_unlabelled(mark(bare, info.clients_by, info.groups))
    return out


def folders_by_name(folder: Path, drop: Sequence[str] = ()) -> dict[str, str]:
    """Return the folders in a folder as the disk spells them, by their names in one Unicode form.

    macOS decomposes letters with accents, so that a folder copied from there and one made here
    spell one name in two ways. In two places (train and test) that is one class. Side by side they
    are likely two copies of one folder, whose images would be trained and tested on: refused.

    Raises:
        DataError: two of them differ in the form only; one is a link that leads nowhere.
    """
    names: dict[str, str] = {}
    refuse_lost_links(folder)
    for name in subfolders(folder):
        twin = names.setdefault(one_form(name), name)
        if twin != name and one_form(name) not in drop:
            raise DataError(
                f"{folder} has two folders called '{one_form(name)}', {ascii(twin)} and "
                f"{ascii(name)}, which differ in Unicode form only: put their images into one")
    return {name: names[name] for name in sorted(names) if name not in drop}


def class_folders(folder: Path, drop: Sequence[str] = ()) -> dict[str, str]:
    """Return the class folders of a folder by class name, sorted, without those in ``drop``.

    Raises:
        DataError: there are none, or two differ in Unicode form only.
    """
    classes = folders_by_name(folder, drop)
    if not classes:
        raise DataError(f"{folder} has no class folders (found: {describe_content(folder)}); "
                        "expected <class>/<image>")
    return classes


def tree_data(
    place: Path, top: Path, classes: Iterable[str], domain: int, info: CopyInfo
) -> list[Datum]:
    """Return the images of those of the classes, by label, that have a folder in ``place``.

    Args:
        top: what keys are relative to.
        domain: its number.

    Raises:
        DataError: an empty class folder.
    """
    own = folders_by_name(place)
    items = [
        datum for label, name in enumerate(classes) if name in own
        for datum in class_data(place / own[name], top, label, domain, info.renames.get(name, name))
    ]
    return mark(items, info.clients_by, info.groups)


def cut_tree(
    folder: Path, groups: Mapping[str, Path], classes: Sequence[str], info: CopyInfo
) -> tuple[dict[str, list[Datum]], list[str]]:
    """Read ``<class>`` in each group (a domain, or the whole tree), cut it; return lists and notes.

    Raises:
        DataError: an empty class folder.
    """
    lists: dict[str, list[Datum]] = {part: [] for part in PARTS}
    for number, (domain, path) in enumerate(groups.items()):
        if info.test_share or info.groups or info.clients_by:
            lists["train"] += tree_data(path, folder, classes, number, info)
            continue
        own = folders_by_name(path)
        for label, name in enumerate(classes):
            if name in own:
                classname = info.renames.get(name, name)
                items = class_data(path / own[name], folder, label, number, classname)
                for part, share in zip(PARTS, cut_class(items, domain, name), strict=True):
                    lists[part] += share
    if info.test_share:
        return complete(lists, info, str(folder))
    if info.groups or info.clients_by:
        lists = dict(zip(PARTS, cut_whole(lists["train"], OWN_SHARES), strict=True))
    return lists, [f"{folder.name}: the tree has no train and test folders, so {OWN_CUT}"]


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


def part_folders(folder: Path, drop: Sequence[str] = (), whole: bool = True) -> dict[str, Path]:
    """Return the folder of each part; none where the tree has no such folders.

    Args:
        whole: as ``CopyInfo``.

    Raises:
        DataError: parts without training images, or two folders of one part.
    """
    paths: dict[str, Path] = {}
    for name in subfolders(folder):
        part = PART_NAMES.get(name.lower(), "")
        if part and name not in drop:
            if part in paths:
                raise DataError(
                    f"{folder} has two folders of {part} images, {paths[part].name} and {name}: "
                    "name one of them in DATASET.LEAVE_OUT"
                )
            paths[part] = folder / name
    if whole and paths and "train" not in paths:
        raise DataError(f"{folder} has {', '.join(sorted(paths))} but no 'train' folder (fedvlm "
                        "evaluate RUN --images takes it as it is)")
    return {part: paths[part] for part in PARTS if part in paths}


def _labelled(
    parts: dict[str, Path], drop: Sequence[str]
) -> tuple[dict[str, Path], list[str]]:
    """Return the parts whose images lie in class folders, and a note on one that has none."""
    if not parts:
        return parts, []
    trained, notes = set(class_folders(parts["train"], drop) if "train" in parts else ()), []
    for part, path in list(parts.items()):
        named, files = folder_contents(path)
        folders = {*map(one_form, named)} - {*drop}
        if not folders and any(file.lower().endswith(IMAGE_SUFFIXES) for file in files):
            del parts[part]
            notes.append(f"{path} was left out: its images lie in no class folder, so they have "
                         "no labels")
        elif folders and trained and not folders & trained:
            inner = path / sorted(named - {*drop})[0]
            raise DataError(
                f"{inner} is no class of {parts['train']} ({first_names(sorted(trained))}), nor is "
                f"any other folder in {path}: unlabelled images are no class; leave them out with "
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
                f"{folder / name} looks like unlabelled images and would be read as a class: say "
                f"that they have no label with DATASET.UNLABELLED {name}, leave the folder out "
                f"with DATASET.LEAVE_OUT {name}, or give the class another name"
            )


def class_data(folder: Path, root: Path, label: int, domain: int, classname: str) -> list[Datum]:
    """Return the images below a class folder, sorted; keys are relative to ``root``.

    Raises:
        DataError: there is none.
    """
    refuse_dicom(folder)
    files = image_files(folder)
    if not files:
        raise DataError(
            f"the class folder {folder} holds no image ({', '.join(IMAGE_SUFFIXES)}); "
            "fill it or remove it"
        )
    base = folder.relative_to(root).as_posix()
    place = str(folder)
    return [
        Datum(f"{place}/{file}", label, domain, classname, f"{base}/{file}") for file in files
    ]


def refuse_domains(folder: Path, classes: Iterable[str]) -> None:
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
    if len(contents) < 2 or any(file.lower().endswith(IMAGE_SUFFIXES) for file in files):
        return
    shared = sorted(set.intersection(*(folders for folders, _ in contents.values())))
    if len(shared) > 1:
        raise DataError(
            f"all folders in {folder} ({first_names(sorted(contents))}) hold the same folders "
            f"({first_names(shared)}), so they are domains and no classes: set DATASET.FORMAT "
            "domains; if they are classes, list the images in a CSV table or a split file"
        )
