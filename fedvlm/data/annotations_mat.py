"""Annotations in MATLAB files: Oxford Flowers and Stanford Cars (scipy reads them, only here)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedvlm.data.annotations_base import Annotated, labelled
from fedvlm.data.datum import Datum
from fedvlm.data.facts import Facts
from fedvlm.data.locate import find
from fedvlm.data.split_file import read_json
from fedvlm.errors import DataError


def read_flowers(home: Path, facts: Facts) -> Annotated:
    """Read ``imagelabels.mat`` (the label from 1 of each image) and ``cat_to_name.json``.

    ``labels[0, i]`` is of ``image_%05d.jpg`` with number i + 1. The names are CoOp's file: the set
    itself has numbers only.

    Raises:
        DataError: a file is missing or malformed.
    """
    what = f"{facts.name}: cat_to_name.json (the class names, a file of CoOp)"
    names = read_json(find(home, "cat_to_name.json", what, source=facts.source, file=True))
    if not isinstance(names, dict) or not all(isinstance(v, str) for v in names.values()):
        raise DataError(f"{home}/cat_to_name.json: an object of label to name is wanted")
    images, found = home / facts.image_dir, []
    path, labels = _field(home, "imagelabels.mat", "labels", facts)
    for i, value in enumerate(labels.ravel().tolist()):
        if str(value) not in names:
            raise DataError(f"{path}: label {value} has no name in cat_to_name.json")
        key = f"image_{i + 1:05d}.jpg"
        found.append(labelled(images, key, int(value) - 1, names[str(value)], str(path)))
    return Annotated(found, "imagelabels.mat")


def car_name(name: str) -> str:
    """Return a car's name with the year first: ``2012 Audi TTS Coupe``."""
    rest, _, year = name.strip().rpartition(" ")
    return f"{year} {rest}" if rest else year


def read_cars(home: Path, facts: Facts) -> Annotated:
    """Read ``devkit/cars_{meta,train_annos}.mat`` and ``cars_test_annos_withlabels.mat``.

    Raises:
        DataError: a file is missing or malformed.
    """
    meta, names = _field(home, "devkit/cars_meta.mat", "class_names", facts)
    classes = [car_name(_text(name, meta)) for name in names.ravel()]

    def rows(file: str, folder: str) -> list[Datum]:
        path, table = _field(home, file, "annotations", facts)
        found = []
        if not {"fname", "class"} <= set(table.dtype.names or ()):
            raise DataError(f"{path}: 'annotations' lacks fname or class; the test file must be "
                            "the one with labels")
        for row in table.ravel():
            label, name = int(row["class"].ravel()[0]) - 1, _text(row["fname"], path)
            if not 0 <= label < len(classes):
                raise DataError(f"{path}: label {label + 1} of {name} has no name in cars_meta.mat")
            key = f"{folder}/{name.rpartition('/')[2]}"
            found.append(labelled(home, key, label, classes[label], str(path)))
        return found

    train, test = "devkit/cars_train_annos.mat", "cars_test_annos_withlabels.mat"
    return Annotated(rows(train, "cars_train"), f"{train} and {test}", rows(test, "cars_test"))


def _field(home: Path, file: str, field: str, facts: Facts) -> tuple[Path, Any]:
    """Return a MATLAB file's path and one array of it."""
    from scipy.io import loadmat  # of scikit-learn's own requirements; needed only here

    path = find(home, file, f"{facts.name}: {file}", source=facts.source, file=True)
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
