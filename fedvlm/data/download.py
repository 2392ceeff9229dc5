"""Get a set's files: fetched, verified, unpacked with distrust, put in place by renames.

Only ``fedvlm data download`` comes here: no run ever fetches data.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from fedvlm.data.download_fetch import Progress, check_url, fetch
from fedvlm.data.download_table import Piece
from fedvlm.data.unpack import unpack
from fedvlm.errors import DataError

KEPT_IN = ".fedvlm-downloads"  # below the root: hidden from the readers, on the disk that has room


def fetch_piece(piece: Piece, root: Path, url_base: str, progress: Progress) -> list[Path]:
    """Fetch, verify, unpack and place one piece; return the places that are new.

    Places that exist already are left as they are. The archive is deleted when all is placed.

    Args:
        root: DATASET.ROOT.
        url_base: fetch ``<url_base>/<file>`` instead of the table's URL; empty for the table's.

    Raises:
        DataError: no connection, wrong checksum, a refused archive, no room.
    """
    wanted = [(inside, root / place) for inside, place in piece.puts]
    wanted = [(inside, place) for inside, place in wanted if not place.exists()]
    if not wanted:
        return []
    folder = root / KEPT_IN
    url = f"{url_base.rstrip('/')}/{piece.file}" if url_base else piece.url
    check_url(url)
    try:
        file = fetch(url, folder / piece.file, piece.checksum, progress)
    except DataError:
        _tidy(folder)
        raise
    if not any(inside for inside, _ in wanted):
        place_files(file.parent, [(file.name, wanted[0][1])])
        _tidy(folder)
        return [place for _, place in wanted]
    out = folder / f"{piece.file}.unpacked"
    try:
        shutil.rmtree(out, ignore_errors=True)  # of a killed process
        unpack(file, out, progress=progress)
        inside = out
        if piece.inner:
            inside = out / ".inner"
            unpack(_inner(out, piece), inside, progress=progress)
        place_files(inside, wanted)
        file.unlink()
    finally:
        shutil.rmtree(out, ignore_errors=True)
    _tidy(folder)
    return [place for _, place in wanted]


def _inner(out: Path, piece: Piece) -> Path:
    if not (out / piece.inner).is_file():
        raise DataError(f"{piece.file} holds no {piece.inner}; its publisher has changed it")
    return out / piece.inner


def place_files(folder: Path, puts: list[tuple[str, Path]]) -> None:
    """Move what was fetched to its places, all or (where one is lacking) nothing.

    Raises:
        DataError: lacking, or the disk refuses.
    """
    for inside, _ in puts:
        if not (folder / inside).exists():
            seen = ", ".join(sorted(p.name for p in folder.iterdir())[:8])
            raise DataError(f"the archive holds no '{inside}' (it holds: {seen}); its publisher "
                            "has changed it: get the set by hand")
    for inside, place in puts:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            os.rename(folder / inside, place)
        except OSError as error:
            raise DataError(f"cannot put {place} in place: {error.strerror}") from error


def _tidy(folder: Path) -> None:
    """Remove the folder of downloads where nothing is left in it."""
    with contextlib.suppress(OSError):
        folder.rmdir()
