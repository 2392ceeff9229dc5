"""Finished runs in few bytes: what their tables are made of and what vouches for it, in one file.

A pack is ``*.cells.xz``: JSON lines, compressed as a whole, a run each with the text of its
``PACKED_FILES`` as they were. It unpacks into run folders that every reader takes; what they lack
(metrics, partition, tensors) their results name by hash. The same runs give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from fedvlm.core import files
from fedvlm.core.errors import DataError
from fedvlm.core.repository import cache_dir
from fedvlm.runs.names import PACKED_FILES, RESULTS

ENDING = ".cells.xz"
LARGEST = 2**30  # bytes that a pack may hold: a bomb is refused
MEMORY = 2**28  # bytes for a window: hostile headers ask for more
PART, NAME = 255, 1000  # bytes of a folder's name, and of a run's
_PRESET = 6 | lzma.PRESET_EXTREME  # a window of 8 MiB, hundreds of runs


def folders_of(path: Path) -> list[Path]:
    """Return the folders that a path stands for: itself, or what a pack, or each pack in it, holds.

    This and ``runs_below`` are how every reader of runs finds them. Packs are unpacked once, into
    the cache.

    Raises:
        DataError: a pack is damaged.
    """
    if path.name.endswith(ENDING) and path.is_file():
        return [unpack_runs(path, cache_dir() / "fedvlm" / "cells")]
    packs = sorted(path.glob(f"*{ENDING}")) if path.is_dir() else []
    return [folder for pack in packs for folder in folders_of(pack)] or [path]


def names_of(path: Path) -> dict[Path, Path]:
    """Return for each folder of ``folders_of`` what it is called: a pack goes by its own path.

    Raises:
        DataError: a pack is damaged.
    """
    packs = sorted(path.glob(f"*{ENDING}")) if path.is_dir() else [path]
    return dict(zip(folders_of(path), packs or [path], strict=True))


def runs_below(folder: Path) -> Iterator[Path]:
    """Yield the run folders at or below ``folder``, finished or not, by path."""
    for here, below, names in os.walk(folder):
        below[:] = sorted(b for b in below if b != "state" and not b.startswith("."))
        if "manifest.json" in names or RESULTS in names:
            below.clear()
            yield Path(here)


def run_names(path: Path) -> set[str]:
    """Return the names of a pack's runs.

    Raises:
        DataError: it is damaged.
    """
    return {str(name) for name, _ in _runs(path, _read(path))}


def pack_runs(runs: Iterable[tuple[str, Path]], path: Path) -> int:
    """Write runs into a pack; return how many.

    Args:
        runs: name (a relative path) and folder of each; they are sorted by name.

    Raises:
        DataError: a file of a run cannot be read, or is no text.
    """
    lines = []
    for name, folder in sorted(runs):
        try:
            texts = {f: (folder / f).read_bytes().decode() for f in PACKED_FILES}
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{folder}: cannot be packed ({error})") from error
        lines.append(json.dumps({"run": name, **texts}))
    text = "".join(f"{line}\n" for line in lines)
    files.write_bytes(path, lzma.compress(text.encode(), preset=_PRESET))
    return len(lines)


def unpack_runs(path: Path, into: Path) -> Path:
    """Write a pack's runs below ``into/HASH/NAME`` and return that folder.

    One that is there stays if it holds the pack's runs byte for byte and nothing else; else it is
    written again.

    Raises:
        DataError: it is no pack, is cut, too large, or names places outside of the folder.
    """
    data = _read(path)
    name = path.name.removesuffix(ENDING)
    folder = into / hashlib.sha256(data).hexdigest()[:12] / name
    runs = dict(_runs(path, data))
    if _holds(folder, runs):
        return folder
    try:
        with files.temporary_folder(folder) as place:
            new, old = place / "new", place / "old"
            for run, texts in runs.items():
                (new / run).mkdir(parents=True)
                for file, text in texts.items():
                    (new / run / file).write_bytes(text.encode())
            new.mkdir(exist_ok=True)
            if folder.exists():
                folder.rename(old)
            new.rename(folder)
    except OSError as error:
        if not _holds(folder, runs):  # else another process was first
            raise DataError(f"{path}: cannot be unpacked into {folder} ({error})") from error
    return folder


def _holds(folder: Path, runs: Mapping[PurePosixPath, Mapping[str, str]]) -> bool:
    """Return whether a folder holds these runs as they are, and no other file."""
    wanted = {str(run / file): text for run, texts in runs.items() for file, text in texts.items()}
    there = [Path(here) / name for here, _, names in os.walk(folder) for name in names]
    try:
        return folder.is_dir() and {p.relative_to(folder).as_posix() for p in there} == {*wanted} \
            and all(p.is_file() and p.read_bytes() == wanted[p.relative_to(folder).as_posix()]
                    .encode() for p in there)
    except OSError:
        return False


def _read(path: Path) -> bytes:
    with files.explain_errors(path):
        return path.read_bytes()


def _runs(path: Path, data: bytes) -> Iterator[tuple[PurePosixPath, dict[str, str]]]:
    seen: set[PurePosixPath] = set()
    above: set[PurePosixPath] = set()
    try:
        worker = lzma.LZMADecompressor(memlimit=MEMORY)
        text = worker.decompress(data, max_length=LARGEST)
        if not worker.eof:
            raise ValueError("it is truncated, or larger than a pack may be")
        if worker.unused_data:
            raise ValueError("it has data after its end, as if two packs were joined")
        *lines, rest = text.decode().split("\n")
        if rest:
            raise ValueError("its last line is truncated")
        for line in lines:
            record: dict[str, Any] = json.loads(line)
            run = _name(record.pop("run"), seen, above)
            if set(record) != set(PACKED_FILES):
                raise ValueError(f"it has a line that is not a run ({str(run)[:60]})")
            texts = {file: str(value) for file, value in record.items()}
            "".join(texts.values()).encode()  # half a character cannot be written
            yield run, texts
    except (lzma.LZMAError, ValueError, KeyError, TypeError, AttributeError,
            RecursionError) as error:
        raise DataError(f"{path}: is not a complete pack of runs ({error}); copy it again, or "
                        "pack its "
                        "runs again (scripts/evidence publish --from)"
                        ) from error


def _name(
    text: str, seen: set[PurePosixPath], above: set[PurePosixPath]
) -> PurePosixPath:
    """Return a run's name, and note it in ``seen`` and the folders it lies in in ``above``.

    Raises:
        ValueError: no folder of its own can have it, or a terminal would obey it.
    """
    run = PurePosixPath(text)
    told = ascii(text)[1:61]
    if run.is_absolute() or ".." in run.parts or not run.parts:
        raise ValueError(f"it has a line that is not a run ({told})")
    if not text.isprintable():
        raise ValueError(f"it has a run whose name has unprintable characters ({told})")
    if max(len(part.encode()) for part in run.parts) > PART or len(text.encode()) > NAME:
        raise ValueError(f"it has a run whose name is too long for a folder ({told}...)")
    if run in seen or run in above or not seen.isdisjoint(run.parents):
        raise ValueError(f"it has a run twice, or inside another run ({told})")
    if {*PACKED_FILES} & {*run.parts}:
        raise ValueError(f"it has a run with the name of a file ({told})")
    seen.add(run)
    above.update(run.parents)
    return run
