"""Image files that a table names by their last name only, or without an ending."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path, PurePosixPath

from fedvlm.core.errors import DataError, one_form
from fedvlm.data.formats.rows import ImageRow
from fedvlm.data.locate import IMAGE_SUFFIXES, check_relative, folder_contents, image_files

DICOM = (".dcm", ".dicom")


def find_images(rows: Sequence[ImageRow], folder: Path) -> list[ImageRow]:
    """Return rows whose paths lead to files, where the first row's own path does not.

    Publishers name images by an id (``ISIC_0027419``) in one of several folders: a name that one
    file below the folder has, with its ending or without, is that file. A column that names the
    client may be the folder, too (``hospital_a/scan1.png``). Both may be in any Unicode form.

    Raises:
        DataError: DICOM files, or a name that two files have.
    """
    first = PurePosixPath(rows[0].path)
    if first.suffix.lower() in DICOM:
        raise DataError(dicom_words(rows[0].path))
    if not folder.is_dir():
        return list(rows)
    rows = _composed(rows, folder)
    if (folder / rows[0].path).is_file():
        return list(rows)
    places: dict[str, list[str]] = {}
    for path in image_files(folder):
        whole = PurePosixPath(named := one_form(path))
        for name in {whole.name, whole.stem, named, named.rpartition(".")[0]}:
            places.setdefault(name, []).append(path)
    found = []
    for row in rows:
        name = PurePosixPath(said := one_form(row.path)).name
        likely = next((places[n] for n in (said, name) if n in places), [])
        own = [p for p in likely if row.client and one_form(p).startswith(f"{row.client}/")]
        likely = own if len(own) == 1 else likely
        if len(likely) > 1:
            _refuse_start(row.path, likely, folder, row.where)
            raise DataError(
                f"{row.where}: {len(likely)} files are called '{name}' ({', '.join(likely[:2])}); "
                "write the folder in the column, too")
        found.append(row._replace(path=likely[0]) if likely else row)
    return found


def _refuse_start(path: str, likely: Sequence[str], folder: Path, where: str) -> None:
    """Refuse a path that starts at another folder, such as the shell's, where its end is there.

    Args:
        likely: files below ``folder`` of the same last name.
    """
    there, parts = {one_form(name) for name in likely}, path.replace("\\", "/").split("/")
    for at in range(1, len(parts)):
        if one_form(inner := "/".join(parts[at:])) in there:
            raise DataError(f"{where}: paths are read from the folder {folder}: write '{inner}', "
                            f"without '{path[:-len(inner)]}'")


def _composed(rows: Sequence[ImageRow], folder: Path) -> Sequence[ImageRow]:
    """Return rows with the disk's spelling of paths that it has in another Unicode form."""
    odd = {r.path for r in rows if not r.path.isascii() and not (folder / r.path).is_file()}
    if not odd:
        return rows
    there = {one_form(path): path for path in image_files(folder)}
    return [r._replace(path=there.get(one_form(r.path), r.path)) if r.path in odd else r
            for r in rows]


def lies_in(path: str, folder: Path) -> bool:
    """Return whether a path leads to a file below a folder, in whichever Unicode form."""
    return (folder / path).is_file() or (
        not path.isascii() and folder.is_dir()
        and one_form(path) in map(one_form, image_files(folder)))


def path_below(path: str, folder: Path, where: str) -> str:
    """Return a table's path from the folder that its paths start at.

    An absolute one (POSIX, or a Windows drive) inside that folder loses what leads there.

    Raises:
        DataError: it leads out of the folder; an absolute one says what to take away.
    """
    text = path.replace("\\", "/")
    if not text.startswith("/") and text[1:2] != ":":
        check_relative(path, where)
        return path
    start = next((s for s in _starts(folder) if text.startswith(s)), "")
    if start and len(text) > len(start):
        check_relative(text[len(start):], where)
        return text[len(start):]
    parts = text.split("/")
    if ".." not in parts and "\0" not in text:
        for at in range(1, len(parts)):
            inner = "/".join(parts[at:])
            if inner and os.path.isfile(folder / inner):  # False for names that no system takes
                raise DataError(f"{where}: '{path}' leads out of the table's folder, in which "
                                f"{inner} is: take '{path[:-len(inner)]}' away from the paths")
    check_relative(path, where)
    return path


@cache
def _starts(folder: Path) -> tuple[str, ...]:
    bases = (os.path.abspath(folder), os.path.realpath(folder))
    return tuple(dict.fromkeys(b.replace("\\", "/").rstrip("/") + "/" for b in bases))


def is_found(name: str, folder: Path) -> bool:
    """Return whether a file below a folder has a name, with its ending or without."""
    last = PurePosixPath(one_form(name)).name
    bare = not last.lower().endswith(IMAGE_SUFFIXES)
    paths = (PurePosixPath(one_form(path)) for path in image_files(folder))
    return any(path.name == last or (bare and path.stem == last) for path in paths)


def refuse_dicom(folder: Path) -> None:
    """Refuse a folder of a class in which DICOM files lie: they would be passed over.

    Raises:
        DataError: names the first.
    """
    _, files = folder_contents(folder)
    for name in sorted(files):
        if name.lower().endswith(DICOM):
            raise DataError(dicom_words(str(folder / name)))


def dicom_words(name: str) -> str:
    """Return what is said of DICOM files."""
    return (f"{name} is a DICOM file, which fedvlm does not read: convert the pixels to PNG first, "
            "without the patient's data (docs/own_data.md, 'DICOM', has ten lines that do it)")
