"""Finished runs in few bytes: what their tables are made of and what vouches for it, in one file.

A pack is ``*.cells.xz``: JSON lines, compressed as a whole, a run each with the text of its
``FILES`` as they were. It unpacks into run folders that every reader takes; what they lack
(metrics, partition, tensors) their results name by hash. The same runs give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from fedvlm.core import files
from fedvlm.core.cache import cache_dir
from fedvlm.core.errors import DataError

FILES = ("config.yaml", "manifest.json", "results.json")
ENDING = ".cells.xz"
LARGEST = 2**30  # bytes that a pack may hold: a bomb is refused
MEMORY = 2**28  # bytes for a window: hostile headers ask for more
WORD = "packed: without metrics, partition and tensors"
_PRESET = 6 | lzma.PRESET_EXTREME  # a window of 8 MiB, hundreds of runs


def folders_of(path: Path) -> list[Path]:
    """Return the folders that a path stands for: itself, or what a pack, or each pack in it, holds.

    This and ``runs_below`` are how every reader of runs finds them. Packs are unpacked once, into
    the cache.

    Raises:
        DataError: a pack is damaged.
    """
    if path.name.endswith(ENDING) and path.is_file():
        return [unpack(path, cache_dir() / "fedvlm" / "cells")]
    packs = sorted(path.glob(f"*{ENDING}")) if path.is_dir() else []
    return [folder for pack in packs for folder in folders_of(pack)] or [path]


def runs_below(folder: Path) -> Iterator[Path]:
    """Yield the run folders at or below ``folder``, finished or not, by path."""
    for here, below, names in os.walk(folder):
        below[:] = sorted(b for b in below if b != "state" and not b.startswith("."))
        if "manifest.json" in names or "results.json" in names:
            below.clear()
            yield Path(here)


def run_names(path: Path) -> set[str]:
    """Return the names of a pack's runs.

    Raises:
        DataError: it is damaged.
    """
    return {str(name) for name, _ in _runs(path, _read(path))}


def packed(folder: Path) -> bool:
    """Return whether a run folder holds exactly what a pack keeps of a run."""
    try:
        return {path.name for path in folder.iterdir()} == set(FILES)
    except OSError:
        return False


def pack(runs: Iterable[tuple[str, Path]], path: Path) -> int:
    """Write runs into a pack; return how many.

    Args:
        runs: name (a relative path) and folder of each; they are sorted by name.

    Raises:
        DataError: a file of a run cannot be read, or is no text.
    """
    lines = []
    for name, folder in sorted(runs):
        try:
            texts = {f: (folder / f).read_bytes().decode() for f in FILES}
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{folder}: cannot be packed ({error})") from error
        lines.append(json.dumps({"run": name, **texts}))
    text = "".join(f"{line}\n" for line in lines)
    files.write_bytes(path, lzma.compress(text.encode(), preset=_PRESET))
    return len(lines)


def unpack(path: Path, into: Path) -> Path:
    """Write a pack's runs below ``into/HASH/NAME`` and return that folder; done before, it stays.

    Raises:
        DataError: it is no pack, is cut, too large, or names places outside of the folder.
    """
    data = _read(path)
    name = path.name.removesuffix(ENDING)
    folder = into / hashlib.sha256(data).hexdigest()[:12] / name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
    try:
        for run, texts in _runs(path, data):
            (place / run).mkdir(parents=True)
            for file, text in texts.items():
                (place / run / file).write_bytes(text.encode())
        place.chmod(0o755)
        place.rename(folder)
    except OSError as error:
        if not folder.is_dir():  # another process was first
            raise DataError(f"{path}: cannot be unpacked into {folder} ({error})") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return folder


def _read(path: Path) -> bytes:
    with files.explain_errors(path):
        return path.read_bytes()


def _runs(path: Path, data: bytes) -> Iterator[tuple[PurePosixPath, dict[str, str]]]:
    try:
        worker = lzma.LZMADecompressor(memlimit=MEMORY)
        text = worker.decompress(data, max_length=LARGEST)
        if not worker.eof:
            raise ValueError("it is cut, or larger than a pack may be")
        for line in text.decode().split("\n")[:-1]:
            record: dict[str, Any] = json.loads(line)
            run = PurePosixPath(record.pop("run"))
            if run.is_absolute() or ".." in run.parts or not run.parts or set(record) != set(FILES):
                raise ValueError(f"it has a line that is no run ({str(run)[:60]})")
            texts = {file: str(value) for file, value in record.items()}
            "".join([str(run), *texts.values()]).encode()  # half a character cannot be written
            if "\0" in str(run):
                raise ValueError("it has a run whose name no folder can have")
            yield run, texts
    except (lzma.LZMAError, ValueError, KeyError, TypeError, AttributeError,
            RecursionError) as error:
        raise DataError(f"{path}: is no whole pack of runs ({error})") from error
