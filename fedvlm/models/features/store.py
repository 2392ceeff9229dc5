"""Image features on disk: exact, keyed by content, filled once and shared by methods and seeds.

Two files per (backbone digest, transform digest, numerics): the rows, one flat file that is mapped
into memory, and an SQLite index from (hash of the image's bytes, view) to a row's place and
checksum. A changed image, transform or backbone has another key, so nothing stale can be served.

A row is written before the index names it, so that a killed process leaves at most rows that no
index names, which the next writer covers. After a power cut the index may be ahead of the rows:
the checksum, taken of the very copy that is served, sends such rows back to the encoder.

Rows of numbers in one flat file, appended under the index's lock and read through a mapping.

A row that the index names never changes and the file never shrinks, so that a mapping stays valid
whatever other processes do. An advisory lock on the file says that it is in use.

The feature stores of a folder: what each holds, how large it is, and how to be rid of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import mmap
import os
import re
import sqlite3
import urllib.parse
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvlm.core.errors import DataError

try:
    import fcntl
except ImportError:  # no flock on this system: nothing tells that a store is in use
    fcntl = None  # type: ignore[assignment]

NUMPY: dict[torch.dtype, type[np.floating]] = {torch.float32: np.float32, torch.float64: np.float64}
Rows = NDArray[np.floating]


class RowFile:
    """Rows of ``width`` numbers, by place from 0.

    Args:
        path: the file; made where it is absent.
        width: numbers per row.
        dtype: float32 or float64.

    Raises:
        OSError: it cannot be opened for writing.
    """

    def __init__(self, path: Path, width: int, dtype: torch.dtype) -> None:
        self.path, self.width, self.torch_dtype = path, width, dtype
        self.dtype = np.dtype(NUMPY[dtype])
        self.row_bytes = width * self.dtype.itemsize
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
        out: Rows = torch.empty(len(places), self.width, dtype=self.torch_dtype).numpy()
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


SCHEMA = 2  # 1 kept the rows inside SQLite; those files have other names and are never opened
ENV = "FEDVLM_CACHE"
ROWS = ".rows"
_TIMEOUT_S = 120.0
_QUERY_KEYS = 4096  # places looked up at a time
_TRIES = 20
_TABLES = (
    "CREATE TABLE IF NOT EXISTS places (key TEXT NOT NULL, view INTEGER NOT NULL, "
    "place INTEGER NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (key, view)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
)
_SELECT = (
    "SELECT key, place, crc FROM places "
    "WHERE view = ? AND key IN (SELECT value FROM json_each(?))"
)
_PUT = "INSERT OR REPLACE INTO places VALUES (?, ?, ?, ?)"
_NEXT = "next"  # the place after the last row
log = logging.getLogger(__name__)


def default_dir() -> Path:
    """Return ``$FEDVLM_CACHE`` or ``~/.cache/fedvlm``, with ``features`` below it."""
    root = os.environ.get(ENV)
    return (Path(root).expanduser() if root else Path.home() / ".cache" / "fedvlm") / "features"


def store_path(folder: Path, *identity: str | int) -> Path:
    """Return the index file for an identity: every part of it changes the name."""
    digest = hashlib.sha256(json.dumps([SCHEMA, *identity]).encode()).hexdigest()
    return folder / f"{digest[:40]}.sqlite"


class FeatureStore:
    """Rows of ``width`` numbers of one type, keyed by (content key, view).

    Safe for several processes at once (SQLite's lock; the first writer of a key wins). Files that
    are damaged are renamed to ``*.corrupt-<n>`` and started anew; ``notes`` tells.

    Args:
        path: the index; the rows lie beside it, its folder is made.
        width: numbers per row.
        dtype: float32 or float64.
        about: what the rows are, for ``feature_list``; the first to open a store writes it.

    Raises:
        DataError: the folder or a file cannot be written.
    """

    def __init__(
        self, path: Path, width: int, dtype: torch.dtype = torch.float32,
        about: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.path, self.width, self.dtype = Path(path), width, dtype
        self.about = {"width": str(width), "dtype": str(dtype).removeprefix("torch.")}
        self.about |= about or {}
        self.notes: list[str] = []
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error
        self._open()

    def _open(self) -> None:
        """Open both files of one store: a clean-up or a renaming in between shows in the rows."""
        for _ in range(_TRIES):
            try:
                self._rows = RowFile(self.path.with_suffix(ROWS), self.width, self.dtype)
            except OSError as error:
                raise self._unwritable(error) from error
            try:
                self._db = self._connect()
            except sqlite3.OperationalError as error:
                self._rows.close()
                raise self._unwritable(error) from error
            except sqlite3.DatabaseError as error:
                self._set_aside(error)
                continue
            if self._rows.is_current():
                return
            self.close()
        raise self._unwritable(OSError("other processes remove it all the time"))

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=_TIMEOUT_S, isolation_level=None)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            for table in _TABLES:
                db.execute(table)
            if (found := db.execute("PRAGMA quick_check(1)").fetchone()) != ("ok",):
                raise sqlite3.DatabaseError(f"quick_check: {found}")
            if not db.execute("SELECT COUNT(*) FROM about").fetchone()[0]:
                facts = [*self.about.items(), (_NEXT, "0")]
                db.execute("BEGIN IMMEDIATE")
                db.executemany("INSERT OR IGNORE INTO about VALUES (?, ?)", facts)
                db.execute("COMMIT")
        except BaseException:
            db.close()
            raise
        return db

    def _unwritable(self, error: Exception) -> DataError:
        return DataError(
            f"cannot use the feature cache '{self.path}' ({error}): "
            f"set CACHE_DIR or ${ENV} to a folder that can be written"
        )

    def _set_aside(self, error: Exception) -> None:
        self._rows.close()
        count = len(list(self.path.parent.glob(f"{self.path.name}.corrupt-*")))
        aside = self.path.with_name(f"{self.path.name}.corrupt-{count + 1}")
        # Another process may have renamed it first: then there is nothing left to rename.
        with contextlib.suppress(FileNotFoundError):
            self.path.replace(aside)
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        self.path.with_suffix(ROWS).unlink(missing_ok=True)  # nothing without their index
        note = f"feature cache was damaged ({error}): set aside as {aside.name} and rebuilt"
        self.notes.append(note)
        log.warning(note)

    def find(self, keys: Iterable[str], view: int) -> tuple[dict[str, int], Tensor]:
        """Return the rows ``[m, width]`` that are stored and sound, and key -> number of its row.

        The rows are a copy, in the order of ``keys``.
        """
        wanted = list(dict.fromkeys(keys))
        try:
            return self._find(wanted, view)
        except sqlite3.OperationalError as error:
            raise self._unwritable(error) from error
        except sqlite3.DatabaseError as error:
            self._db.close()
            self._set_aside(error)
            self._open()
            return self._find(wanted, view)

    def _find(self, wanted: Sequence[str], view: int) -> tuple[dict[str, int], Tensor]:
        known: dict[str, tuple[int, int]] = {}
        for at in range(0, len(wanted), _QUERY_KEYS):
            part = json.dumps(wanted[at : at + _QUERY_KEYS])
            found = self._db.execute(_SELECT, (view, part))
            known |= {key: (place, crc) for key, place, crc in found}
        names = [key for key in wanted if key in known]
        places = np.array([known[key][0] for key in names], dtype=np.int64)
        rows, inside = self._rows.read(places)
        sums = (zlib.crc32(row) == known[key][1] for key, row in zip(names, rows, strict=True))
        sound = inside & np.fromiter(sums, bool, len(names))
        if not sound.all():
            names, rows = [k for k, ok in zip(names, sound, strict=True) if ok], rows[sound]
        return {key: i for i, key in enumerate(names)}, torch.from_numpy(rows)

    def get_many(self, keys: Iterable[str], view: int) -> dict[str, Tensor]:
        """Return key -> row [width] for those of ``keys`` that are stored and sound."""
        at, rows = self.find(keys, view)
        return {key: rows[i] for key, i in at.items()}

    def put_many(self, keys: Sequence[str], view: int, values: Tensor) -> None:
        """Store rows ``values`` [n, width] under ``keys``; rows already there and sound stay.

        Raises:
            DataError: the files cannot be written (read-only folder, full disk).
        """
        block: Rows = values.detach().cpu().to(self.dtype).contiguous().numpy()
        first = {key: i for i, key in reversed(list(enumerate(keys)))}
        try:
            self._db.execute("BEGIN IMMEDIATE")
            there, _ = self._find(list(first), view)
            new = [(key, i) for key, i in first.items() if key not in there]
            if new:
                self._append(new, view, block)
            self._db.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise self._unwritable(error) from error

    def _append(self, new: Sequence[tuple[str, int]], view: int, block: Rows) -> None:
        """Write the rows of (key, number in ``block``), then name them: within a transaction."""
        ask = "SELECT value FROM about WHERE name = ?"
        place = int(self._db.execute(ask, (_NEXT,)).fetchone()[0])
        self._rows.write(place, block[[i for _, i in new]])
        self._db.executemany(_PUT, [
            (key, view, place + n, zlib.crc32(block[i])) for n, (key, i) in enumerate(new)
        ])
        tell = "UPDATE about SET value = ? WHERE name = ?"
        self._db.execute(tell, (str(place + len(new)), _NEXT))

    def __len__(self) -> int:
        return int(self._db.execute("SELECT COUNT(*) FROM places").fetchone()[0])

    def close(self) -> None:
        """Close the files; the index's time is that of the last use."""
        self._db.close()
        with contextlib.suppress(OSError):  # only told by ``features --list``
            os.utime(self.path)
        self._rows.close()

    def __enter__(self) -> FeatureStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# Nothing else in the folder is ours, whatever CACHE_DIR names.
_NAME = re.compile(r"([0-9a-f]{40})(\.sqlite(-wal|-shm|\.corrupt-\d+)?|\.rows)")
OLDER, DAMAGED, LEFT = "of an older fedvlm, not read", "damaged", "left behind"


@dataclass(frozen=True)
class StoreInfo:
    """One store.

    Attributes:
        name: the digest that its files' names begin with, or the whole name of a damaged file.
        files: all its files.
        size: their bytes.
        rows: images times views; 0 where it cannot be read.
        used: last use, in seconds since 1970.
        state: why it is of no use to a run; empty for a sound one.
        about: backbone, weights, digest, transform, numerics, batch, width, dtype.
    """

    name: str
    files: tuple[Path, ...]
    size: int
    rows: int
    used: float
    state: str = ""
    about: dict[str, str] = field(default_factory=dict)


def list_stores(folder: Path) -> list[StoreInfo]:
    """Return the stores of ``folder``, the last used first; none where it does not exist."""
    groups: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if (match := _NAME.fullmatch(path.name)) and path.is_file():
            aside = ".corrupt-" in path.name
            groups.setdefault(path.name if aside else match[1], []).append(path)
    found = [info for name, files in groups.items() if (info := _info(name, files))]
    return sorted(found, key=lambda info: -info.used)


def remove_store(info: StoreInfo) -> bool:
    """Delete a store unless a living process has it open; return whether it was deleted.

    A process that wants it meanwhile waits, and starts a new one.

    Raises:
        DataError: the folder is read-only or another user's.
    """
    rows = [path for path in info.files if path.suffix == ROWS]
    try:
        if not rows:
            _unlink(info)
            return True
        with not_in_use(rows[0]) as free:
            if free:
                _unlink(info)
            return free
    except OSError as error:
        raise DataError(
            f"cannot delete the feature store {info.files[0]}: {error.strerror}; you need the "
            "right to write its folder"
        ) from error


def _unlink(info: StoreInfo) -> None:
    # The rows last: they carry the lock, and without an index they say nothing.
    for path in sorted(info.files, key=lambda path: path.suffix == ROWS):
        for suffix in ("", "-wal", "-shm") if path.suffix == ".sqlite" else ("",):
            path.with_name(path.name + suffix).unlink(missing_ok=True)


def _info(name: str, files: list[Path]) -> StoreInfo | None:
    try:
        stats = [path.stat() for path in files]
    except FileNotFoundError:  # another clean-up was faster
        return None
    size, used = sum(s.st_size for s in stats), max(s.st_mtime for s in stats)
    index = next((path for path in files if path.suffix == ".sqlite"), None)
    if index is None:
        state = DAMAGED if len(name) > 40 else LEFT
        return StoreInfo(name, tuple(files), size, 0, used, state)
    used = index.stat().st_mtime
    try:
        about, rows = _read(index)
    except sqlite3.OperationalError:  # no such table; or locked, where it is in use
        return StoreInfo(name, tuple(files), size, 0, used, OLDER)
    except sqlite3.DatabaseError:
        return StoreInfo(name, tuple(files), size, 0, used, DAMAGED)
    return StoreInfo(name, tuple(files), size, rows, used, "", about)


def _read(index: Path) -> tuple[dict[str, str], int]:
    # Without the right to write, SQLite opens no write-ahead log: rows that another user's run has
    # only there are not counted.
    mode = "mode=ro" if os.access(index.parent, os.W_OK) else "immutable=1"
    where = f"file:{urllib.parse.quote(str(index.absolute()))}?{mode}"
    with closing(sqlite3.connect(where, uri=True, timeout=10.0)) as db:
        about = dict(db.execute("SELECT name, value FROM about"))
        return about, int(db.execute("SELECT COUNT(*) FROM places").fetchone()[0])
