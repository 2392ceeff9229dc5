"""What a folder is: class folders, parts, domains, a table, texts, Tiny-ImageNet, a known set.

``look`` reads names only, opens no image and writes nothing. Its result is a ``FolderShape``: the
config keys that read the folder, the same that a YAML of one's own would have, and notes on what
was decided. What could be read in two ways is refused, with what would settle it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from fedvlm.core.errors import DataError, did_you_mean, fold
from fedvlm.core.files import user_path
from fedvlm.data.catalog import dataset_info
from fedvlm.data.columns.find_images import DICOM, dicom_words
from fedvlm.data.columns.patterns import is_pattern
from fedvlm.data.formats.class_names import is_code
from fedvlm.data.formats.parts import PART_NAMES, USUAL_SHARE
from fedvlm.data.formats.table_files import TABLES
from fedvlm.data.layouts import TINY_IMAGENET, choose, layouts_of
from fedvlm.data.locate import explain_refusals, is_pack, listing, read_json_file
from fedvlm.data.own.place import AskedColumns, FolderShape, ImageFolder, Keys, look_into
from fedvlm.data.own.tables import (
    in_tables,
    metadata_of,
    names_file,
    own_tables,
    too_large,
    without_images,
)

_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar")
_PLAIN = ("images", "image", "imgs", "img", "data", "dataset", "jpg")  # names that name nothing
_DEEP = 3  # folders that hold nothing but one folder

@explain_refusals()
def look(
    path: Path, leave_out: Sequence[str] = (), known: bool = True, asked: AskedColumns | None = None
) -> FolderShape:
    """Understand a folder of images, or a table beside its images.

    Args:
        leave_out: names of folders that are not read.
        known: False where the user says the layout, which is then not looked for.
        asked: what a table's columns mean (None: nobody can be asked); clients by a pattern with
            ``{class}`` are the layout.

    Raises:
        DataError: it is no such thing, or could be two; says what would settle it.
    """
    path, asked = _existing(path), asked or AskedColumns(nobody=True)
    if not known and path.is_dir():
        return _finish(FolderShape("read as DATASET.FORMAT says", {}), path, leave_out)
    if path.is_file():
        here = look_into(path.parent, path.parent, leave_out)
        return _finish(in_tables(here, (path,), asked), path.parent, leave_out)
    if is_pattern(asked.clients_by) and "{class}" in asked.clients_by:
        return _finish(FolderShape(f"folders as {asked.clients_by}", {"DATASET.FORMAT": "folders"}),
                       path, leave_out)
    shape = _known(path) or _split_file(path)
    if shape is None and not TINY_IMAGENET.missing(path):
        shape = FolderShape(TINY_IMAGENET.name, {"DATASET.FORMAT": "tiny_imagenet"})
    shape = shape or _structure(_descend(path, leave_out), leave_out, asked)
    return _finish(shape, path, leave_out)


def _existing(path: Path) -> Path:
    path = Path(os.path.abspath(user_path(path)))
    form = path.suffix.lower()
    if form in DICOM and path.is_file():
        raise DataError(dicom_words(path.name))
    if path.is_dir() or (path.is_file() and form in (*TABLES, ".json")):
        return path
    if is_pack(path):
        raise DataError(f"{path} is a feature pack, which has no images: name it with --root")
    if path.is_file():
        how = "unpack it and give the folder" if form in _ARCHIVES else (
            f"give the folder of the images, or a table of them ({', '.join(TABLES)})")
        raise DataError(f"{path} is a file: {how}")
    if path.is_symlink():
        raise DataError(f"{path} is a link to {os.readlink(path)}, which does not exist")
    near = did_you_mean(path.name, listing(path.parent)) if path.parent.is_dir() else ""
    what = "file" if form in (*TABLES, ".json") else "folder"
    raise DataError(f"the {what} {path} does not exist{near}")


def _finish(shape: FolderShape, path: Path, leave_out: Sequence[str]) -> FolderShape:
    """Add the keys that say where the folder lies, and a name that no known set has."""
    name, notes = shape.known, list(shape.notes)
    if not name:
        words = path.parts[-2:] if fold(path.name) in _PLAIN else path.parts[-1:]
        name = re.sub(r"[^\w.-]+", "_", "_".join(words)).strip("._-") or "images"
        info = dataset_info(name)
        if info is not None:
            notes.append(f"named {name}_images: {name} is a name of the known data set "
                         f"{info.name}, and this folder is not laid out as that set")
            name += "_images"
    keys: Keys = {"DATASET.NAME": name, "DATASET.ROOT": str(path.parent),
                  "DATASET.DIR": path.name or "."}
    if leave_out:
        keys["DATASET.LEAVE_OUT"] = ",".join(leave_out)
        notes.append(f"left out: {', '.join(leave_out)}")
    return replace(shape, keys=keys | shape.keys, notes=tuple(notes))


def _known(path: Path) -> FolderShape | None:
    """Return a set of the catalog: by the folder's name, and laid out as that set is."""
    info = dataset_info(path.name)
    if info is None or info.builtin:
        return None
    layout = choose(layouts_of(info), path.parent, path.name)
    if layout is None:
        return None
    what = f"the set {info.name}, layout '{layout.name}'"
    return FolderShape(what, {}, known=info.name)


