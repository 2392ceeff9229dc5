"""Which tables of a folder say its images and labels, and where their paths start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedvlm.core.errors import DataError
from fedvlm.data.columns.find_images import DICOM, dicom_words, is_found, lies_in
from fedvlm.data.datum import PARTS
from fedvlm.data.formats.class_names import has_names
from fedvlm.data.formats.parts import PART_NAMES, USUAL_SHARE
from fedvlm.data.formats.table import METADATA, glance, part_of_table
from fedvlm.data.formats.table_files import TABLES, is_leaf
from fedvlm.data.formats.texts import READER as TEXTS
from fedvlm.data.formats.texts import is_class_tree, is_table_of_texts, text_parts
from fedvlm.data.locate import IMAGE_SUFFIXES, describe_content, listing
from fedvlm.data.own.place import AskedColumns, FolderShape, ImageFolder, Keys

_IMAGE_FOLDERS = ("images", "image", "imgs", "img", "jpg", "data", "train")
_NAMES = (
    "words.txt", "classnames.txt", "class_names.txt", "classes.txt", "names.txt", "labels.txt",
)  # fmt: skip
_LARGEST = 20_000_000  # bytes of a JSON file that may hold class names or a split


def metadata_of(place: ImageFolder) -> tuple[Path, ...]:
    """Return Hugging Face's ``metadata`` files: in the folder, or in its parts."""
    def inside(folder: Path) -> list[Path]:
        return [folder / f for f in listing(folder)
                if Path(f).stem.lower() == METADATA and f.lower().endswith(TABLES)]

    own = inside(place.here)
    if own:
        return tuple(own[:1])
    parts = [p for p in place.pictures if p.lower() in PART_NAMES]
    return tuple(file for part in parts for file in inside(place.here / part))


def own_tables(place: ImageFolder) -> tuple[Path, ...]:
    """Return the tables to read: the only one, or those of the parts.

    Raises:
        DataError: several, and their names say no part.
    """
    paths = [place.here / file for file in place.tables]
    if len(paths) == 1:
        return tuple(paths)
    by_part = [path for path in paths if part_of_table(path, place.here)]
    if any(part_of_table(path, place.here) == "train" for path in by_part):
        return tuple(by_part)
    raise DataError(f"{place.here} holds several tables ({', '.join(place.tables[:5])}): give the "
                    "one to read instead of the folder")


def without_images(
    place: ImageFolder, leave_out: Sequence[str], asked: AskedColumns
) -> FolderShape:
    """Return a folder without images whose parquet files hold them, or a folder of texts.

    Raises:
        DataError: there is none either.
    """
    paths = sorted(path for pattern in ("*.parquet", "*/*.parquet")
                   for path in place.here.glob(pattern) if not path.name.startswith("."))
    if not paths:
        paths = [path for path in sorted(place.here.glob("*/*.json")) if is_leaf(path)]
        if paths:
            return in_tables(place, paths, asked)
        slices = next((p for e in DICOM for p in sorted(place.here.rglob(f"*{e}"))), None)
        if slices is not None:
            raise DataError(dicom_words(slices.name))
        if any(is_table_of_texts(place.here / file, asked.columns) for file in place.tables):
            return in_tables(place, own_tables(place), asked)
        if is_class_tree(place.here, leave_out):
            return _texts_in(place, text_parts(place.here, leave_out)[0])
        content = describe_content(place.here)
        raise DataError(f"{place.here} holds no image ({', '.join(IMAGE_SUFFIXES)}) and no table "
                        f"of images (found: {content}); texts are read from two class folders of "
                        "plain files or more, or from a table with the columns text and label")
    return in_tables(place, paths, asked)


