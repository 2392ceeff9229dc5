"""A table's file as lines of text cells: CSV (with ``,``, ``;`` or tabs), JSON, parquet, LEAF.

A JSON file is a list of objects, one of Karpathy's caption splits (``dataset_flickr30k.json``,
``dataset_flickr8k``, ``dataset_coco``; Karpathy and Fei-Fei, Deep Visual-Semantic Alignments, CVPR
2015), or LEAF's (FEMNIST, CelebA): ``users`` and, for each, ``x`` and ``y``; pictures of pixels are
written once into the cache, as those of parquet files are.

Parquet files of Hugging Face hold the images themselves; these are written once into the cache, and
labels that are numbers there become the names that the file's own schema has for them.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import importlib
import io
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedvlm.core.errors import DataError
from fedvlm.data.locate import read_json_file

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
_SEPARATOR = re.compile(r'"?sep=([^"\r\n])"?\s*', re.IGNORECASE)
_LONGEST = 99_999  # characters of a list in a cell
_TRAINED = "restval"  # the part of a caption split that is trained on, too
_MAGIC = {
    b"\xff\xd8\xff": ".jpg", b"\x89PNG": ".png", b"GIF8": ".gif", b"BM": ".bmp", b"RIFF": ".webp",
    b"II*\0": ".tif", b"MM\0*": ".tif",
}  # fmt: skip


@dataclass(frozen=True)
class Lines:
    """A table as text.

    Attributes:
        header: the columns' names.
        lines: (number, cells) of each line that says something; numbers are ``unit``s of the file.
        embedded: whether the table holds the images themselves.
        places: number to image file of those, once they are unpacked.
    """

    header: list[str]
    lines: list[tuple[int, list[str]]]
    unit: str = "line"
    embedded: bool = False
    places: Mapping[int, str] = field(default_factory=dict)


def read_lines_of(path: Path, unpacked: Path | None = None) -> Lines:
    """Read a table by the ending of its name.

    Args:
        unpacked: folder for the images that a parquet file holds itself; None unpacks none.

    Raises:
        DataError: the file cannot be read as what its name says.
    """
    form = path.suffix.lower()
    if form == ".parquet":
        return _parquet(path, unpacked)
    try:
        if form == ".json":
            return _json(path, unpacked)
        return _json_lines(path) if form in (".jsonl", ".ndjson") else _csv(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text file in UTF-8") from error


def _csv(path: Path) -> Lines:
    file = io.StringIO(_csv_text(path), newline="")
    first = file.readline()
    said = _SEPARATOR.fullmatch(first)
    if said:
        sign, above = said[1], 1  # Excel's own first line, which is no header
    else:
        file.seek(0)
        signs = [] if "," in first else [sign for sign in ";\t" if sign in first]
        sign, above = (signs or [","])[0], 0
    table = csv.reader(file, strict=True, delimiter=sign)
    try:
        header = next(table, [])
        lines = [(table.line_num + above, line) for line in table if any(map(str.strip, line))]
    except csv.Error as error:
        raise DataError(
            f"{path}, line {table.line_num + above}: not a CSV line ({error})"
        ) from error
    return Lines(header, lines)


def _csv_text(path: Path) -> str:
    """Return a CSV file's text: UTF-8, or UTF-16 that says so (Excel's "Unicode text").

    Raises:
        DataError: another encoding, which is not guessed; says how to save the file.
    """
    raw = path.read_bytes()
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return raw.decode("utf-16")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = raw.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path} is not a text file in UTF-8 (line {number} has the byte "
            f"0x{raw[error.start]:02X}): save it in Excel as 'CSV UTF-8', or, where it comes from "
            "a Windows program, by iconv -f WINDOWS-1252 -t UTF-8 OLD.csv > NEW.csv") from error


def _json_lines(path: Path) -> Lines:
    objects: list[tuple[int, dict[str, Any]]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(content, dict):
            raise DataError(f'{path}, line {number}: a line is an object, {{"path": ..., '
                            '"classname": ...}')
        objects.append((number, content))
    return _of_objects(objects, "line")


def _of_objects(objects: Sequence[tuple[int, Mapping[str, Any]]], unit: str) -> Lines:
    header = list(dict.fromkeys(key for _, content in objects for key in content))
    lines = [(n, [_cell(row.get(key)) for key in header]) for n, row in objects]
    return Lines(header, lines, unit)


def is_leaf(path: Path) -> bool:
    """Return whether a JSON file is LEAF's; it is read for that."""
    try:
        return _user_data(json.loads(path.read_text(encoding="utf-8"))) is not None
    except (OSError, ValueError, RecursionError):
        return False


