"""Tiny-ImageNet as its archive unpacks: ``train/<wnid>/images``, ``val/images`` with annotations.

The 10,000 images of ``test`` have no published labels and are left out; the validation images,
which have, are the test images, as in the papers. Labels count the WordNet ids of ``wnids.txt``,
sorted, and names are the first synonym of ``words.txt``.
"""

from __future__ import annotations

from pathlib import Path

from fedvlm.core.errors import DataError, did_you_mean
from fedvlm.data.datum import DatasetBase, Datum
from fedvlm.data.formats.class_names import read_class_names
from fedvlm.data.formats.folders import class_data
from fedvlm.data.layouts import TINY_IMAGENET, CopyInfo
from fedvlm.data.locate import check_relative, find, read_lines

READER = "tiny_imagenet"
_WORDS, _WNIDS, _ANNOTATIONS = TINY_IMAGENET.needs[:3]


def read_tiny_imagenet(folder: Path, _info: CopyInfo) -> DatasetBase:
    """Read the set; no image is opened.

    Raises:
        DataError: a file is missing, or an annotation names an unknown class.
    """
    for need in TINY_IMAGENET.needs:
        find(folder, need.rstrip("/"), "Tiny-ImageNet", file=not need.endswith("/"))
    wnids = sorted({text.split()[0] for _, text in read_lines(folder / _WNIDS)})
    names = read_class_names(folder / _WORDS, wnids)
    labels = {wnid: label for label, wnid in enumerate(wnids)}
    train = [
        datum for wnid in wnids
        for datum in class_data(_class(folder, wnid), folder, labels[wnid], 0, names[wnid])
    ]
    test = []
    for number, line in read_lines(folder / _ANNOTATIONS):
        file, wnid = (*line.split("\t"), "", "")[:2]
        where = f"{folder / _ANNOTATIONS}, line {number}"
        if wnid not in labels:
            near = did_you_mean(wnid, wnids)
            raise DataError(f"{where}: '{wnid[:40]}' is no class of {_WNIDS}{near}")
        check_relative(file, where)
        key = f"val/images/{file}"
        test.append(Datum(str(folder / key), labels[wnid], 0, names[wnid], key))
    notes = ["Tiny-ImageNet: the labelled validation images are the test images, and there is no "
             "validation; the images of test/ have no labels and are left out"]
    return DatasetBase.of({"train": train, "val": [], "test": test}, [], notes)


def _class(folder: Path, wnid: str) -> Path:
    """Return a class's folder; the boxes beside its images are no images."""
    place = folder / "train" / wnid
    return place / "images" if (place / "images").is_dir() else place
