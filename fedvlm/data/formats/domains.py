"""Multi-domain sets as others publish them: lists in text, FedBN's pickles, image trees.

A row of a list pairs one image with one label. The label is the list's own number, so a class that
one domain lacks shifts nothing; where a list gives names, labels follow the sorted names. A row
whose image lies in another class's folder ends the reading: pairing the two from different lists is
the usual defect of domain code.

Lists in text have one ``path label`` a line (DomainNet's, Dassl's and PACS's folds). FedBN's are
two arrays, paths and class names; the published files are called ``.pkl`` and were read by
``numpy.load``, which takes pickles, ``npy`` and ``npz`` alike. So does this reader, by the first
bytes, and always without trust. Trees are folders of images whose domains go by several spellings.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedvlm.core.errors import DataError
from fedvlm.data.catalog import DatasetInfo
from fedvlm.data.datum import PARTS, DatasetBase, Datum
from fedvlm.data.formats.folders import Names, class_folders, image_files, read_domains
from fedvlm.data.formats.pickles import loads_restricted
from fedvlm.data.locate import subfolders

_BROKEN = {"PACS": "sketch/dog/n02103406_4068-1.png"}  # published, but it cannot be read
_DIGITS = 6  # of a label
_FIRST = 5  # classes that a note lists
_HEADERS = {(1, 0): "read_array_header_1_0", (2, 0): "read_array_header_2_0"}
_MAX_UNPACKED = 2**30  # bytes of an npz; the published lists take a few megabytes
_NPY, _ZIP = b"\x93NUMPY", b"PK\x03\x04"


class ListRow(NamedTuple):
    """One line of a list.

    Attributes:
        key: the image below the set's image folder, with ``/``.
        name: the class name.
        label: the list's number from 0; None where it gives names only.
        domain: number into the set's domains.
        part: train, val or test.
        where: the file and line, for messages.
    """

    key: str
    name: str
    label: int | None
    domain: int
    part: str
    where: str


def read_lists(
    folder: Path,
    info: DatasetInfo,
    *,
    files: Mapping[str, str],
    images: str = "",
    first: int = 0,
) -> DatasetBase:
    """Read a set whose lists are text files; class names are the folders that images lie in.

    Args:
        files: part to list below ``folder``, with ``{}`` for the domain.
        images: what the lists' paths are relative to, below ``folder``.
        first: the number of the first label (PACS counts from 1).

    Raises:
        DataError: a list that cannot be read, a line that is not ``path label``, or rows that do
            not agree.
    """
    rows: list[ListRow] = []
    anchors = tuple(dict.fromkeys((folder.name, info.folder, info.name)))
    for number, domain in enumerate(info.domains):
        for part in PARTS:
            if part in files:
                path = folder / files[part].format(domain)
                for where, name, label in _lines(path, first):
                    key = image_path(name, anchors, domain, where)
                    rows.append(ListRow(key, key.split("/")[-2], label, number, part, where))
    return data_of_rows(rows, folder / images, info)


def _lines(path: Path, first: int) -> Iterator[tuple[str, str, int]]:
    """Yield (file and line, path, label from 0)."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a list in UTF-8: {error.reason}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        name, label = (line.strip().rsplit(None, 1) + [""])[:2]
        if not (label.isascii() and label.isdigit()) or len(label) > _DIGITS:
            raise DataError(f"{where}: a line is 'path label', not '{line.strip()[:60]}'")
        if int(label) < first:
            raise DataError(f"{where}: label {label}, but this list counts from {first}")
        yield where, name, int(label) - first


def read_pickles(folder: Path, info: DatasetInfo, *, folders: tuple[str, ...] = ()) -> DatasetBase:
    """Read ``<domain>_{train,test}.pkl``; there is no validation list.

    Args:
        folders: the domains as the files spell them, in the catalog's order; empty for its names.

    Raises:
        DataError: a file that is not two lists of the same length, or rows that do not agree.
    """
    rows: list[ListRow] = []
    anchors = tuple(dict.fromkeys((folder.name, info.folder, info.name)))
    for number, domain in enumerate(folders or tuple(info.domains)):
        for part in ("train", "test"):
            path = folder / f"{domain}_{part}.pkl"
            for i, (name, label) in enumerate(_two_lists(load_arrays(path), path)):
                where = f"{path}[{i}]"
                key = image_path(name, anchors, domain, where)
                classname = label if isinstance(label, str) else key.split("/")[-2]
                own_number = None if isinstance(label, str) else label
                rows.append(ListRow(key, classname, own_number, number, part, where))
    kinds = {type(row.label) for row in rows}
    if len(kinds) > 1:
        raise DataError(f"{folder}: some of the lists give class names and some give numbers")
    return data_of_rows(rows, folder, info)


