"""ImageNet and its four test sets: folders by WordNet id, names from ``classnames.txt``.

Labels are the sorted WordNet ids of the set's own folders (ImageNetV2: its numbered folders, which
count the sorted ids). CoOp uses the 50,000 validation images twice, as val and as test; here they
are the test images and there is no validation split, so that a choice made on validation images
cannot look at the test set.

Copies of CoOp's list have carried one name for two ids. The second of them, in the order of the
ids, then gets ``(2)`` after its name, in ImageNet and in its variants, and the notes say so.
"""

from __future__ import annotations

import re
from pathlib import Path

from fedvlm.core.errors import DataError, did_you_mean
from fedvlm.data.datum import PARTS, DatasetBase, Datum
from fedvlm.data.formats.class_names import distinct_names
from fedvlm.data.formats.folders import class_data
from fedvlm.data.layouts import CopyInfo
from fedvlm.data.locate import read_lines, subfolders

READER = "imagenet"
CLASSNAMES = "classnames.txt"
_WNID = re.compile(r"n\d{8}")


def read_imagenet(folder: Path, info: CopyInfo) -> DatasetBase:
    """Read ImageNet or one of its variants; ``info.parts`` says which folder is which part.

    ``classnames.txt`` lies in the set's folder or in ``imagenet`` beside it.

    Raises:
        DataError: no ``classnames.txt``, a folder that it does not name, an empty class.
    """
    images = info.images
    names, twins = read_classnames(find_classnames(folder))
    places = {part: images / folder for part, folder in info.parts.items()}
    wnids = {part: _wnids(place, list(names)) for part, place in places.items()}
    classes = list(next(iter(wnids.values())).values())  # of train, where there is one
    labels = {wnid: label for label, wnid in enumerate(classes)}
    lists: dict[str, list[Datum]] = {part: [] for part in PARTS}
    for part, place in places.items():
        for name, wnid in wnids[part].items():
            if wnid not in names:
                near = did_you_mean(name, names)
                raise DataError(f"{place / name} is no class of {CLASSNAMES}{near}")
            if wnid not in labels:
                raise DataError(f"{place / name}: this class has no training images")
            lists[part] += class_data(place / name, images, labels[wnid], 0, names[wnid])
    notes = [f"{info.name}: there is no validation split; the published one is the test set"]
    doubles = [names[wnid] for wnid in twins if wnid in labels]
    if doubles:
        notes.append(f"{info.name}: names that {CLASSNAMES} has twice: {', '.join(doubles)}")
    return DatasetBase.of(lists, [], notes if "train" in info.parts else notes[1:])


def find_classnames(folder: Path) -> Path:
    """Return ``classnames.txt`` of a set's folder, else of the folder ``imagenet`` beside it.

    Raises:
        DataError: it is in neither.
    """
    places = [folder / CLASSNAMES, folder.parent / "imagenet" / CLASSNAMES]
    for path in places:
        if path.is_file():
            return path
    raise DataError(
        f"{CLASSNAMES} ('<WordNet id> <class name>' in each line) is missing: put CoOp's list at "
        f"{' or '.join(str(p) for p in dict.fromkeys(places))}"
    )


def read_classnames(path: Path) -> tuple[dict[str, str], list[str]]:
    """Return names by sorted WordNet id, and the ids whose name got a number behind it.

    Raises:
        DataError: unreadable, or a line that is not ``<WordNet id> <class name>``.
    """
    names: dict[str, str] = {}
    for number, line in read_lines(path):
        wnid, name = (*line.split(maxsplit=1), "")[:2]
        if not _WNID.fullmatch(wnid) or not name:
            raise DataError(
                f"{path}, line {number}: '{line[:40]}' is not '<WordNet id> <class name>', such "
                "as 'n01440764 tench'"
            )
        if names.setdefault(wnid, name) != name:
            raise DataError(f"{path}, line {number}: {wnid} is also called '{names[wnid]}'")
    unique = distinct_names(names)
    return unique, [wnid for wnid in unique if unique[wnid] != names[wnid]]


def _wnids(place: Path, ids: list[str]) -> dict[str, str]:
    """Return folder name to WordNet id, in the order of the labels."""
    folders = subfolders(place)
    if not folders:
        raise DataError(f"{place} has no class folders; expected <WordNet id>/<image>")
    if not all(name.isdecimal() for name in folders):
        return {name: name for name in folders}
    highest = max(folders, key=int)
    if int(highest) >= len(ids):
        raise DataError(
            f"{place / highest}: {CLASSNAMES} has {len(ids)} classes, 0 to {len(ids) - 1}"
        )
    return {name: ids[int(name)] for name in sorted(folders, key=int)}
