"""Get a set's files: fetched, verified, unpacked with distrust, put in place by renames.

Only ``fedvlm data download`` comes here: no run ever fetches data.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from fedvlm.core import files
from fedvlm.core.errors import DataError
from fedvlm.core.progress import Progress
from fedvlm.data.get.fetch import check_url, fetch
from fedvlm.data.get.offers import Piece
from fedvlm.data.get.unpack import unpack_archive

DOWNLOADS = ".fedvlm-downloads"  # below the root: hidden from readers, on the disk with room


def fetch_piece(piece: Piece, root: Path, url_base: str, progress: Progress) -> list[Path]:
    """Fetch, verify, unpack and place one piece; return the places that are new.

    Places that exist already are left as they are. The archive is deleted when all is placed.

    Args:
        root: DATASET.ROOT.
        url_base: fetch ``<url_base>/<file>`` instead of the table's URL; empty for the table's.

    Raises:
        DataError: no connection, wrong checksum, a refused archive, no room.
    """
    puts = [(inner, root / place) for inner, place in piece.puts]
    puts = [(inner, place) for inner, place in puts if not place.exists()]
    folder = root / DOWNLOADS
    if not puts:
        _forget(folder, piece.file)
        return []
    url = f"{url_base.rstrip('/')}/{piece.file}" if url_base else piece.url
    check_url(url)
    try:
        file = fetch(url, folder / piece.file, piece.checksum, progress)
    except DataError:
        _tidy(folder)
        raise
    if not any(inner for inner, _ in puts):
        place_files(file.parent, [(file.name, puts[0][1])])
        _tidy(folder)
        return [place for _, place in puts]
    out = folder / f"{piece.file}.unpacked"
    try:
        shutil.rmtree(out, ignore_errors=True)  # of a killed process
        unpack_archive(file, out, progress=progress)
        content = out
        if piece.inner:
            inner, content = out / piece.inner, out / ".inner"
            if not inner.is_file():
                raise DataError(
                    f"{piece.file} holds no {piece.inner}; its publisher has changed it")
            unpack_archive(inner, content, progress=progress)
        place_files(content, puts)
        file.unlink()
    finally:
        shutil.rmtree(out, ignore_errors=True)
    _tidy(folder)
    return [place for _, place in puts]


def place_files(folder: Path, puts: list[tuple[str, Path]]) -> None:
    """Move what was fetched to its places, all or (where one is lacking) nothing.

    Raises:
        DataError: lacking, or the disk refuses.
    """
    for inner, _ in puts:
        if not (folder / inner).exists():
            content = ", ".join(sorted(p.name for p in folder.iterdir())[:8])
            raise DataError(f"the archive holds no '{inner}' (it holds: {content}); its publisher "
                            "has changed it: get the set by hand")
    for inner, place in puts:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            os.rename(folder / inner, place)
        except OSError as error:
            raise DataError(f"cannot put {place} in place: {error.strerror}") from error


def _forget(folder: Path, name: str) -> None:
    """Delete what a process left that was killed after it had put everything in its place."""
    for file in (name, f"{name}.part", f"{name}.part.json"):
        (folder / file).unlink(missing_ok=True)
    out = folder / f"{name}.unpacked"
    shutil.rmtree(out, ignore_errors=True)
    files.remove_leftovers(folder, out.name)
    _tidy(folder)


def _tidy(folder: Path) -> None:
    """Remove the folder of downloads where nothing is left in it."""
    with contextlib.suppress(OSError):
        folder.rmdir()
