"""Rows of numbers in one flat file, appended under the index's lock and read through a mapping.

A row that the index names never changes and the file never shrinks, so that a mapping stays valid
whatever other processes do. An advisory lock on the file says that it is in use.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

try:
    import fcntl
except ImportError:  # no flock on this system: nothing tells that a store is in use
    fcntl = None  # type: ignore[assignment]
# NumPy has no bfloat16: its bits go as integers.
NUMPY: dict[torch.dtype, type[np.floating] | type[np.int16]] = {
    torch.float32: np.float32, torch.float64: np.float64, torch.bfloat16: np.int16,
}
Rows = NDArray[np.floating] | NDArray[np.int16]


def as_rows(values: Tensor) -> Rows:
    """Return a tensor of the host as an array over the same memory, bfloat16 as int16."""
    values = values.contiguous()
    return values.view(torch.int16).numpy() if values.dtype is torch.bfloat16 else values.numpy()


def as_tensor(rows: Rows, dtype: torch.dtype) -> Tensor:
    """Return an array of ``as_rows`` as a tensor of ``dtype`` over the same memory."""
    return torch.from_numpy(rows).view(dtype)


class RowFile:
    """Rows of ``width`` numbers, by place from 0.

    Args:
        path: the file; made where it is absent.
        width: numbers per row.
        dtype: float32, float64 or bfloat16.

    Attributes:
        writable: False where the file is there and may only be read.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, width: int, dtype: torch.dtype) -> None:
        self.path, self.width, self.torch_dtype = path, width, dtype
        self.dtype = np.dtype(NUMPY[dtype])
        self.row_bytes = width * self.dtype.itemsize
        self.writable = True
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM) or not path.is_file():
                raise
            self._handle, self.writable = os.open(path, os.O_RDONLY | os.O_CLOEXEC), False
        if fcntl is not None:
            # Waits for a clean-up at work. Some network folders know no locks: theirs to clean.
            with contextlib.suppress(OSError):
                fcntl.flock(self._handle, fcntl.LOCK_SH)

    def is_current(self) -> bool:
        """Tell whether the path still names this file (a clean-up removes, damage renames)."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._handle))
        except FileNotFoundError:
            return False

    def read(self, places: NDArray[np.int64]) -> tuple[Rows, NDArray[np.bool_]]:
        """Return a copy of rows ``[n, width]``, and which of them lie within the file.

        What does not lie within it is undefined.
        """
        count = os.fstat(self._handle).st_size // self.row_bytes
        inside = (places >= 0) & (places < count)
        # Memory as torch aligns it: cold and warm runs compute on the same layout.
        out = as_rows(torch.empty(len(places), self.width, dtype=self.torch_dtype))
        if not inside.any():
            return out, inside
        size = count * self.row_bytes
        with mmap.mmap(self._handle, size, access=mmap.ACCESS_READ) as mapped:
            every = np.frombuffer(mapped, self.dtype).reshape(count, self.width)
            every.take(places, axis=0, out=out, mode="clip")
            del every  # a mapping that is still seen cannot be closed
        return out, inside

    def write(self, place: int, rows: Rows) -> None:
        """Write rows ``[n, width]`` from ``place`` on.

        Raises:
            OSError: the disk is full, or the folder cannot be written.
        """
        raw, at = memoryview(np.ascontiguousarray(rows, self.dtype)).cast("B"), 0
        while at < len(raw):  # a nearly full disk takes a part first
            at += os.pwrite(self._handle, raw[at:], place * self.row_bytes + at)

    def close(self) -> None:
        """Close the file and give the lock back; twice is harmless."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


@contextlib.contextmanager
def not_in_use(path: Path) -> Iterator[bool]:
    """Yield True with nobody else in the file, and none let in meanwhile; False if it is in use.

    A file that is absent is in nobody's use.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        free = True
        if fcntl is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                free = False
            except OSError:  # a folder without locks: as ``RowFile``
                pass
        yield free
    finally:
        os.close(handle)
