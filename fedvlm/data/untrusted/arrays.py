"""Arrays from files of others: ``npy``, ``npz`` and pickles of arrays, without trust.

FedBN's lists are called ``.pkl`` and were read by ``numpy.load``, which takes all three. So
does this reader, by the first bytes.
"""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvlm.core.errors import DataError
from fedvlm.data.untrusted.pickles import loads_restricted, read_raw

_HEADERS = {(1, 0): "read_array_header_1_0", (2, 0): "read_array_header_2_0"}
_MAX_UNPACKED = 2**30  # bytes of an npz; the published lists take a few megabytes
_NPY, _ZIP = b"\x93NUMPY", b"PK\x03\x04"


def load_arrays(path: Path) -> Any:
    """Return what ``numpy.load(allow_pickle=True)`` would: arrays, read without trust.

    An ``npz`` gives the list of its arrays in the file's order.

    Raises:
        DataError: unreadable, broken, or more than plain data.
    """
    raw = read_raw(path)
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
