"""CIFAR-10 and CIFAR-100: class folders of images, or torchvision's pickles read without trust."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvlm.core.errors import DataError
from fedvlm.data.datum import PARTS, DatasetBase, Datum
from fedvlm.data.formats.folders import read_folders
from fedvlm.data.layouts import CopyInfo
from fedvlm.data.untrusted.pickles import load_restricted

READER = "cifar"
_SIDE = 32
_PICKLES: tuple[tuple[str, dict[str, tuple[str, ...]], tuple[str, str], tuple[str, str]], ...] = (
    (
        "cifar-10-batches-py",
        {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
        ("batches.meta", "label_names"),
        ("data", "labels"),
    ),
    (
        "cifar-100-python",
        {"train": ("train",), "test": ("test",)},
        ("meta", "fine_label_names"),
        ("data", "fine_labels"),
    ),
)


def read_cifar(folder: Path, info: CopyInfo) -> DatasetBase:
    """Read a CIFAR folder in whichever layout it has; the layout used is in the notes.

    Tried in order: ``{train,test}/<class>/file``, ``cifar-10-batches-py``, ``cifar-100-python``
    (below the folder, or the folder itself).

    Raises:
        DataError: no known layout, or a file that is not what it should be.
    """
    if (folder / "train").is_dir():
        data = read_folders(folder, CopyInfo(info.name, folder))
        data.notes.append(f"{folder.name}: layout class folders")
        return data
    for name, files, meta, keys in _PICKLES:
        for place in (folder / name, folder):
            if (place / meta[0]).is_file():
                return _read_pickles(place, files, meta, keys)
    layouts = "train/<class>, " + ", ".join(row[0] for row in _PICKLES)
    raise DataError(f"{folder} has no known layout of CIFAR ({layouts})")


def _read_pickles(
    folder: Path,
    files: dict[str, tuple[str, ...]],
    meta: tuple[str, str],
    keys: tuple[str, str],
) -> DatasetBase:
    names = _field(load_restricted(folder / meta[0]), meta[1], folder / meta[0])
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise DataError(f"{folder / meta[0]}: '{meta[1]}' must be a list of names")
    lists: dict[str, list[Datum]] = {part: [] for part in PARTS}
    for part, batches in files.items():
        for batch in batches:
            path = folder / batch
            images, labels = _images(load_restricted(path), keys, path, len(names))
            lists[part] += [
                Datum(str(path), label, 0, names[label], f"{folder.name}/{batch}#{row}", image)
                for row, (image, label) in enumerate(zip(images, labels, strict=True))
            ]
    return DatasetBase.of(lists, [], [f"layout: {folder.name} pickles"])


def _images(
    content: dict[str, Any], keys: tuple[str, str], path: Path, classes: int
) -> tuple[NDArray[np.uint8], list[int]]:
    """Return images uint8 ``[n, 32, 32, 3]`` and labels."""
    data, labels = _field(content, keys[0], path), _field(content, keys[1], path)
    right = isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 2
    if not right or data.shape[1] != 3 * _SIDE * _SIDE:
        raise DataError(f"{path}: '{keys[0]}' must be a uint8 array [n, {3 * _SIDE * _SIDE}]")
    if not isinstance(labels, list) or len(labels) != len(data):
        raise DataError(f"{path}: '{keys[1]}' must be a list of {len(data)} labels")
    if not all(isinstance(v, int) and 0 <= v < classes for v in labels):
        raise DataError(f"{path}: '{keys[1]}' must hold whole numbers from 0 to {classes - 1}")
    images = data.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), labels


def _field(content: Any, key: str, path: Path) -> Any:
    if not isinstance(content, dict) or key not in content:
        raise DataError(f"{path}: no '{key}' in it; is this a file of CIFAR?")
    return content[key]
