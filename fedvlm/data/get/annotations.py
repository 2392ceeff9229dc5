"""What a set's own annotations say of its images, where its published split file is absent.

In MATLAB files: Oxford Flowers and Stanford Cars. In text files: Oxford-IIIT Pets, SUN397 and
UCF101. In folders: the class is the folder's name, and labels are the order of the sorted names
(capitals first). Sources: the sets' own release notes; class names are cleaned as CoOp does, so
that prompts read the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvlm.core.errors import DataError
from fedvlm.data.catalog import DatasetInfo
from fedvlm.data.datum import Datum
from fedvlm.data.formats.folders import (
    class_folders,
    read_folders,
    refuse_domains,
    tree_data,
)
from fedvlm.data.layouts import CopyInfo
from fedvlm.data.locate import check_relative, find, read_json_file, read_lines, subfolders


@dataclass(frozen=True)
class Annotations:
    """The labelled images of a set without a split file.

    Attributes:
        images: all of them, or those that are not test images where the set names these.
        how: what said so, in the user's words: ``annotations/trainval.txt``.
        test: the set's own test images; None where it names none.
        val: the set's own validation images; None where it names none.
    """

    images: list[Datum]
    how: str
    test: list[Datum] | None = None
    val: list[Datum] | None = None


def _image(images: Path, key: str, label: int, classname: str, where: str) -> Datum:
    """Return one image that an annotation names."""
    check_relative(key, where)
    if label < 0:
        raise DataError(f"{where}: label {label} of {key} is below the first one")
    return Datum(str(images / key), label, 0, classname, key)


def _lines(home: Path, name: str, info: DatasetInfo) -> list[tuple[int, str]]:
    """Return (line number from 1, text) of the lines of a text file below a set's folder."""
    return read_lines(find(home, name, f"{info.name}: {name}", source=info.source, file=True))


def _number(word: str, where: str) -> int:
    """Return a whole number written in an annotation."""
    try:
        return int(word)
    except ValueError:
        raise DataError(f"{where}: '{word}' is not a whole number") from None


def read_flowers(home: Path, info: DatasetInfo) -> Annotations:
    """Read ``imagelabels.mat`` (the label from 1 of each image) and ``cat_to_name.json``.

    ``labels[0, i]`` is of ``image_%05d.jpg`` with number i + 1. The names are CoOp's file: the set
    itself has numbers only.

    Raises:
        DataError: a file is missing or malformed.
    """
    what = f"{info.name}: cat_to_name.json (the class names, a file of CoOp)"
    names = read_json_file(find(home, "cat_to_name.json", what, source=info.source, file=True))
    if not isinstance(names, dict) or not all(isinstance(v, str) for v in names.values()):
        raise DataError(f"{home}/cat_to_name.json: an object of label to name is wanted")
    folder, images = home / info.image_dir, []
    path, labels = _field(home, "imagelabels.mat", "labels", info)
    for i, value in enumerate(labels.ravel().tolist()):
        if str(value) not in names:
            raise DataError(f"{path}: label {value} has no name in cat_to_name.json")
        key = f"image_{i + 1:05d}.jpg"
        images.append(_image(folder, key, int(value) - 1, names[str(value)], str(path)))
    return Annotations(images, "imagelabels.mat")


def car_name(name: str) -> str:
    """Return a car's name with the year first: ``2012 Audi TTS Coupe``."""
    rest, _, year = name.strip().rpartition(" ")
    return f"{year} {rest}" if rest else year


