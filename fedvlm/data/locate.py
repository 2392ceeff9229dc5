"""Find a data set's folders and files; errors name what is missing, what is there, its source."""

from __future__ import annotations

import contextlib
import json
import os
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedvlm.core.errors import DataError, did_you_mean
from fedvlm.core.files import user_path

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
PACK_SUFFIX, PACK_MARK = ".pack.safetensors", "fedvlm.pack"  # of a feature pack: name, metadata
_FIRST = 8  # names that a message lists


@contextlib.contextmanager
def explain_refusals() -> Iterator[None]:
    """Give a refusal of the file system inside (of ``Path.is_dir`` too) an error message.

    Raises:
        DataError: names the file or folder that may not be read.
    """
    try:
        yield
    except PermissionError as error:
        raise DataError(
            f"cannot read {error.filename}: {error.strerror}; you need the right to read it and "
            "to enter the folders above it"
        ) from error


def listing(folder: Path) -> list[str]:
    """Return the visible names in a folder, sorted (the order is the same on every machine).

    Raises:
        DataError: the folder cannot be read.
    """
    try:
        return sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))
    except OSError as error:
        raise DataError(f"cannot read the folder {folder}: {error.strerror}") from error


def describe_content(folder: Path) -> str:
    """Return the first visible names in a folder, for an error message; ``nothing`` without any."""
    return ", ".join(listing(folder)[:_FIRST]) or "nothing"


def first_names(names: Iterable[str], most: int = 3) -> str:
    """Return the first names, and that there are more: ``a, b, ...``."""
    names = list(names)
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def subfolders(folder: Path) -> list[str]:
    """Return the visible folders in a folder, sorted."""
    return [name for name in listing(folder) if (folder / name).is_dir()]


def refuse_lost_links(folder: Path) -> None:
    """Refuse a link to nowhere whose name has no suffix: it led to the folder of a class.

    Raises:
        DataError: there is one; its class would be absent in silence.
    """
    for name in listing(folder):
        path = folder / name
        if "." not in name and path.is_symlink() and not path.exists():
            raise DataError(f"{path} is a link to {os.readlink(path)}, which does not exist: is "
                            "its disk mounted? mend the link, or remove it")