def _split_file(path: Path) -> FolderShape | None:
    """Return a set with a split file of CoOp's shape, which goes before any tree."""
    for name in listing(path):
        file = path / name
        if not (name.startswith("split") and name.endswith(".json")) or too_large(file):
            continue
        content = read_json_file(file)
        rows = content.get("train") if isinstance(content, dict) else None
        if not isinstance(rows, list) or not rows or not isinstance(rows[0], list):
            continue
        folders = [f for f in ("", *listing(path)) if (path / f / str(rows[0][0])).is_file()]
        if not folders:
            raise DataError(f"{file} names {rows[0][0]}, which is in no folder of {path}; complete "
                            "the copy, or take the split file away")
        keys: Keys = {"DATASET.FORMAT": "coop", "DATASET.SPLIT_FILE": name,
                      "DATASET.IMAGE_DIR": folders[0]}
        return FolderShape(f"a CoOp split file, {name}", keys)
    return None


def _descend(path: Path, leave_out: Sequence[str]) -> ImageFolder:
    """Go into folders as long as one alone holds all images and is neither a part nor a class."""
    place = look_into(path, path, leave_out)
    for _ in range(_DEEP):
        only = place.pictures[0] if len(place.pictures) == 1 else ""
        if not only or place.flat or place.tables or only.lower() in PART_NAMES:
            return place
        inner = look_into(path, place.here / only, leave_out)
        if not inner.pictures and not inner.tables:
            return place  # images of one class
        place = inner
    return place


def _structure(
    place: ImageFolder, leave_out: Sequence[str], asked: AskedColumns
) -> FolderShape:
    here, images = place.here, place.below(place.here)
    keys: Keys = {"DATASET.IMAGE_DIR": images} if images else {}
    parts = {PART_NAMES[f.lower()]: here / f for f in place.pictures if f.lower() in PART_NAMES}
    metadata = metadata_of(place)
    if metadata:
        return in_tables(place, metadata, asked)
    if not place.pictures and not place.flat:
        return without_images(place, leave_out, asked)
    if "train" in parts:
        train = look_into(place.top, parts["train"], leave_out)
        if train.pictures and not train.flat:
            return _in_parts(place, parts, keys, leave_out)
    elif not place.flat and len(parts) == len(place.pictures):
        if any(look_into(place.top, path, leave_out).pictures for path in parts.values()):
            return _in_parts(place, parts, keys, leave_out)  # to be tested on
    elif not place.flat and len(place.pictures) > 1:
        domains = _domains(place, leave_out)
        classes = sorted({c for inner in domains.values() for c in inner}) or place.pictures
        names, notes = _names(place, classes)
        form: Keys = {"DATASET.FORMAT": "domains" if domains else "folders"}
        return FolderShape("a domain tree" if domains else "class folders",
                           keys | form | names, (*notes, *_unread(place)))
    if place.tables:
        return in_tables(place, own_tables(place), asked)
    if len(place.pictures) == 1 and not place.flat and "train" not in parts:
        raise DataError(f"{here} holds one class only, {place.pictures[0]}; give the folder that "
                        "holds all class folders")
    raise DataError(
        f"the images in {parts.get('train', here)} lie in no class folder, and no table says what "
        "they show: put them into <class>/<image>, or add a CSV table with the columns path, "
        "classname (and split: train, val, test)"
    )


def _in_parts(
    place: ImageFolder, parts: Mapping[str, Path], keys: Keys, leave_out: Sequence[str],
) -> FolderShape:
    """Return ``{train,val,test}/<class>``; what lacks a test part is completed, and said."""
    inner = {p: look_into(place.top, path, leave_out).pictures for p, path in parts.items()}
    names, notes = _names(place, inner.get("train") or sorted({*chain(*inner.values())}))
    form: Keys = {"DATASET.FORMAT": "folders"}
    labelled = {p for p, classes in inner.items() if classes}
    what = f"{', '.join(p for p in ('train', 'val', 'test') if p in labelled)} folders"
    if labelled == {"train"}:
        form["DATASET.TEST_SHARE"] = USUAL_SHARE
        what = "a train folder only"
    return FolderShape(what, keys | form | names, (*notes, *_unread(place)))


def _domains(place: ImageFolder, leave_out: Sequence[str]) -> dict[str, list[str]]:
    """Return the classes of each domain; none where the folders are classes.

    Folders are domains where none holds images itself and all hold parts, or the same two folders
    or more.
    """
    classes: dict[str, list[str]] = {}
    shared: set[str] = set()
    for name in place.pictures:
        inner = look_into(place.top, place.here / name, leave_out)
        if inner.flat or not inner.pictures:
            return {}
        folders = [f for f in inner.pictures if f.lower() in PART_NAMES]
        found = set(inner.pictures)
        if folders:
            found = {c for f in folders
                     for c in look_into(place.top, inner.here / f, leave_out).pictures}
        classes[name] = sorted(found)
        shared = found if len(classes) == 1 else shared & found
    return classes if len(shared) > 1 else {}


def _unread(place: ImageFolder) -> list[str]:
    """Return a note on tables that lie beside a tree and are not read."""
    if not place.tables:
        return []
    return [f"the folders give the classes; not read: {', '.join(place.tables[:3])} (to read it, "
            "give the table itself instead of the folder)"]


def _names(place: ImageFolder, classes: Sequence[str]) -> tuple[Keys, list[str]]:
    """Return the file that names the classes, and what to say of it, or of names that are codes."""
    keys, notes = names_file(place, classes)
    codes = [name for name in classes if is_code(name)]
    if keys or 2 * len(codes) <= len(classes):
        return keys, notes
    return {}, [
        f"the class folders look like codes ({', '.join(codes[:3])}), which would go into the "
        "prompts: name them in words.txt ('<folder><tab><name>' a line), classnames.txt or JSON "
        "beside them"
    ]
