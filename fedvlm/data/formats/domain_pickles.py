"""FedBN's lists of domains, ``<domain>_{train,test}.pkl``: two arrays, of paths and classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedvlm.core.errors import DataError
from fedvlm.data.datum import DatasetBase
from fedvlm.data.formats.rows import ImageRow, build_lists, image_path
from fedvlm.data.layouts import CopyInfo
from fedvlm.data.untrusted.arrays import load_arrays

READER = "domain_pickles"


def read_domain_pickles(folder: Path, info: CopyInfo) -> DatasetBase:
    """Read ``<domain>_{train,test}.pkl``; there is no validation list.

    Raises:
        DataError: a file that is not two lists of the same length, or rows that do not agree.
    """
    rows: list[ImageRow] = []
    anchors = tuple(dict.fromkeys((folder.name, info.usual_folder, info.name)))
    for domain, spelled in zip(info.domains, info.folders, strict=True):
        for part in ("train", "test"):
            path = folder / f"{spelled}_{part}.pkl"
            for i, (name, label) in enumerate(_two_lists(load_arrays(path), path)):
                where = f"{path}[{i}]"
                key = image_path(name, anchors, spelled, where)
                target, number = (label, None) if isinstance(label, str) else (
                    key.split("/")[-2], label)
                rows.append(ImageRow(key, target, number, domain, part, where))
    if len({type(row.label) for row in rows}) > 1:
        raise DataError(f"{folder}: some of the lists give class names and some give numbers")
    return build_lists(rows, info)


def _two_lists(content: Any, path: Path) -> list[tuple[str, str | int]]:
    """Return (path, label) pairs, checked."""
    kinds = list | tuple | np.ndarray
    rows = list(content) if isinstance(content, kinds) else []
    if len(rows) != 2 or not all(isinstance(row, kinds) for row in rows):
        raise DataError(f"{path}: expected two lists, of paths and of labels, as FedBN wrote them")
    paths, labels = (row.tolist() if isinstance(row, np.ndarray) else list(row) for row in rows)
    if len(paths) != len(labels):
        raise DataError(f"{path}: {len(paths)} paths but {len(labels)} labels")
    if not paths or not all(isinstance(name, str) for name in paths):
        raise DataError(f"{path}: the first list must hold the paths of images")
    texts = all(isinstance(label, str) and label.strip() for label in labels)
    if not texts and not all(type(label) is int and label >= 0 for label in labels):
        raise DataError(f"{path}: the labels must be class names or whole numbers from 0")
    return list(zip(map(str, paths), labels, strict=True))
