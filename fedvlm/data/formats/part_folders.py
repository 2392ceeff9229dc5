"""Trees of domains whose parts have names of their own: ``<domain>/<part>/<class>/file``."""

from __future__ import annotations

from pathlib import Path

from fedvlm.data.datum import DatasetBase
from fedvlm.data.formats.folders import class_folders
from fedvlm.data.formats.rows import ImageRow, build_lists
from fedvlm.data.layouts import CopyInfo
from fedvlm.data.locate import image_files

READER = "part_folders"


def read_part_folders(folder: Path, info: CopyInfo) -> DatasetBase:
    """Read the folders ``info.parts`` of each domain.

    Raises:
        DataError: a part without class folders, or a domain without test images.
    """
    rows: list[ImageRow] = []
    for domain in info.domains:
        for part, inner in info.parts.items():
            place = inner.format(domain)
            for name in class_folders(folder / place, info.drop):
                base, target = f"{place}/{name}", info.renames.get(name, name)
                rows += [ImageRow(f"{base}/{file}", target, None, domain, part, base)
                         for file in image_files(folder / base)]
    return build_lists(rows, info)