def _user_data(content: Any) -> Mapping[str, Any] | None:
    found = content.get("user_data") if isinstance(content, dict) else None
    return found if isinstance(found, dict) else None


def _json(path: Path, unpacked: Path | None) -> Lines:
    content = read_json_file(path)
    users = _user_data(content)
    if users is not None:
        return _leaf(path, users, unpacked)
    if isinstance(content, dict) and isinstance(content.get("images"), list):
        return _captions(path, content["images"])
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise DataError(f"{path}: a table in JSON is a list of objects, [{{\"path\": ..., "
                        "\"classname\": ...}]")
    return _of_objects(list(enumerate(content, 1)), "object")


def _captions(path: Path, images: Sequence[Any]) -> Lines:
    """Return a caption split's images, the sentences as a JSON list.

    Each has ``filename``, in COCO also ``filepath`` (``val2014``), ``sentences`` with their texts
    under ``raw``, and ``split``: train, val, test, and in COCO ``restval``, validation images that
    everybody trains on.
    """
    rows = []
    for number, image in enumerate(images, 1):
        try:
            texts = [str(sentence["raw"]) for sentence in image["sentences"]]
            folder, name, part = image.get("filepath", ""), image["filename"], image["split"]
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}, image {number}: a split of captions has for each image "
                            "filename, split and sentences with raw") from error
        place = f"{folder}/{name}" if folder else str(name)
        part = "train" if part == _TRAINED else str(part)
        rows.append((number, [place, json.dumps(texts), part]))
    return Lines(["path", "sentences", "split"], rows, "image")


def _leaf(path: Path, users: Mapping[str, Any], unpacked: Path | None) -> Lines:
    """Return LEAF's samples as (image, label, user); the label of 62 FEMNIST classes is a sign."""
    rows: list[tuple[int, list[str]]] = []
    places: dict[int, str] = {}
    pixels = False
    for user, samples in users.items():
        x, y = (samples.get(k) if isinstance(samples, dict) else None for k in "xy")
        if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
            raise DataError(f"{path}: user '{user[:40]}' has no lists x and y of one length")
        for image, label in zip(x, y, strict=True):
            number = len(rows) + 1
            key = str(image)
            if isinstance(image, list):
                pixels, key = True, f"{path.stem}/{number:07d}.png"
                if unpacked is not None:
                    places[number] = _pixels(path, image, _home(path, unpacked) / key, number)
            rows.append((number, [key, str(label), user]))
    if pixels and all(row[1].isdecimal() and int(row[1]) < len(_SIGNS) for _, row in rows):
        rows = [(n, [key, _SIGNS[int(label)], user]) for n, (key, label, user) in rows]
        return Lines(["path", "classname", "user"], rows, "sample", pixels, places)
    return Lines(["path", "label", "user"], rows, "sample", pixels, places)


