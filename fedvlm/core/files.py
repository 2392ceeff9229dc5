"""Files that are either whole or not there: temporary file, fsync, rename, fsync of the folder.

Every step is a *write point* (``"<step> <file name>"``): a test sets ``on_write_point`` and stops,
kills or fails the process at each of them. It is ``None`` outside tests.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import math
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fedvlm.core.errors import DataError

#: Called with ``"before-temp X"``, ``"mid-temp X"``, ``"after-temp X"``, ``"after-replace X"``
#: (and ``before-``, ``mid-``, ``after-append X``); set by tests only.
on_write_point: Callable[[str], None] | None = None

_TEMPORARY = ".part"
OLD = 10.0  # seconds without a write after which nobody on another machine writes either


def user_path(word: str | os.PathLike[str]) -> Path:
    """``word`` as a path, ``~`` and ``~user`` replaced; a user that there is not stays as typed.

    ``Path.expanduser`` raises where the home is unknown; a file named ``~x`` is a file.
    """
    return Path(os.path.expanduser(word))


def write_bytes(path: Path, data: bytes, private: bool = False) -> None:
    """Put ``data`` at ``path`` so that a reader sees the old file or the new one, never a mix.

    A temporary file of it that a killed process left is deleted.

    Args:
        private: only this user may read it (mode 0600): it has names of files, of patients maybe.

    Raises:
        DataError: disk full, folder read-only or deleted; what was at ``path`` is untouched.
    """
    temporary = temporary_path(path)
    with explain_errors(path):
        remove_leftovers(path.parent, path.name)
        try:
            _point("before-temp", path)
            with open(temporary, "wb", opener=_only_mine if private else None) as file:
                file.write(data[: len(data) // 2])
                if on_write_point is not None:
                    file.flush()
                    _point("mid-temp", path)
                file.write(data[len(data) // 2 :])
                file.flush()
                os.fsync(file.fileno())
            _point("after-temp", path)
            os.replace(temporary, path)
            sync_folder(path.parent)
        except BaseException:  # Ctrl-C too; only a kill leaves it, for remove_leftovers
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        _point("after-replace", path)


def _only_mine(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def write_text(path: Path, text: str, private: bool = False) -> None:
    """Write ``text`` as UTF-8 (see ``write_bytes``)."""
    write_bytes(path, text.encode("utf-8", errors="surrogateescape"), private)


def write_json(path: Path, data: Any, private: bool = False) -> None:
    """Write ``data`` as indented strict JSON; a non-finite number becomes null and is listed.

    See ``json_ready`` for what is accepted and ``write_bytes`` for what is raised.
    """
    write_text(path, json.dumps(json_ready(data), indent=2, allow_nan=False) + "\n", private)


def read_json(path: Path) -> Any:
    """Return what a JSON file holds; None where it cannot be read."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def read_valid_json(path: Path, valid: Callable[[Any], bool], mend: str) -> Any:
    """Return what a JSON file holds; None where there is no file.

    Args:
        valid: says whether that is what it has to be.
        mend: what to do about a damaged one.

    Raises:
        DataError: it cannot be read, or is damaged.
    """
    with explain_errors(path):
        if not path.is_file():
            return None
        data = path.read_bytes()
    content = None
    with contextlib.suppress(ValueError, RecursionError):
        content = json.loads(data)
    if not valid(content):
        raise DataError(f"'{path}' is damaged: {mend}")
    return content