def folder_contents(folder: Path) -> tuple[set[str], set[str]]:
    """Return the visible folders in a folder and the other visible names; no file is looked at.

    Raises:
        DataError: the folder cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            names = {e.name: e.is_dir() for e in entries if not e.name.startswith(".")}
    except OSError as error:
        raise DataError(f"cannot read the folder {folder}: {error.strerror}") from error
    folders = {name for name, is_folder in names.items() if is_folder}
    return folders, set(names) - folders


def image_files(folder: Path) -> list[str]:
    """Return the image files under a folder as sorted ``/``-paths relative to it.

    Links to folders are not followed, so a loop of links cannot trap the walk.

    Raises:
        DataError: a folder that cannot be read; its images are never left out silently.
    """
    paths: list[str] = []
    for here, folders, files in os.walk(folder, onerror=_refuse_unreadable):
        folders[:] = [f for f in folders if not f.startswith(".")]
        relative = Path(here).relative_to(folder).as_posix()
        prefix = "" if relative == "." else f"{relative}/"
        for file in files:  # plain text operations: ImageNet has 1.3 million files
            if file.lower().endswith(IMAGE_SUFFIXES) and not file.startswith("."):
                paths.append(prefix + file)
    return sorted(paths)


def _refuse_unreadable(error: OSError) -> None:
    raise DataError(f"cannot read the folder {error.filename}: {error.strerror}") from error


def is_pack(path: Path) -> bool:
    """Tell whether a path is a file that is meant as a pack: by its name or its first bytes."""
    try:
        if not path.is_file():
            return False
        if path.name.endswith(PACK_SUFFIX):
            return True
        with open(path, "rb") as file:
            return PACK_MARK.encode() in file.read(256)
    except OSError:
        return False


def pack_root(root: str) -> Path | None:
    """Return DATASET.ROOT where it is a pack; None where it is anything else."""
    path = user_path(root)
    return path if root.strip() and is_pack(path) else None


def packs_in(folder: Path) -> list[Path]:
    """Return the packs in a folder, sorted."""
    try:
        return sorted(p for p in folder.iterdir() if p.name.endswith(PACK_SUFFIX) and p.is_file())
    except OSError:
        return []


def _neighbours(parent: Path, name: str, where: str = "") -> str:
    """Return what lies where a name was looked for, as the end of a message."""
    names = listing(parent)
    if not names:
        return f"; {parent} is empty"
    first = first_names(names, _FIRST)
    return f"; found {f'in {where}' if where else 'there'}: {first}{did_you_mean(name, names)}"


def find_root(root: str) -> Path:
    """Return DATASET.ROOT as an existing folder.

    Raises:
        DataError: empty, absent, or not a folder.
    """
    if not root.strip():
        raise DataError(
            "DATASET.ROOT is empty: give the folder that holds your data sets (--root DATA/)"
        )
    path = user_path(root)
    if path.is_dir():
        return path
    if is_pack(path):
        raise DataError(f"{path} is a feature pack, which has no images; give the folder that "
                        "holds the data sets")
    if path.exists():
        raise DataError(f"DATASET.ROOT {path} is a file; give the folder that holds the data sets")
    near, above = "", path.parent
    if above == above.parent:  # the file system's own folders, which nobody has named
        near = did_you_mean(path.name, listing(above))
    elif above.is_dir():
        near = _neighbours(above, path.name, str(above))
    raise DataError(f"DATASET.ROOT {path} does not exist{near}")


def find(parent: Path, name: str, what: str, *, source: str = "", file: bool = False) -> Path:
    """Return ``parent / name``, which must exist.

    Args:
        what: its name in the message: ``"the folder of EuroSAT (DATASET.DIR)"``.
        source: where to get it.
        file: a file is wanted, not a folder.

    Raises:
        DataError: absent or of the wrong kind; says what was found instead.
    """
    check_relative(name, what)
    path = parent / name if name else parent
    if path.is_file() if file else path.is_dir():
        return path
    if path.exists():
        kind = "folder, not a file" if file else "file, not a folder"
        raise DataError(f"{what}: {path} is a {kind}")
    where = f"; get it from {source}" if source else ""
    near = _neighbours(path.parent, path.name) if path.parent.is_dir() else ""
    if name and parent.resolve().name == name:
        near = f"; that name is {parent} itself: give the folder above it as --root"
    raise DataError(f"{what} is missing: {path} does not exist{near}{where}")


def folded_path(name: str) -> str:
    """Return a path without what some file systems do not tell apart: case and Unicode form."""
    if name.isascii():  # most are, and ImageNet has 1.3 million
        return name.lower()
    return unicodedata.normalize("NFC", name).casefold()


def other_spelling(path: str) -> str:
    """Return ``'B.JPG' is there; `` where a missing file's folder has it in another spelling.

    Spellings that differ in Unicode form look the same, so the name is shown in ASCII.
    """
    folder, _, name = path.rpartition("/")
    try:
        names = sorted(entry.name for entry in Path(folder).iterdir())
    except (OSError, ValueError):
        return ""
    near = next((n for n in names if folded_path(n) == folded_path(name)), "")
    if not near:
        return ""
    return f"{ascii(near)} is there, which differs in case or Unicode form from {ascii(name)}; "


def read_lines(path: Path) -> list[tuple[int, str]]:
    """Return (line number from 1, text without blanks around it) of the lines that say something.

    Raises:
        DataError: unreadable or not UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text file in UTF-8") from error
    lines = enumerate(text.splitlines(), 1)
    return [(number, line.strip()) for number, line in lines if line.strip()]


def read_json_file(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        DataError: unreadable, not UTF-8 or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, a number too long
        raise DataError(f"{path} is not a JSON file: {error}") from error


def image_key(relative: str) -> str:
    """Return a path as it is compared: ``./a.jpg`` and ``a.jpg`` are one image."""
    return "/".join(p for p in relative.replace("\\", "/").split("/") if p not in ("", "."))


def check_relative(name: str, what: str) -> None:
    """Refuse absolute paths and ``..`` (POSIX and Windows spellings).

    Raises:
        DataError: ``name`` may lead outside its folder.
    """
    # Plain text operations: a split file has up to 10^5 paths.
    parts = name.replace("\\", "/").split("/")
    drive = name[1:2] == ":"
    if (name and parts[0] == "") or drive or ".." in parts:
        raise DataError(f"{what}: '{name}' must be a relative path without '..', from the "
                        "folder of the file that lists it")
    if "\0" in name:
        raise DataError(f"{what}: '{name!r}' holds a null character")
