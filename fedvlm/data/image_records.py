"""What is known of image files: content hash and whether they decode, kept as JSON between runs.

A record holds for (path, size, time of modification, time of change); a changed file is read again.
The last of these no program can set, so that a file with other bytes, the same size and a restored
date is noticed too; ``verify`` reads all files whatever their times. Records are a cache: losing
them costs a pass over the images and changes no result.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL
from numpy.typing import NDArray
from yacs.config import CfgNode

from fedvlm.core import files
from fedvlm.core.errors import DataError, UnreadableError
from fedvlm.core.progress import Progress
from fedvlm.core.repository import records_dir
from fedvlm.data.datum import Datum
from fedvlm.data.locate import other_spelling

_FORMAT = f"fedvlm-images/2 pillow {PIL.__version__}"  # another Pillow may decode other files
_STREAM = re.compile(r"\s*<_io\.BytesIO[^>]*>")  # Pillow names the buffer's address
_WORKERS = min(8, os.cpu_count() or 1)


class ImageRecord(NamedTuple):
    """One file as it was when read: ``error`` is empty where it decodes, None where not tried."""

    size: int
    mtime_ns: int
    ctime_ns: int
    sha256: str
    error: str | None

    @property
    def stamp(self) -> tuple[int, int, int]:
        """What ``os.stat`` said of the file."""
        return self.size, self.mtime_ns, self.ctime_ns


class ImageRecords:
    """Records by absolute path.

    Args:
        file: the JSON file behind them; None keeps them in memory only.
    """

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self._records: dict[str, ImageRecord] = _load(file) if file else {}
        self._changed = False
        self.progress: Progress | None = None  # called with (what, done, of) while files are read

    @classmethod
    def of_folder(cls, folder: Path, kept_in: Path) -> ImageRecords:
        """Return the records of one data set's folder, kept as a file in ``kept_in``."""
        name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
        return cls(kept_in / f"{name}.json")

    def content_key(self, sample: Datum) -> str:
        """Return the sha256 of an image's bytes (file, array, or as a feature pack says).

        Raises:
            DataError: the file, or the image in memory, cannot be read.
        """
        if sample.packed is not None:
            return sample.packed.sha256
        if isinstance(sample.array, np.ndarray):
            return array_key(sample.array)
        if sample.array is not None:
            return sample.array.key
        record = self._current(sample.impath, decoded=False)
        if record is None:
            record = _read(sample.impath, None)
            self._put(sample.impath, record)
        if not record.sha256:
            raise UnreadableError(f"cannot read the image {sample.impath}: {record.error}")
        return record.sha256

    def find_broken(
        self, samples: Sequence[Datum], check: Callable[[bytes], None]
    ) -> dict[int, str]:
        """Return position and reason of each image that does not decode.

        Args:
            check: raises on bytes that do not decode.

        Raises:
            DataError: files that do not exist, or cannot be reached: the set is incomplete, which
                no policy mends.
        """
        files = [i for i, s in enumerate(samples) if _is_file(s)]
        self.refuse_missing([samples[i].impath for i in files])
        todo = {samples[i].impath for i in files if not self._current(samples[i].impath)}
        self._read_all(sorted(todo), check, "checking images")
        errors = {i: self._records[samples[i].impath].error for i in files}
        errors |= {i: s.packed.fault for i, s in enumerate(samples) if s.packed is not None}
        return {i: error for i, error in errors.items() if error}

    def verify(self, samples: Sequence[Datum], check: Callable[[bytes], None]) -> list[str]:
        """Read every file again; return those with other bytes though their times are the same.

        Raises:
            DataError: files that do not exist.
        """
        paths = sorted({s.impath for s in samples if _is_file(s)})
        self.refuse_missing(paths)
        before = {path: self._records.get(path) for path in paths}
        self._read_all(paths, check, "verifying images")
        return [
            path for path, old in before.items()
            if old is not None and old.stamp == (new := self._records[path]).stamp
            and old.sha256 != new.sha256
        ]  # fmt: skip

    def _read_all(self, todo: list[str], check: Callable[[bytes], None], what: str) -> None:
        try:
            with ThreadPoolExecutor(_WORKERS) as pool:  # Pillow decodes outside Python's lock
                records = pool.map(lambda path: _read(path, check, self._records.get(path)), todo)
                for done, (path, record) in enumerate(zip(todo, records, strict=True), 1):
                    self._put(path, record)
                    if self.progress is not None:
                        self.progress(what, done, len(todo))
        finally:  # an interrupted pass over a large set goes on where it was
            self.save()

    def save(self) -> None:
        """Write the records if any changed, whole or not at all; others' are kept."""
        if not self._changed or self.file is None:
            return
        records = _load(self.file) | self._records  # another process may have added some
        rows = {path: list(record) for path, record in sorted(records.items())}
        # Only a cache: a full disk or a read-only home must not end the run.
        with suppress(OSError, DataError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            files.write_text(self.file, json.dumps({"format": _FORMAT, "images": rows}), True)
            self._changed = False

    def _put(self, path: str, record: ImageRecord) -> None:
        self._records[path] = record
        self._changed = True

    def _current(self, path: str, decoded: bool = True) -> ImageRecord | None:
        """Return the record of a file that has not changed since; ``decoded``: and was decoded."""
        record = self._records.get(path)
        if record is None or (decoded and record.error is None):
            return None
        try:
            now = os.stat(path)
        except OSError:
            return None
        return record if _stamp(now) == record.stamp else None

    @staticmethod
    def refuse_missing(paths: Sequence[str]) -> None:
        """Refuse files that are not there.

        Raises:
            DataError: says how many, and the first.
        """
        absent = [p for p in paths if not os.path.exists(p)]
        if closed := [p for p in absent if _may_not_enter(p)]:
            raise DataError(
                f"{len(closed)} of {len(paths)} images that the split names cannot be reached "
                f"(first: {closed[0]}: Permission denied); you need the right to enter all the "
                "folders above them"
            )
        if absent:
            raise DataError(
                f"{len(absent)} of {len(paths)} images that the split names do not exist "
                f"(first: {absent[0]}); {other_spelling(absent[0])}the image folder is "
                "incomplete or not the one the split was made for"
            )


def array_key(array: NDArray[np.uint8]) -> str:
    """Return the content key of an image that is no file: the sha256 of its shape and bytes."""
    shape = repr(array.shape).encode()
    return hashlib.sha256(shape + np.ascontiguousarray(array).tobytes()).hexdigest()


def records_of(samples: Sequence[Datum], cfg: CfgNode) -> ImageRecords:
    """Return the records of the folder that holds all image files of a set."""
    folders = {os.path.dirname(d.impath) for d in samples if _is_file(d)}
    if not folders:
        return ImageRecords(None)
    return ImageRecords.of_folder(Path(os.path.commonpath(folders)), records_dir(cfg))


def _is_file(sample: Datum) -> bool:
    """Tell whether an image is a file of its own."""
    return sample.array is None and sample.packed is None


def _may_not_enter(path: str) -> bool:
    """Tell whether a folder above ``path`` is closed to this user, so that none knows of it."""
    try:
        os.stat(path)
    except PermissionError:
        return True
    except (OSError, ValueError):
        pass
    return False


def _stamp(stat: os.stat_result) -> tuple[int, int, int]:
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _read(
    path: str, check: Callable[[bytes], None] | None, last: ImageRecord | None = None
) -> ImageRecord:
    try:
        before = os.stat(path)
        raw = Path(path).read_bytes()
    except OSError as error:
        return ImageRecord(-1, -1, -1, "", f"{error.strerror}")
    digest = hashlib.sha256(raw).hexdigest()
    fault: str | None = None
    if last is not None and last.sha256 == digest and last.error is not None:
        fault = last.error  # only its times are new
    elif check is not None:
        fault = "the file is empty" if not raw else ""
        if raw:
            try:
                check(raw)
            except MemoryError as error:  # of this machine, not of the file: never recorded
                raise DataError(f"not enough memory to decode the image {path}") from error
            except Exception as error:  # Pillow raises many kinds on broken files
                fault = describe_failure(error)
    return ImageRecord(*_stamp(before), digest, fault)


def describe_failure(error: Exception) -> str:
    """Return Pillow's error for a broken image, on one line."""
    return " ".join(_STREAM.sub("", str(error)).split()) or type(error).__name__


def _load(file: Path) -> dict[str, ImageRecord]:
    """Return the records of a file; none where it is absent, damaged or of another version."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            return {}
        return {path: ImageRecord(*row) for path, row in content["images"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
