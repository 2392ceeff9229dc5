"""Trees of class folders as annotations: the class is the folder's name, cleaned up as CoOp does.

Labels are the order of the sorted folder names (capitals first), CoOp's order too.
"""

from __future__ import annotations

from pathlib import Path

from fedvlm.data.annotations_base import Annotated
from fedvlm.data.datum import Datum
from fedvlm.data.facts import Facts
from fedvlm.data.locate import find, subfolders
from fedvlm.data.readers import Names, class_folders, image_files, read_folders, refuse_domains
from fedvlm.errors import DataError

_PARTS = {"train", "test"}


def read_class_tree(home: Path, facts: Facts) -> Annotated:
    """Read ``<image dir>/<class>/file`` of a known set.

    Raises:
        DataError: no such folder, no classes, an empty class.
    """
    what = f"the image folder of {facts.name}"
    images = find(home, facts.image_dir, what, source=facts.source)
    return _uncut(images, Names(facts.renames, facts.drop))


def read_cifar_tree(home: Path, facts: Facts) -> Annotated:
    """Read ``{train,test}/<class>/file``; the pickles hold no files that a split could name.

    Raises:
        DataError: another layout.
    """
    if not set(subfolders(home)) >= _PARTS:
        raise DataError(f"{facts.name}: a split names image files, so {home} needs "
                        "{train,test}/<class>/<image>; the pickles of CIFAR are read as they are "
                        "and need no split")
    return read_plain_tree(home, facts.name)


def read_plain_tree(images: Path, name: str) -> Annotated:
    """Read ``{train,val,test}/<class>/file`` or ``<class>/file`` of any set.

    Raises:
        DataError: no classes, an empty class, train without test, a tree of domains.
    """
    if not _PARTS & {n.lower() for n in subfolders(images)}:
        return _uncut(images, Names({}))
    parts = read_folders(images, Names({})).parts
    own_val = parts["val"] or None
    how = f"the part folders of {name}"
    return Annotated(parts["train"], how, parts["test"], own_val)


def _uncut(images: Path, names: Names) -> Annotated:
    found: list[Datum] = []
    classes = class_folders(images, names)
    refuse_domains(images, classes)
    for label, folder in enumerate(classes):
        files = image_files(images / folder)
        if not files:
            raise DataError(f"the class folder {images / folder} holds no image; fill it or "
                            "remove it")
        classname = names.renames.get(folder, folder)
        found += [
            Datum(str(images / folder / f), label, 0, classname, f"{folder}/{f}") for f in files
        ]
    return Annotated(found, f"the class folders of {images}")