def load_arrays(path: Path) -> Any:
    """Return what ``numpy.load(allow_pickle=True)`` would: arrays, read without trust.

    An ``npz`` gives the list of its arrays in the file's order.

    Raises:
        DataError: unreadable, broken, or more than plain data.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    if raw.startswith(_NPY):
        return _npy(raw, str(path))
    if raw.startswith(_ZIP):
        return _npz(raw, path)
    return loads_restricted(raw, str(path))


def _npy(raw: bytes, where: str) -> NDArray[Any]:
    stream = io.BytesIO(raw)
    try:
        version = np.lib.format.read_magic(stream)
        shape, columns, dtype = getattr(np.lib.format, _HEADERS[version])(stream)
        count = math.prod(shape)
    except Exception as error:  # a crafted header can raise anything
        raise DataError(f"{where} is not an array file: {error}") from error
    rest = raw[stream.tell() :]
    if dtype.kind == "O" and dtype.names is None:
        array = loads_restricted(rest, where)
    elif dtype.kind not in "biufSU" or len(rest) != count * dtype.itemsize or not len(rest):
        raise DataError(f"{where}: an array of shape {shape} and type {dtype} has other content")
    else:
        array = np.frombuffer(rest, dtype)
    if not isinstance(array, np.ndarray) or array.size != count or not count:
        raise DataError(f"{where}: the array is not of the shape {shape} that the file states")
    return array.reshape(shape, order="F" if columns and dtype.kind != "O" else "C")


def _npz(raw: bytes, path: Path) -> list[NDArray[Any]]:
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > _MAX_UNPACKED:
                raise DataError(f"{path} unpacks to more than {_MAX_UNPACKED >> 20} MiB")
            # zipfile reads no more than the size that the entry states
            contents = [(entry.filename, archive.read(entry)) for entry in entries]
    except DataError:
        raise
    except Exception as error:  # a crafted archive can raise anything
        raise DataError(f"{path} is not an archive of arrays: {error}") from error
    return [_npy(content, f"{path}: {name}") for name, content in contents]


def _two_lists(content: Any, path: Path) -> list[tuple[str, str | int]]:
    """Return (path, label) pairs, checked."""
    kinds = list | tuple | np.ndarray
    rows = list(content) if isinstance(content, kinds) else []
    if len(rows) != 2 or not all(isinstance(row, kinds) for row in rows):
        raise DataError(f"{path}: expected two lists, of paths and of labels, as FedBN wrote them")
    paths, labels = (row.tolist() if isinstance(row, np.ndarray) else list(row) for row in rows)
    if len(paths) != len(labels):
        raise DataError(f"{path}: {len(paths)} paths but {len(labels)} labels")
    if not paths or not all(isinstance(name, str) for name in paths):
        raise DataError(f"{path}: the first list must hold the paths of images")
    texts = all(isinstance(label, str) and label.strip() for label in labels)
    if not texts and not all(type(label) is int and label >= 0 for label in labels):
        raise DataError(f"{path}: the labels must be class names or whole numbers from 0")
    return list(zip(map(str, paths), labels, strict=True))


def read_domain_tree(
    folder: Path, info: DatasetInfo, *, folders: tuple[str, ...] = (),
    classes: tuple[str, ...] = (),
) -> DatasetBase:
    """Read ``<domain>/<class>/file``, cut 50/20/30 by this project; the catalog names the domains.

    Args:
        folders: the domains' folders in the catalog's order; others are left aside.
        classes: the set's, where the tree may hold more; empty for all that are there.

    Raises:
        DataError: an empty class folder, or a domain without classes.
    """
    places, notes = folders or tuple(info.domains), []
    there = {name for place in places for name in subfolders(folder / place)} if classes else set()
    others = sorted(there - set(classes))
    if others:
        notes.append(f"{info.name}: {len(others)} class folders that the set does not have were "
                     "left out")
    data = read_domains(folder, Names(info.renames, (*info.drop, *others)), places)
    data.domain_names = list(info.domains)
    data.notes[:0] = notes
    return data


def read_part_folders(
    folder: Path, info: DatasetInfo, *, parts: Mapping[str, str], folders: tuple[str, ...] = ()
) -> DatasetBase:
    """Read ``<domain>/<part>/<class>/file``.

    Args:
        parts: part to the folder that holds it.
        folders: as ``read_domain_tree``.

    Raises:
        DataError: a part without class folders, or a domain without test images.
    """
    names = Names(info.renames, info.drop)
    rows: list[ListRow] = []
    for number, domain in enumerate(folders or tuple(info.domains)):
        for part, inner in parts.items():
            place = folder / domain / inner
            for name in class_folders(place, names):
                base, classname = f"{domain}/{inner}/{name}", info.renames.get(name, name)
                rows += [
                    ListRow(f"{base}/{file}", classname, None, number, part, base)
                    for file in image_files(place / name)
                ]
    return data_of_rows(rows, folder, info)


def image_path(path: str, anchors: Sequence[str], domain: str, where: str) -> str:
    """Return a list's path as a path below the set's folder, with ``/``.

    Lists carry their author's folders (``../../data/DomainNet/real/dog/1.jpg``, absolute ones). Up
    to the set's own folder they say nothing here and are dropped; nothing after it may lead back.

    Args:
        anchors: names of the set's folder, the author's and the user's.
        domain: the domain's folder, looked for where no anchor is in the path.

    Raises:
        DataError: a path that names neither, or that leaves the set's folder.
    """
    parts = [part for part in path.replace("\\", "/").split("/") if part not in ("", ".")]
    after = None  # plain loops: DomainNet has 6 x 10^5 of these
    for anchor in anchors:
        if anchor in parts:
            after = max(after or 0, len(parts) - parts[::-1].index(anchor))
    if after is None and domain in parts:
        after = parts.index(domain)
    relative = parts[after:] if after is not None else parts
    outside = after is None and (path.startswith(("/", "\\")) or path[1:2] == ":")
    bad = "\0" in path or not (path.isascii() or path.encode(errors="replace").decode() == path)
    if outside or bad or ".." in relative or len(relative) < 3:
        raise DataError(
            f"{where}: the path {path[:99]!r} does not lead to an image below the set's folder "
            f"({' or '.join(anchors)}); expected {domain}/<class>/<image>"
        )
    return "/".join(relative)


def data_of_rows(
    rows: Iterable[ListRow], images: Path, info: DatasetInfo
) -> DatasetBase:
    """Return the parts that the rows describe, in their order, domains by number.

    Raises:
        DataError: an image with two labels, a label with two names, a name with two labels, an
            image in another class's folder, or a domain without test images of its own.
    """
    notes = []
    ordered = sorted(rows, key=lambda row: (PARTS.index(row.part), row.domain))  # stable
    broken = _BROKEN.get(info.name, "")
    rows = [row for row in ordered if not broken or not row.key.endswith(broken)]
    if len(rows) < len(ordered):
        notes.append(f"{info.name}: {broken} was left out; the published file is broken")
    labels = _labels(rows)
    _check_folders(rows, labels)
    first_rows: dict[str, ListRow] = {}
    lists: dict[str, list[Datum]] = {part: [] for part in PARTS}
    repeats, base = dict.fromkeys(PARTS, 0), str(images)
    for row in rows:
        first = first_rows.setdefault(row.key, row)
        if first.name != row.name:
            raise DataError(
                f"{row.where}: {row.key} is '{row.name}' here and '{first.name}' in {first.where}"
            )
        if first is row:
            path = os.path.join(base, row.key)
            lists[row.part].append(Datum(path, labels[row.name], row.domain, row.name, row.key))
        elif first.part != row.part:
            repeats[row.part] += 1
    domains = list(info.domains)
    notes += [*_repeat_notes(info, repeats), *_gap_notes(lists, domains, labels)]
    _refuse_gaps(lists, domains, info)
    return DatasetBase.of(lists, domains, notes)


def _labels(rows: Sequence[ListRow]) -> dict[str, int]:
    """Return the label of each class name."""
    if any(row.label is None for row in rows):
        return {name: label for label, name in enumerate(sorted({row.name for row in rows}))}
    labels: dict[str, int] = {}
    names: dict[int, str] = {}
    for row in rows:
        number = row.label if row.label is not None else -1
        name, label = names.setdefault(number, row.name), labels.setdefault(row.name, number)
        if name != row.name:
            raise DataError(f"{row.where}: label {number} is '{row.name}', elsewhere '{name}'")
        if label != number:
            raise DataError(f"{row.where}: '{row.name}' has label {number}, elsewhere {label}")
    return labels


def _check_folders(rows: Sequence[ListRow], labels: dict[str, int]) -> None:
    for row in rows:
        folder = row.key.split("/")[-2]
        if folder != row.name and folder in labels:
            raise DataError(
                f"{row.where}: {row.key} is called '{row.name}' but lies in the folder of "
                f"'{folder}'; paths and labels of this list are not paired"
            )


def _repeat_notes(info: DatasetInfo, repeats: dict[str, int]) -> list[str]:
    return [
        f"{info.name}: {n} image(s) of the {part} lists are in an earlier list too (train, then "
        f"val) and were left out of {part}" for part, n in repeats.items() if n
    ]


def _gap_notes(
    lists: dict[str, list[Datum]], domains: Sequence[str], labels: dict[str, int]
) -> list[str]:
    """Return a note for each part of a domain that lacks classes."""
    notes = []
    for part in ("train", "test"):
        for number, domain in enumerate(domains):
            there = {d.label for d in lists[part] if d.domain == number}
            gaps = [name for name, label in sorted(labels.items()) if label not in there]
            if gaps:
                first = ", ".join(gaps[:_FIRST]) + (", ..." if len(gaps) > _FIRST else "")
                notes.append(f"domain '{domain}' lacks {len(gaps)} class(es) in {part}: {first}")
    return notes


def _refuse_gaps(
    lists: dict[str, list[Datum]], domains: Sequence[str], info: DatasetInfo
) -> None:
    for part in ("train", "test"):
        there = {d.domain for d in lists[part]}
        empty = [name for number, name in enumerate(domains) if number not in there]
        if empty:
            raise DataError(
                f"{info.name}: the lists leave domain '{empty[0]}' without a {part} image of its "
                "own; images that are in train do not count for test"
            )
