"""Image features on disk: exact, keyed by content, filled once and shared by methods and seeds.

One SQLite file per (backbone digest, transform digest, numerics); a row is one image (by the hash
of its bytes) and view. A changed image, transform or backbone has another key, so nothing stale
can be served; a checksum per row catches damaged files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedvlm.errors import DataError

SCHEMA = 1
ENV = "FEDVLM_CACHE"
_TIMEOUT_S = 120.0
_QUERY_KEYS = 4096  # rows read at a time
_TABLE = (
    "CREATE TABLE IF NOT EXISTS features (key TEXT NOT NULL, view INTEGER NOT NULL, "
    "crc INTEGER NOT NULL, value BLOB NOT NULL, PRIMARY KEY (key, view)) WITHOUT ROWID"
)
_SELECT = (
    "SELECT key, crc, value FROM features "
    "WHERE view = ? AND key IN (SELECT value FROM json_each(?))"
)
# Of two processes that encode the same image, both bring the same bits; a row is put again only
# after it was found damaged.
_INSERT = (
    "INSERT INTO features VALUES (?, ?, ?, ?) ON CONFLICT (key, view) DO UPDATE "
    "SET crc = excluded.crc, value = excluded.value "
    "WHERE features.crc <> excluded.crc OR features.value <> excluded.value"
)
log = logging.getLogger(__name__)


def default_dir() -> Path:
    """Return ``$FEDVLM_CACHE`` or ``~/.cache/fedvlm``, with ``features`` below it."""
    root = os.environ.get(ENV)
    return (Path(root).expanduser() if root else Path.home() / ".cache" / "fedvlm") / "features"


def store_path(folder: Path, *identity: str | int) -> Path:
    """Return the file for an identity: every part of it changes the name."""
    digest = hashlib.sha256(json.dumps([SCHEMA, *identity]).encode()).hexdigest()
    return folder / f"{digest[:40]}.sqlite"


class FeatureStore:
    """Rows of ``width`` numbers of one type, keyed by (content key, view).

    Safe for several processes at once (write-ahead log, first writer wins). A file that is not a
    healthy database is renamed to ``*.corrupt-<n>`` and started anew; ``notes`` tells.

    Args:
        path: the file; its folder is made.
        width: numbers per row.
        dtype: float32 or float64.

    Raises:
        DataError: the folder or file cannot be written.
    """

    def __init__(self, path: Path, width: int, dtype: torch.dtype = torch.float32) -> None:
        self.path, self.width, self.dtype = Path(path), width, dtype
        self.notes: list[str] = []
        self._bytes = width * torch.empty((), dtype=dtype).element_size()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error
        self._db = self._open()

    def _open(self) -> sqlite3.Connection:
        for last_try in (False, True):
            try:
                return self._connect()
            except sqlite3.OperationalError as error:
                raise self._unwritable(error) from error
            except sqlite3.DatabaseError as error:
                if last_try:
                    raise self._unwritable(error) from error
                self._set_aside(error)
        raise AssertionError("unreachable")

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=_TIMEOUT_S, isolation_level=None)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            db.execute(_TABLE)
            if (found := db.execute("PRAGMA quick_check(1)").fetchone()) != ("ok",):
                raise sqlite3.DatabaseError(f"quick_check: {found}")
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
        count = len(list(self.path.parent.glob(f"{self.path.name}.corrupt-*")))
        aside = self.path.with_name(f"{self.path.name}.corrupt-{count + 1}")
        # Another process may have renamed it first: then there is nothing left to rename.
        with contextlib.suppress(FileNotFoundError):
            self.path.replace(aside)
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        note = f"feature cache was damaged ({error}): set aside as {aside.name} and rebuilt"
        self.notes.append(note)
        log.warning(note)

    def get_many(self, keys: Iterable[str], view: int) -> dict[str, Tensor]:
        """Return key -> row [width] for those of ``keys`` that are stored and sound."""
        wanted = list(dict.fromkeys(keys))
        found: dict[str, Tensor] = {}
        try:
            for at in range(0, len(wanted), _QUERY_KEYS):
                part = json.dumps(wanted[at : at + _QUERY_KEYS])
                for key, crc, value in self._db.execute(_SELECT, (view, part)):
                    if len(value) == self._bytes and zlib.crc32(value) == crc:
                        # A copy: the row must not keep the whole query result alive.
                        found[key] = torch.frombuffer(bytearray(value), dtype=self.dtype)
        except sqlite3.OperationalError as error:
            raise self._unwritable(error) from error
        except sqlite3.DatabaseError as error:
            self._db.close()
            self._set_aside(error)
            self._db = self._open()
        return found

    def put_many(self, keys: Sequence[str], view: int, values: Tensor) -> None:
        """Store rows ``values`` [n, width] under ``keys``; rows already there and sound stay.

        Raises:
            DataError: the file cannot be written (read-only folder, full disk).
        """
        rows = []
        for key, row in zip(keys, values.detach().cpu().to(self.dtype), strict=True):
            blob = row.contiguous().numpy().tobytes()
            rows.append((key, view, zlib.crc32(blob), blob))
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(_INSERT, rows)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise self._unwritable(error) from error

    def __len__(self) -> int:
        return int(self._db.execute("SELECT COUNT(*) FROM features").fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> FeatureStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