def read_cars(home: Path, info: DatasetInfo) -> Annotations:
    """Read ``devkit/cars_{meta,train_annos}.mat`` and ``cars_test_annos_withlabels.mat``.

    Raises:
        DataError: a file is missing or malformed.
    """
    meta, names = _field(home, "devkit/cars_meta.mat", "class_names", info)
    classes = [car_name(_text(name, meta)) for name in names.ravel()]

    def rows(file: str, folder: str) -> list[Datum]:
        path, table = _field(home, file, "annotations", info)
        if not {"fname", "class"} <= set(table.dtype.names or ()):
            raise DataError(f"{path}: 'annotations' lacks fname or class; the test file must be "
                            "the one with labels")
        images = []
        for row in table.ravel():
            label, name = int(row["class"].ravel()[0]) - 1, _text(row["fname"], path)
            if not 0 <= label < len(classes):
                raise DataError(f"{path}: label {label + 1} of {name} has no name in cars_meta.mat")
            key = f"{folder}/{name.rpartition('/')[2]}"
            images.append(_image(home, key, label, classes[label], str(path)))
        return images

    train, test = "devkit/cars_train_annos.mat", "cars_test_annos_withlabels.mat"
    return Annotations(rows(train, "cars_train"), f"{train} and {test}", rows(test, "cars_test"))


def _field(home: Path, file: str, field: str, info: DatasetInfo) -> tuple[Path, Any]:
    """Return a MATLAB file's path and one array of it."""
    from scipy.io import loadmat  # start-up: scipy, for the annotations of two sets only

    path = find(home, file, f"{info.name}: {file}", source=info.source, file=True)
    try:
        content = loadmat(str(path))
    except Exception as error:  # a broken file raises anything
        reason = " ".join(str(error).split())
        raise DataError(f"{path} is not a MATLAB file that can be read: {reason}") from error
    if field not in content:
        raise DataError(f"{path}: no '{field}' in it")
    return path, content[field]


def _text(value: Any, path: Path) -> str:
    """Return the string in a MATLAB cell."""
    while not isinstance(value, str):
        if getattr(value, "size", 0) != 1:
            raise DataError(f"{path}: a name is wanted, not {str(value)[:40]}")
        value = value.ravel()[0]
    return str(value)


def read_pets(home: Path, info: DatasetInfo) -> Annotations:
    """Read ``annotations/{trainval,test}.txt``: ``Breed_Name_12 <label from 1> <...>`` a line.

    The class is the breed in lower case: ``Egyptian_Mau_3`` is of class ``egyptian_mau``.

    Raises:
        DataError: a file is missing or malformed.
    """
    folder = home / info.image_dir

    def rows(name: str) -> list[Datum]:
        images = []
        for n, line in _lines(home, name, info):
            words, where = line.split(), f"{home / name}:{n}"
            if words[0].startswith("#"):
                continue
            breed = words[0].rpartition("_")[0].lower()
            if len(words) < 2 or not breed:
                raise DataError(f"{where}: a line is '<Breed>_<number> <label> ...', not '{line}'")
            label = _number(words[1], where) - 1
            images.append(_image(folder, f"{words[0]}.jpg", label, breed, where))
        return images

    names = ("annotations/trainval.txt", "annotations/test.txt")
    return Annotations(rows(names[0]), " and ".join(names), rows(names[1]))


def sun_name(path: str) -> str:
    """Return the class name of SUN397's ``/a/apse/indoor``: ``indoor apse`` (no first letter)."""
    return " ".join(reversed(path.strip("/").split("/")[1:]))


def read_sun(home: Path, info: DatasetInfo) -> Annotations:
    """Read ``ClassName.txt`` (labels by line), ``Training_01.txt`` and ``Testing_01.txt``.

    Lines are ``/a/abbey`` and ``/a/abbey/sun_abc.jpg``. The lists lie in the set's folder, where
    CoOp wants them, or beside the images.

    Raises:
        DataError: a list is missing or names a class that ClassName.txt does not.
    """
    folder = home / info.image_dir

    def place(name: str) -> Path:
        return home if (home / name).is_file() else folder

    classes = _lines(place("ClassName.txt"), "ClassName.txt", info)
    label_of = {name.strip("/"): label for label, (_, name) in enumerate(classes)}

    def rows(name: str) -> list[Datum]:
        images = []
        for n, line in _lines(place(name), name, info):
            key = line.strip("/")
            category, where = key.rpartition("/")[0], f"{place(name) / name}:{n}"
            if category not in label_of:
                raise DataError(f"{where}: '{category}' is not a class of ClassName.txt")
            images.append(_image(folder, key, label_of[category], sun_name(category), where))
        return images

    names = ("Training_01.txt", "Testing_01.txt")
    return Annotations(rows(names[0]), " and ".join(names), rows(names[1]))