def append_line(path: Path, line: str) -> None:
    """Append one line and fsync; a failed append is taken back where the disk allows it.

    Raises:
        DataError: disk full, folder read-only or deleted.
    """
    data = line.encode("utf-8", errors="surrogateescape") + b"\n"
    with explain_errors(path):
        _point("before-append", path)
        with open(path, "ab", buffering=0) as file:
            start = file.seek(0, os.SEEK_END)
            try:
                _write_all(file.fileno(), data[: len(data) // 2])
                _point("mid-append", path)
                _write_all(file.fileno(), data[len(data) // 2 :])
                os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(file.fileno(), start)
                raise
        _point("after-append", path)


def end_line(path: Path) -> None:
    """End a line that a kill cut, so that the next one is whole; a file that is not there stays so.

    Raises:
        DataError: as ``append_line``.
    """
    if path.exists() and not path.read_bytes().endswith((b"\n",)):
        append_line(path, "")


@contextlib.contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """Give a new folder beside ``target``, to be filled and renamed; what is left of it goes away.

    One of it that a killed process left is deleted first.
    """
    name = target.name[:50]
    remove_leftovers(target.parent, name)
    place = temporary_path(target.with_name(name))
    shutil.rmtree(place, ignore_errors=True)  # of an earlier process of this number
    place.mkdir(parents=True)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def remove_leftovers(folder: Path, name: str = "") -> None:
    """Delete temporary files and folders that a killed process left in ``folder``.

    Args:
        name: only of this file; then those of processes that still write stay, since nothing else
            says that nobody does.
    """
    with explain_errors(folder), contextlib.suppress(FileNotFoundError):
        for word in os.listdir(folder):
            if not word.startswith(f".{name}") or not word.endswith(_TEMPORARY):
                continue
            path = folder / word
            if name and _at_work(path):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def temporary_path(path: Path) -> Path:
    """Return where this process writes what will be renamed to ``path``."""
    return path.with_name(f".{path.name}.{_here()}-{os.getpid()}{_TEMPORARY}")


@cache
def _here() -> str:
    """Return a mark of this machine: a process number says something only there."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _at_work(temporary: Path) -> bool:
    """Say whether somebody may still write a temporary file: a process here, or one elsewhere."""
    words = temporary.name.removesuffix(_TEMPORARY).rpartition(".")[2]
    machine, _, number = words.rpartition("-")
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        if machine == _here():
            return False
        with contextlib.suppress(FileNotFoundError):
            # one of the future: the clock was put back since, or is another machine's
            return abs(time.time() - temporary.stat().st_mtime) < OLD
        return False
    except OSError:
        return True  # of another user
    return True


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` durable; file systems that cannot are left as they are."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(handle)


@contextlib.contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` inside the block into a ``DataError`` with one message about ``path``."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot use '{path}': {_reason(error, path)}; earlier saved data are intact: "
            "fix this and run the same command again"
        ) from error


def _reason(error: OSError, path: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full (free some space)"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "the folder is read-only (make it writable)"
    if error.errno in (errno.ENOENT, errno.ESTALE) and not path.parent.is_dir():
        return "its folder was deleted or moved during the run (restore it)"
    return f"{(error.strerror or str(error)).lower()} (fix that)"


def json_ready(data: Any) -> Any:
    """Return ``data`` as plain JSON values: dataclasses, paths, tuples, sets, 0-d arrays resolved.

    A NaN or infinity becomes null, so that any JSON reader can read the file; where the whole is
    a mapping, its place and kind are kept in a ``non_finite`` entry: nothing is lost silently.

    Raises:
        TypeError: a value that has no JSON form (a tensor with elements, an object).
    """
    lost: dict[str, str] = {}
    plain = _plain(data, "", lost)
    if lost and isinstance(plain, dict):
        plain["non_finite"] = lost
    return plain


def _plain(data: Any, place: str, lost: dict[str, str]) -> Any:
    if data is None or isinstance(data, bool | str):
        return str(data) if isinstance(data, str) else data
    if isinstance(data, int):
        return int(data)
    if isinstance(data, float):
        if not math.isfinite(data):
            lost[place] = repr(float(data))
            return None
        return float(data)
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        data = {f.name: getattr(data, f.name) for f in dataclasses.fields(data)}
    if isinstance(data, Mapping):
        return {str(k): _plain(v, f"{place}.{k}".lstrip("."), lost) for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(v, f"{place}.{i}".lstrip("."), lost) for i, v in enumerate(data)]
    if isinstance(data, set | frozenset):
        return _plain(sorted(data), place, lost)
    if isinstance(data, os.PathLike):
        return os.fspath(data)
    if getattr(data, "ndim", None) == 0 and hasattr(data, "item"):
        return _plain(data.item(), place, lost)
    if type(data).__module__ == "numpy" and hasattr(data, "tolist"):
        return _plain(data.tolist(), place, lost)
    raise TypeError(f"no JSON form for '{place or 'the value'}' of type {type(data).__name__}")


def _write_all(handle: int, data: bytes) -> None:
    """Write all of ``data``: ``os.write`` may stop early where the disk is nearly full."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _point(step: str, path: Path) -> None:
    if on_write_point is not None:
        on_write_point(f"{step} {path.name}")
