"""Image files that a table names by their last name only, or without an ending."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from fedvlm.core.errors import DataError
from fedvlm.data.formats.rows import ImageRow
from fedvlm.data.locate import IMAGE_SUFFIXES, folder_contents, image_files

DICOM = (".dcm", ".dicom")


def find_images(rows: Sequence[ImageRow], folder: Path) -> list[ImageRow]:
    """Return rows whose paths lead to files, where the first row's own path does not.

    Publishers name images by an id (``ISIC_0027419``) in one of several folders: a name that one
    file below the folder has, with its ending or without, is that file. A column that names the
    client may be the folder, too (``hospital_a/scan1.png``).

    Raises:
        DataError: DICOM files, or a name that two files have.
    """
    first = PurePosixPath(rows[0].path)
    if first.suffix.lower() in DICOM:
        raise DataError(dicom_words(rows[0].path))
    if (folder / rows[0].path).is_file() or not folder.is_dir():
        return list(rows)
    places: dict[str, list[str]] = {}
    for path in image_files(folder):
        whole = PurePosixPath(path)
        for name in {whole.name, whole.stem, path, path.rpartition(".")[0]}:
            places.setdefault(name, []).append(path)
    found = []
    for row in rows:
        name = PurePosixPath(row.path).name
        likely = next((places[n] for n in (row.path, name) if n in places), [])
        own = [p for p in likely if row.client and p.startswith(f"{row.client}/")]
        likely = own if len(own) == 1 else likely
        if len(likely) > 1:
            raise DataError(
                f"{row.where}: {len(likely)} files are called '{name}' ({', '.join(likely[:2])}); "
                "write the folder in the column, too")
        found.append(row._replace(path=likely[0]) if likely else row)
    return found


def is_found(name: str, folder: Path) -> bool:
    """Return whether a file below a folder has a name, with its ending or without."""
    last = PurePosixPath(name).name
    bare = not last.lower().endswith(IMAGE_SUFFIXES)
    return any(
        PurePosixPath(path).name == last or (bare and PurePosixPath(path).stem == last)
        for path in image_files(folder)
    )


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
