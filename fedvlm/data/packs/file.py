"""The container of a feature pack: one safetensors file, its digest, its tensors as mapped arrays.

The file is what ``safetensors`` reads, with two texts in its metadata: what the pack is (JSON) and
the sha256 of the whole file, its own 64 digits taken as zeros. The reader here is stricter than the
format: bounded header, known types, tensors one after the other without a gap. It needs no PyTorch.

Opening reads the file once, to hash it (0.4 to 2 GB/s; a process does it once per file), so that a
cut file or a flipped bit is noticed before a number is served. After that rows come out of a
mapping: only what a run uses is in memory.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedvlm.core import files
from fedvlm.core.errors import DataError
from fedvlm.data.locate import PACK_MARK

PACK_FORMAT, GROUPED_FORMAT = "fedvlm-pack/1", "fedvlm-pack/2"  # the second has groups
_DIGEST = "sha256"  # key of the metadata, beside PACK_MARK
MAX_HEADER = 64 << 20  # bytes; that of 20,000 class names takes one
_BLOCK = 1 << 22
_ZEROS = b"0" * 64
_TYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"), "F64": np.dtype("<f8"), "I64": np.dtype("<i8"), "U8": np.dtype("u1"),
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
Array = NDArray[Any]
Tensor = tuple[str, np.dtype[Any], tuple[int, ...]]  # name, type and shape
_REMEDY = "copy it again, or make it again with fedvlm features --pack"


@dataclass(frozen=True)
class Slot:
    """Where a tensor lies.

    Attributes:
        dtype: of its numbers.
        shape: of the tensor.
        start: of its first byte in the file.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """Its bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class PackFile:
    """A file whose header is sound.

    Attributes:
        path: of the file.
        about: the JSON object of the metadata, as it is there: not checked.
        digest: the sha256 that the header states.
        slots: tensors by name.
        place: of the digest's digits in the file.
        stamp: of the file whose header it is: what is mapped must be what was hashed.
    """

    path: Path
    about: dict[str, Any]
    digest: str
    slots: Mapping[str, Slot]
    place: int
    stamp: tuple[int, ...]

    def array(self, name: str) -> Array:
        """Return a tensor, mapped: its pages are read as they are used.

        Raises:
            DataError: the file is not there any more, is another one or was written to.
        """
        slot = self.slots[name]
        if not slot.size:
            return np.zeros(slot.shape, slot.dtype)
        try:
            with open(self.path, "rb") as file:
                self._check_stamp(file)
                return np.memmap(file, slot.dtype, "r", slot.start, slot.shape)
        except OSError as error:
            raise read_error(self.path, error) from error

    def _check_stamp(self, file: BinaryIO) -> None:
        if stamp_of(os.fstat(file.fileno())) != self.stamp:
            raise DataError(
                f"the feature pack {self.path} was changed or replaced while it was in use; run "
                "the same command again to read the new one"
            )

    def verify(self) -> None:
        """Hash the file and compare.

        Raises:
            DataError: it is not the file that was written, or cannot be read.
        """
        try:
            with open(self.path, "rb") as file:
                there = _hash(file, self.place)
                self._check_stamp(file)
        except OSError as error:
            raise read_error(self.path, error) from error
        if there != self.digest:
            raise DataError(
                f"the feature pack {self.path} is damaged: its content has sha256 {there[:12]}, "
                f"its header says {self.digest[:12]}; {_REMEDY}"
            )


def stamp_of(stat: os.stat_result) -> tuple[int, ...]:
    """Return what differs where a file is another one, or was written to."""
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def read_error(path: Path, error: OSError) -> DataError:
    """Return the error of a file that the system does not give."""
    return DataError(f"cannot read the feature pack {path}: {error.strerror or error}")


def read_container(path: Path) -> PackFile:
    """Return a file's header, checked; the tensors are not read.

    Raises:
        DataError: it cannot be read, is no safetensors file of a pack, or was cut.
    """
    try:
        with open(path, "rb") as file:
            stat = os.fstat(file.fileno())
            size = stat.st_size
            first = file.read(8)
            (length,) = struct.unpack("<Q", first) if len(first) == 8 else (0,)
            if not 2 <= length <= min(MAX_HEADER, size - 8):
                raise _wrong(path, "it does not begin as a safetensors file of a pack does")
            text = file.read(length)
    except OSError as error:
        raise read_error(path, error) from error
    header = _parsed(path, text)
    about, digest = _metadata(path, header.pop("__metadata__", None))
    slots = _slots(path, header, 8 + length, size)
    at = text.find(digest.encode())
    if at < 0 or text.count(digest.encode()) != 1:
        raise _wrong(path, "its header does not state its digest once")
    return PackFile(path, about, digest, slots, 8 + at, stamp_of(stat))


def _wrong(path: Path, why: str) -> DataError:
    return DataError(f"{path} is not a feature pack: {why}; {_REMEDY}")


def _parsed(path: Path, text: bytes) -> dict[str, Any]:
    """Return the header's object."""

    def once(rows: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(rows)) < len(rows):
            raise ValueError("a name twice")
        return dict(rows)

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise _wrong(path, "its header is no JSON") from error
    if not isinstance(header, dict):
        raise _wrong(path, "its header is no JSON object")
    return header