_SIGNS = tuple(
    f"{kind} {sign}" for kind, signs in (
        ("the digit", "0123456789"), ("the capital letter", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
        ("the small letter", "abcdefghijklmnopqrstuvwxyz"),
    ) for sign in signs
)  # fmt: skip


def _pixels(path: Path, values: Sequence[Any], place: Path, number: int) -> str:
    """Write a square picture of numbers from 0 to 1 (LEAF's FEMNIST: 28 x 28)."""
    from PIL import Image  # start-up: for LEAF's files only

    try:
        flat = np.asarray(values, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}, sample {number}: its x is no picture of numbers") from error
    side = round(len(flat) ** 0.5)
    if not len(flat) or side * side != len(flat) or not np.isfinite(flat).all():
        raise DataError(f"{path}, sample {number}: {len(flat)} numbers are no square picture")
    if not place.exists():
        scale = 255 if flat.max() <= 1 else 1
        picture, held = (flat * scale).clip(0, 255).astype(np.uint8), io.BytesIO()
        Image.fromarray(picture.reshape(side, side)).save(held, format="PNG")
        _keep(path, place, held.getvalue())
    return str(place)


def _keep(path: Path, place: Path, content: bytes) -> None:
    """Write an image of a table into the cache, whole or not at all."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f"{place.name}.{os.getpid()}")
        part.write_bytes(content)
        part.replace(place)
    except OSError as error:
        raise DataError(f"cannot unpack {path} into {place.parents[1]}: {error.strerror}; set "
                        "CACHE_DIR or $FEDVLM_CACHE to a folder that can be written") from error


def _cell(value: Any) -> str:
    """Return a value as a cell; a list stands as JSON, an object is no cell of a used column."""
    if isinstance(value, list):
        return json.dumps(value)[:_LONGEST]
    if value is None or isinstance(value, dict):
        return ""
    return str(value)


def _parquet(path: Path, unpacked: Path | None) -> Lines:
    try:
        arrow = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise DataError(
            f"{path}: reading parquet needs pyarrow: pip install 'fedvlm[parquet]' (or pip install "
            "pyarrow)"
        ) from error
    try:
        table = arrow.read_table(path)
        header, columns = list(table.column_names), [c.to_pylist() for c in table.columns]
        names = _label_names(table.schema.metadata or {})
    except Exception as error:  # a crafted file can raise anything
        text = str(error).splitlines()[:1]
        raise DataError(f"{path} is not a parquet file: {''.join(text)[:99]}") from error
    places: dict[int, str] = {}
    embedded = False
    cells: list[Sequence[str]] = []
    for name, values in zip(header, columns, strict=True):
        if any(_is_image(value) for value in values):
            embedded = True
            places, keys = _unpack(path, values, unpacked)
            cells.append(keys)
        elif name in names:
            cells.append([_named(value, names[name], path) for value in values])
        else:
            cells.append([_cell(value) for value in values])
    rows = [list(row) for row in zip(*cells, strict=True)]
    return Lines(header, list(enumerate(rows)), "row", embedded, places)


def _is_image(value: Any) -> bool:
    content = value.get("bytes") if isinstance(value, dict) else value
    return isinstance(content, bytes)


def _label_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """Return the class names by column that the ``datasets`` library keeps in a file's schema."""
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
        return {
            column: [str(name) for name in kind["names"]]
            for column, kind in features.items()
            if isinstance(kind, dict) and isinstance(kind.get("names"), list)
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _named(value: Any, names: Sequence[str], path: Path) -> str:
    if isinstance(value, int) and 0 <= value < len(names):
        return names[value]
    if value in (None, -1):
        return ""  # without a label, in the way of that library
    raise DataError(f"{path}: label {str(value)[:40]} has no name among the file's {len(names)}")


def _home(path: Path, folder: Path) -> Path:
    """Return the folder of a file's images in the cache."""
    stat = path.stat()
    digest = hashlib.sha256(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode())
    return folder / digest.hexdigest()[:16]


def _unpack(
    path: Path, values: Sequence[Any], folder: Path | None
) -> tuple[dict[int, str], list[str]]:
    """Write a column of images, once; return the file and the key of each row."""
    home = _home(path, folder) if folder else None
    places, keys = {}, []
    for number, value in enumerate(values):
        content = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(content, bytes):
            raise DataError(f"{path}, row {number}: holds no image")
        ending = next((e for magic, e in _MAGIC.items() if content.startswith(magic)), "")
        if not ending:
            raise DataError(f"{path}, row {number}: these bytes are not an image of a known format")
        key = f"{path.stem}/{number:07d}{ending}"
        keys.append(key)
        if home is None:
            continue
        place = home / key
        if not place.exists() or place.stat().st_size != len(content):
            _keep(path, place, content)
        places[number] = str(place)
    return places, keys