def in_tables(place: ImageFolder, paths: Sequence[Path], asked: AskedColumns) -> FolderShape:
    """Return a set in tables; the folder of the images is where the first line's image is.

    Raises:
        DataError: tables of several kinds, images that are not there, or what has to be asked.
    """
    forms = sorted({path.suffix.lower() for path in paths})
    if len(forms) > 1:
        raise DataError(f"{place.here} holds tables of several kinds ({', '.join(forms)}): give "
                        "the one to read instead of the folder")
    if not asked.labels + asked.captions and is_table_of_texts(paths[0], asked.columns):
        return _texts_in(place, {part_of_table(path, place.here): path for path in paths})
    paths, notes = _labelled(place, paths, asked.labels or asked.captions)
    order = {part: number for number, part in enumerate(PARTS)}
    paths.sort(key=lambda path: order.get(part_of_table(path, place.here), -1))  # stable
    first = glance(paths[0], asked.wish)
    for path in paths[1:] if forms[0] not in (".parquet", ".json") else ():  # these hold images
        glance(path, asked.wish)
    images = _images_of(place, paths[0], first.first)
    form = {".ndjson": "jsonl", ".tsv": "csv"}.get(forms[0], forms[0].removeprefix("."))
    files = ",".join(place.below(path) for path in paths)
    keys: Keys = {"DATASET.FORMAT": form, "DATASET.SPLIT_FILE": files}
    if images:
        keys["DATASET.IMAGE_DIR"] = images
    if first.numbers:
        names, more = names_file(place, first.numbers)
        keys, notes = keys | names, [*notes, *more]
    if len(paths) > 1 and {part_of_table(path, place.top / images) for path in paths} == {"train"}:
        keys["DATASET.TEST_SHARE"] = USUAL_SHARE
    what = f"a table, {files}" if len(paths) < 4 else f"{len(paths)} tables, {files[:40]}..."
    return FolderShape(what, keys, tuple(notes))


def _texts_in(place: ImageFolder, parts: Mapping[str, Path]) -> FolderShape:
    """Return a set of texts: tables, or class folders, by their parts."""
    keys: Keys = {"DATASET.FORMAT": TEXTS}
    if set(parts) == {"train"}:
        keys["DATASET.TEST_SHARE"] = USUAL_SHARE
    names = [place.below(parts[part]) for part in ("", *PARTS) if part in parts]
    if any(path.is_file() for path in parts.values()):
        keys["DATASET.SPLIT_FILE"] = ",".join(names)
        return FolderShape(f"a table of texts, {', '.join(names)}", keys)
    return FolderShape(f"class folders of texts{' in ' if names else ''}{', '.join(names)}", keys)


def _labelled(
    place: ImageFolder, paths: Sequence[Path], asked: str
) -> tuple[list[Path], list[str]]:
    """Return the tables that have labels, and a note on a test table that has none."""
    kept, notes = [], []
    for path in paths:
        bare = len(paths) > 1 and part_of_table(path, place.here) == "test"
        if bare and not asked and path.stem.lower() != METADATA and not glance(path).labelled:
            notes.append(f"{path.name} was left out: no column names a class")
        else:
            kept.append(path)
    return kept, notes


def _images_of(place: ImageFolder, path: Path, first: str) -> str:
    """Return the folder that the tables' paths start at, below the top."""
    if not first:
        return place.below(place.here)
    if first.lower().endswith(DICOM):
        raise DataError(dicom_words(first))
    if path.stem.lower() == METADATA:
        if (path.parent / first).is_file():
            return place.below(place.here)
    else:
        for base in dict.fromkeys((place.here, place.top)):
            for name in dict.fromkeys(("", *_IMAGE_FOLDERS, *place.pictures)):
                if lies_in(first, base / name):
                    return place.below(base / name)
    for base in dict.fromkeys((place.here, place.top)):
        if is_found(first, base):
            return place.below(base)
    raise DataError(f"{path} names {first}, which is not there; paths of a table start at its "
                    "folder, or at a folder of images beside it")


def names_file(place: ImageFolder, codes: Sequence[str]) -> tuple[Keys, list[str]]:
    """Return the file that names the classes, where there is one, and what to say of it."""
    for folder in dict.fromkeys((place.here, place.here.parent, place.top)):
        if not folder.is_relative_to(place.top):
            continue
        files = [file for file in _NAMES if (folder / file).is_file()]
        files += [file for file in listing(folder) if file.lower().endswith(".json")]
        for file in files:
            if not too_large(folder / file) and has_names(folder / file, codes):
                below = place.below(folder / file)
                return {"DATASET.NAMES_FILE": below}, [f"class names from {below}"]
    return {}, []


def too_large(file: Path) -> bool:
    """Return whether a file is none that holds names or a split."""
    return not file.is_file() or file.stat().st_size > _LARGEST