def _metadata(path: Path, texts: Any) -> tuple[dict[str, Any], str]:
    """Return the pack's description and the digest that it states."""
    texts = texts if isinstance(texts, dict) else {}
    about, digest = texts.get(PACK_MARK), texts.get(_DIGEST)
    if not isinstance(about, str) or not isinstance(digest, str):
        raise _wrong(path, "its header does not describe a pack")
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef") or digest in about:
        raise _wrong(path, "its digest is none")
    content = _parsed(path, about.encode("utf-8", errors="surrogatepass"))
    if content.get("format") not in (PACK_FORMAT, GROUPED_FORMAT):
        said = str(content.get("format"))[:40]
        raise DataError(
            f"the feature pack {path} has the format {ascii(said)}, and this fedvlm reads "
            f"{PACK_FORMAT} and {GROUPED_FORMAT}: make it again with this one, or run it with the "
            "one that wrote it"
        )
    return content, digest


def _slots(path: Path, header: dict[str, Any], start: int, size: int) -> dict[str, Slot]:
    """Return where the tensors lie: one after the other, to the end of the file."""
    slots: dict[str, Slot] = {}
    at = start
    for name, row in header.items():
        row = row if isinstance(row, dict) else {}
        shape, ends = _whole(row.get("shape")), _whole(row.get("data_offsets"))
        dtype = _TYPES.get(str(row.get("dtype")))
        if dtype is None or shape is None or ends is None or len(ends) != 2:
            raise _wrong(path, f"its tensor {ascii(name[:40])} is not described")
        slot = Slot(dtype, shape, start + ends[0])
        if slot.start != at or start + ends[1] != at + slot.size:
            raise _wrong(path, f"its tensor {ascii(name[:40])} does not lie where it should")
        slots[name] = slot
        at += slot.size
    if at != size:
        raise DataError(
            f"the feature pack {path} has {size:,} bytes where its header says {at:,}: "
            f"{'it was cut' if size < at else 'something was added'}; {_REMEDY}"
        )
    return slots


def _whole(values: Any) -> tuple[int, ...] | None:
    """Return a short list of whole numbers that a size can be; None of anything else."""
    if not isinstance(values, list) or len(values) > 4:
        return None
    fine = all(type(v) is int and 0 <= v < 1 << 48 for v in values)
    return tuple(values) if fine else None


def _hash(file: BinaryIO, place: int) -> str:
    """Return the sha256 of a file with the 64 bytes at ``place`` as zeros."""
    digest = hashlib.sha256()
    file.seek(0)
    digest.update(file.read(place))
    file.seek(place + len(_ZEROS))
    digest.update(_ZEROS)
    while block := file.read(_BLOCK):
        digest.update(block)
    return digest.hexdigest()


class Writer:
    """Writes a pack row by row, in the order of its tensors; see ``write_container``."""

    def __init__(self, file: BinaryIO, about: str, slots: Mapping[str, Slot]) -> None:
        rows = {
            name: {"dtype": _NAMES[s.dtype], "shape": s.shape,
                   "data_offsets": [s.start, s.start + s.size]}
            for name, s in slots.items()
        }
        texts = {"__metadata__": {PACK_MARK: about, _DIGEST: _ZEROS.decode()}}
        text = json.dumps(texts | rows, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self.file, self.left = file, sum(s.size for s in slots.values())
        self.place = 8 + text.rindex(_ZEROS)
        file.write(struct.pack("<Q", len(text)) + text)

    def add(self, values: Array) -> None:
        """Append numbers of the type of the tensor that is being written."""
        block = np.ascontiguousarray(values)
        self.left -= block.nbytes
        self.file.write(memoryview(block).cast("B") if block.nbytes else b"")

    def finish(self) -> str:
        """State the digest; return it.

        Raises:
            RuntimeError: more or fewer numbers came than the header says.
        """
        if self.left:
            raise RuntimeError(f"{self.left} bytes of the pack were not written")
        self.file.flush()
        digest = _hash(self.file, self.place)
        self.file.seek(self.place)
        self.file.write(digest.encode())
        self.file.flush()
        os.fsync(self.file.fileno())
        return digest


@contextmanager
def write_container(
    path: Path, about: Mapping[str, Any], tensors: Sequence[Tensor]
) -> Iterator[Writer]:
    """Give a writer; the file is at ``path`` when the block ends, whole, or not at all.

    Args:
        about: plain values; ``format`` is added where it does not say one.
        tensors: name, type and shape of each, in the order in which their numbers come.

    Raises:
        DataError: it cannot be written.
    """
    slots, at = {}, 0
    for name, dtype, shape in tensors:
        slots[name] = Slot(np.dtype(dtype).newbyteorder("<"), shape, at)
        at += slots[name].size
    text = json.dumps({"format": PACK_FORMAT} | files.json_ready(dict(about)), sort_keys=True)
    temporary = files.temporary_path(path)
    files.remove_leftovers(path.parent, path.name)
    with files.explain_errors(path):
        try:
            with open(temporary, "wb+") as file:
                writer = Writer(file, text, slots)
                yield writer
                writer.finish()
            os.replace(temporary, path)
            files.sync_folder(path.parent)
        except BaseException:  # Ctrl-C too
            with suppress(OSError):
                temporary.unlink()
            raise

