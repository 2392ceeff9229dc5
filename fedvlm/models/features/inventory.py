"""The feature stores of a folder: what each holds, how large it is, and how to be rid of it."""

from __future__ import annotations

import os
import re
import sqlite3
import urllib.parse
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from fedvlm.core.errors import DataError
from fedvlm.models.features.rows import not_in_use
from fedvlm.models.features.store import ROWS

# Nothing else in the folder is ours, whatever CACHE_DIR names.
_NAME = re.compile(r"([0-9a-f]{40})(\.sqlite(-wal|-shm|\.corrupt-\d+)?|\.rows)")
OLDER, DAMAGED, LEFT = "of an older fedvlm, not used", "damaged", "left behind"


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
        about: backbone, weights, digest, transform, numerics, batch, width, dtype, and of
            activations stream.
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
    stores = [info for name, files in groups.items() if (info := _info(name, files))]
    return sorted(stores, key=lambda info: -info.used)


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
            f"cannot delete the feature store {info.files[0]}: {error.strerror}; you need "
            "write permission for its folder"
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
