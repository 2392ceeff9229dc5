"""FGVC-Aircraft: labels from ``variants.txt``, one list of images per part; no split file.

The lists ``images_variant_{train,val,test}.txt`` hold ``<number> <variant>`` lines; a variant's
name may hold blanks. Labels count the lines of ``variants.txt``, as CoOp does.
"""

from __future__ import annotations

from pathlib import Path

from fedvlm.core.errors import DataError, did_you_mean
from fedvlm.data.datum import PARTS, DatasetBase, Datum
from fedvlm.data.layouts import CopyInfo
from fedvlm.data.locate import check_relative, read_lines

READER = "aircraft"
_VARIANTS = "variants.txt"


def read_aircraft(folder: Path, info: CopyInfo) -> DatasetBase:
    """Read FGVC-Aircraft's lists; the images ``<number>.jpg`` are not opened.

    Raises:
        DataError: a line that is not ``<number> <variant>``, an unknown variant, or an image that
            is listed twice; names the file and the line.
    """
    labels = _variants(folder / _VARIANTS)
    lists: dict[str, list[Datum]] = {part: [] for part in PARTS}
    places: dict[str, str] = {}
    for part, name in info.parts.items():
        for number, line in read_lines(folder / name):
            where = f"{folder / name}, line {number}"
            image, variant = (*line.split(maxsplit=1), "")[:2]
            if not variant:
                raise DataError(f"{where}: '{line[:40]}' is not '<number> <variant>'")
            if variant not in labels:
                near = did_you_mean(variant, labels)
                raise DataError(f"{where}: '{variant}' is not in {_VARIANTS}{near}")
            check_relative(image, where)
            if image in places:
                raise DataError(f"{where}: image {image} is also at {places[image]}")
            places[image] = f"{name}, line {number}"
            key = f"{image}.jpg"
            path = str(info.images / key)
            lists[part].append(Datum(path, labels[variant], 0, variant, key))
    return DatasetBase.of(lists)


def _variants(path: Path) -> dict[str, int]:
    """Return the label of each variant: its line in ``variants.txt``."""
    labels: dict[str, int] = {}
    for number, name in read_lines(path):
        if name in labels:
            raise DataError(f"{path}, line {number}: '{name}' is listed twice")
        labels[name] = len(labels)
    return labels