def ucf_name(action: str) -> str:
    """Return the class name, and CoOp's folder, of an action: ``YoYo`` is ``Yo_Yo``."""
    return "_".join(re.findall("[A-Z][^A-Z]*", action))


def read_ucf(home: Path, info: DatasetInfo) -> Annotations:
    """Read ``ucfTrainTestlist/{classInd,trainlist01,testlist01}.txt``; images are mid-frames.

    Lines are ``1 ApplyEyeMakeup`` and ``ApplyEyeMakeup/v_x.avi 1``; the image of the latter is
    ``Apply_Eye_Makeup/v_x.jpg``.

    Raises:
        DataError: a list is missing or names an action that classInd.txt does not.
    """
    folder, lists = home / info.image_dir, "ucfTrainTestlist"
    label_of: dict[str, int] = {}
    for _, line in _lines(home, f"{lists}/classInd.txt", info):
        word, _, action = line.partition(" ")
        label_of[action.strip()] = _number(word, f"{home / lists}/classInd.txt") - 1

    def rows(name: str) -> list[Datum]:
        images = []
        for n, line in _lines(home, name, info):
            action, _, file = line.split()[0].partition("/")
            where, classname = f"{home / name}:{n}", ucf_name(action)
            if action not in label_of:
                raise DataError(f"{where}: '{action}' is not an action of classInd.txt")
            key = f"{classname}/{file.removesuffix('.avi')}.jpg"
            images.append(_image(folder, key, label_of[action], classname, where))
        return images

    names = (f"{lists}/trainlist01.txt", f"{lists}/testlist01.txt")
    return Annotations(rows(names[0]), " and ".join(names), rows(names[1]))


_PARTS = {"train", "test"}


def read_class_tree(home: Path, info: DatasetInfo) -> Annotations:
    """Read ``<image dir>/<class>/file`` of a known set.

    Raises:
        DataError: no such folder, no classes, an empty class.
    """
    what = f"the image folder of {info.name}"
    images = find(home, info.image_dir, what, source=info.source)
    return _read_classes(CopyInfo(info.name, images, renames=info.renames, drop=info.drop))


def read_cifar_tree(home: Path, info: DatasetInfo) -> Annotations:
    """Read ``{train,test}/<class>/file``; the pickles hold no files that a split could name.

    Raises:
        DataError: another layout.
    """
    if not set(subfolders(home)) >= _PARTS:
        raise DataError(f"{info.name}: a split names image files, so {home} needs "
                        "{train,test}/<class>/<image>; the pickles of CIFAR are read as they are "
                        "and need no split")
    return read_plain_tree(home, info.name)


def read_plain_tree(images: Path, name: str) -> Annotations:
    """Read ``{train,val,test}/<class>/file`` or ``<class>/file`` of any set.

    Raises:
        DataError: no classes, an empty class, train without test, a tree of domains.
    """
    if not _PARTS & {n.lower() for n in subfolders(images)}:
        return _read_classes(CopyInfo(name, images))
    parts = read_folders(images, CopyInfo(name, images)).parts
    how = f"the part folders of {name}"
    return Annotations(parts["train"], how, parts["test"], parts["val"] or None)


def _read_classes(info: CopyInfo) -> Annotations:
    classes = class_folders(info.images, info.drop)
    refuse_domains(info.images, classes.values())
    items = tree_data(info.images, info.images, classes, 0, info)
    return Annotations(items, f"the class folders of {info.images}")


READERS: dict[str, Callable[[Path, DatasetInfo], Annotations]] = {
    "Caltech101": read_class_tree,
    "OxfordPets": read_pets,
    "StanfordCars": read_cars,
    "OxfordFlowers": read_flowers,
    "Food101": read_class_tree,
    "SUN397": read_sun,
    "DescribableTextures": read_class_tree,
    "EuroSAT": read_class_tree,
    "UCF101": read_ucf,
    "Cifar10": read_cifar_tree,
    "Cifar100": read_cifar_tree,
}
