"""Image features on disk: exact, keyed by content, filled once and shared by methods and seeds.

Two files per (backbone digest, transform digest, numerics): the rows, one flat file that is mapped
into memory, and an SQLite index from (hash of the image's bytes, view) to a row's place and
checksum. A changed image, transform or backbone has another key, so nothing stale can be served.

A row is written before the index names it, so that a killed process leaves at most rows that no
index names, which the next writer covers. After a power cut the index may be ahead of the rows:
the checksum, taken of the very copy that is served, sends such rows back to the encoder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sqlite3
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedvlm.core.errors import DataError
from fedvlm.core.files import user_path
from fedvlm.models.features.rows import RowFile, Rows, as_rows, as_tensor

SCHEMA = 2  # 1 kept the rows inside SQLite; those files have other names and are never opened
ENV = "FEDVLM_CACHE"
ROWS = ".rows"
_TIMEOUT_S = 120.0
_QUERY_KEYS = 4096  # places looked up at a time
_TRIES, _PAUSE_S = 20, 0.02
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
    return (user_path(root) if root else Path.home() / ".cache" / "fedvlm") / "features"


def store_path(folder: Path, *identity: str | int) -> Path:
    """Return the index file for an identity: every part of it changes the name."""
    digest = hashlib.sha256(json.dumps([SCHEMA, *identity]).encode()).hexdigest()
    return folder / f"{digest[:40]}.sqlite"


class FeatureStore:
    """Rows of ``width`` numbers of one type, keyed by (content key, view).

    Safe for several processes at once (SQLite's lock; the first writer of a key wins). Files that
    are damaged are renamed to ``*.corrupt-<n>`` and started anew; ``notes`` tells. Where it may
    only be read (a shared folder of others), it serves what it has and keeps nothing new.

    Args:
        path: the index; the rows lie beside it, its folder is made.
        width: numbers per row.
        dtype: float32, float64 or bfloat16.
        about: what the rows are, for ``inventory``; the first to open a store writes it.

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
        self._told = False  # that new rows are not kept
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error
        self._open()

    def _open(self) -> None:
        """Open both files of one store: a clean-up or a renaming in between shows in the rows."""
        for turn in range(_TRIES):
            try:
                self._rows = RowFile(self.path.with_suffix(ROWS), self.width, self.dtype)
            except OSError as error:
                raise self._unwritable(error) from error
            try:
                self._db = self._connect()
            except sqlite3.OperationalError as error:
                self._rows.close()
                # A new index that two processes make at once: its log is set up without waiting.
                code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                if code != sqlite3.SQLITE_BUSY or turn == _TRIES - 1:
                    raise self._unwritable(error) from error
                time.sleep(_PAUSE_S * (turn + 1))
                continue
            except sqlite3.DatabaseError as error:
                self._set_aside(error)
                continue
            if self._rows.is_current():
                return
            self.close()
        raise self._unwritable(OSError("other processes keep removing it"))

    def _connect(self) -> sqlite3.Connection:
        if not self._rows.writable:  # without a lock and a log: neither can be made there
            db = sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
            try:
                db.execute("SELECT COUNT(*) FROM places")
            except sqlite3.Error as error:
                db.close()
                raise sqlite3.OperationalError(f"read-only, and {error}") from error
            return db
        db = sqlite3.connect(self.path, timeout=_TIMEOUT_S, isolation_level=None)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            for table in _TABLES:
                db.execute(table)
            if (verdict := db.execute("PRAGMA quick_check(1)").fetchone()) != ("ok",):
                raise sqlite3.DatabaseError(f"quick_check: {verdict}")
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
        note = f"feature cache was damaged ({error}): renamed to {aside.name} and rebuilt"
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
        index = self._index(wanted, view)
        names = [key for key in wanted if key in index]
        places = np.array([index[key][0] for key in names], dtype=np.int64)
        rows, inside = self._rows.read(places)
        sums = (zlib.crc32(row) == index[key][1] for key, row in zip(names, rows, strict=True))
        sound = inside & np.fromiter(sums, bool, len(names))
        if not sound.all():
            names, rows = [k for k, ok in zip(names, sound, strict=True) if ok], rows[sound]
        return {key: i for i, key in enumerate(names)}, as_tensor(rows, self.dtype)

    def _index(self, wanted: Sequence[str], view: int) -> dict[str, tuple[int, int]]:
        """Return place and checksum of the keys that are named."""
        index: dict[str, tuple[int, int]] = {}
        for at in range(0, len(wanted), _QUERY_KEYS):
            part = json.dumps(wanted[at : at + _QUERY_KEYS])
            rows_of = self._db.execute(_SELECT, (view, part))
            index |= {key: (place, crc) for key, place, crc in rows_of}
        return index

    @property
    def writable(self) -> bool:
        """Whether new rows are kept."""
        return self._rows.writable

    def places(self, keys: Sequence[str], view: int) -> dict[str, int]:
        """Return key -> place of the rows that are named, unread: sound or not (``find`` tells)."""
        return {key: place for key, (place, _) in self._index(list(keys), view).items()}

    def detach(self) -> RowFile:
        """Close the index and return the rows, still open: nobody deletes them meanwhile."""
        self._close_index()
        return self._rows

    def put_many(self, keys: Sequence[str], view: int, values: Tensor) -> None:
        """Store rows ``values`` [n, width] under ``keys``; rows already there and sound stay.

        Where the store may only be read, nothing is kept, and ``notes`` says so.

        Raises:
            DataError: the files cannot be written (full disk).
        """
        if not self._rows.writable:
            if not self._told:
                self._told = True
                self.notes.append(
                    f"the feature cache {self.path.parent} is read-only and lacks some images of "
                    "this run: they are encoded again in every run"
                )
            return
        block = as_rows(values.detach().cpu().to(self.dtype))
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
        self._close_index()
        self._rows.close()

    def _close_index(self) -> None:
        self._db.close()
        with contextlib.suppress(OSError):  # only told by ``features --list``
            os.utime(self.path)

    def __enter__(self) -> FeatureStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
