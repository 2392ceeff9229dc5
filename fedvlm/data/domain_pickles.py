"""FedBN's lists: two arrays, paths and class names, as a pickle or as numpy's own file.

The published files are called ``.pkl`` and were read by ``numpy.load``, which takes pickles,
``npy`` and ``npz`` alike. So does this reader, by the first bytes, and always without trust.
"""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvlm.data.domain_rows import Row, below, tree_of_rows
from fedvlm.data.facts import Facts
from fedvlm.data.pickles import loads_restricted
from fedvlm.data.readers import Tree
from fedvlm.errors import DataError

_NPY, _ZIP = b"\x93NUMPY", b"PK\x03\x04"
_HEADERS = {(1, 0): "read_array_header_1_0", (2, 0): "read_array_header_2_0"}
_MAX_UNPACKED = 2**30  # bytes of an npz; the published lists take a few megabytes


def read_pickles(folder: Path, facts: Facts, *, spelled: tuple[str, ...] = ()) -> Tree:
    """Read ``<domain>_{train,test}.pkl``; there is no validation list.

    Args:
        spelled: the domains as the files spell them, in the order of the facts; empty for theirs.

    Raises:
        DataError: a file that is not two lists of the same length, or rows that do not agree.
    """
    rows: list[Row] = []
    anchors = tuple(dict.fromkeys((folder.name, facts.folder, facts.name)))
    for number, domain in enumerate(spelled or tuple(facts.domains)):
        for part in ("train", "test"):
            path = folder / f"{domain}_{part}.pkl"
            for i, (name, label) in enumerate(_two_lists(load_arrays(path), path)):
                where = f"{path}[{i}]"
                key = below(name, anchors, domain, where)
                classname = label if isinstance(label, str) else key.split("/")[-2]
                given = None if isinstance(label, str) else label
                rows.append(Row(key, classname, given, number, part, where))
    kinds = {type(row.label) for row in rows}
    if len(kinds) > 1:
        raise DataError(f"{folder}: some of the lists give class names and some give numbers")
    return tree_of_rows(rows, folder, facts, [])


def load_arrays(path: Path) -> Any:
    """Return what ``numpy.load(allow_pickle=True)`` would: arrays, read without trust.

    An ``npz`` gives the list of its arrays in the file's order.

    Raises:
        DataError: unreadable, broken, or more than plain data.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    if raw.startswith(_NPY):
        return _npy(raw, str(path))
    if raw.startswith(_ZIP):
        return _npz(raw, path)
    return loads_restricted(raw, str(path))


def _npy(raw: bytes, where: str) -> NDArray[Any]:
    stream = io.BytesIO(raw)
    try:
        version = np.lib.format.read_magic(stream)
        shape, columns, dtype = getattr(np.lib.format, _HEADERS[version])(stream)
        count = math.prod(shape)
    except Exception as error:  # a crafted header can raise anything
        raise DataError(f"{where} is not an array file: {error}") from error
    rest = raw[stream.tell() :]
    if dtype.kind == "O" and dtype.names is None:
        array = loads_restricted(rest, where)
    elif dtype.kind not in "biufSU" or len(rest) != count * dtype.itemsize or not len(rest):
        raise DataError(f"{where}: an array of shape {shape} and type {dtype} has other content")
    else:
        array = np.frombuffer(rest, dtype)
    if not isinstance(array, np.ndarray) or array.size != count or not count:
        raise DataError(f"{where}: the array is not of the shape {shape} that the file states")
    return array.reshape(shape, order="F" if columns and dtype.kind != "O" else "C")


def _npz(raw: bytes, path: Path) -> list[NDArray[Any]]:
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > _MAX_UNPACKED:
                raise DataError(f"{path} unpacks to more than {_MAX_UNPACKED >> 20} MiB")
            # zipfile reads no more than the size that the entry states
            contents = [(entry.filename, archive.read(entry)) for entry in entries]
    except DataError:
        raise
    except Exception as error:  # a crafted archive can raise anything
        raise DataError(f"{path} is not an archive of arrays: {error}") from error
    return [_npy(content, f"{path}: {name}") for name, content in contents]


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
    named = all(isinstance(label, str) and label.strip() for label in labels)
    if not named and not all(type(label) is int and label >= 0 for label in labels):
        raise DataError(f"{path}: the labels must be class names or whole numbers from 0")
    return list(zip(map(str, paths), labels, strict=True))
