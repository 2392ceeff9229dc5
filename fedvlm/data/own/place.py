"""A folder on the way to a set's images, and how it is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedvlm.core.errors import one_form
from fedvlm.data.columns.header import Wish, wish_of
from fedvlm.data.formats.table_files import TABLES
from fedvlm.data.locate import IMAGE_SUFFIXES, folder_contents

Keys = dict[str, str | float | int]


@dataclass(frozen=True)
class AskedColumns:
    """What the user says of a table's columns, by config key (DATASET.COLUMNS, ...), as texts.

    Attributes:
        nobody: there is no user who could be asked.
    """

    columns: str = ""
    labels: str = ""
    captions: str = ""
    clients_by: str = ""
    groups: str = ""
    nobody: bool = field(default=False, kw_only=True)

    @property
    def wish(self) -> Wish | None:
        """The columns that they name; None: nothing is asked."""
        return None if self.nobody else wish_of(
            self.clients_by, self.groups, self.columns, self.labels, self.captions)


@dataclass(frozen=True)
class FolderShape:
    """How a folder of images is read.

    Attributes:
        what: in a few words: ``class folders``, ``a domain tree``.
        keys: config keys that read it.
        notes: what was decided, one line each.
        known: name of the set of the catalog that it is; empty for an own set.
    """

    what: str
    keys: Keys
    notes: tuple[str, ...] = ()
    known: str = ""


@dataclass(frozen=True)
class ImageFolder:
    """A folder on the way to the images.

    Attributes:
        top: the folder that the user named; paths of keys are relative to it.
        here: the folder that holds the structure.
        pictures: its folders that hold images, at any depth, sorted.
        flat: whether images lie in it directly.
        tables: its files that may be tables, sorted.
    """

    top: Path
    here: Path
    pictures: tuple[str, ...]
    flat: bool
    tables: tuple[str, ...]

    def below(self, path: Path) -> str:
        """Return a path as keys have it."""
        text = path.relative_to(self.top).as_posix()
        return "" if text == "." else text


def holds_images(folder: Path) -> bool:
    """Return whether an image lies below a folder; ends at the first."""
    for _, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        if any(n.lower().endswith(IMAGE_SUFFIXES) and not n.startswith(".") for n in names):
            return True
    return False


def look_into(top: Path, here: Path, leave_out: Sequence[str]) -> ImageFolder:
    folders, files = folder_contents(here)
    pictures = [f for f in folders if one_form(f) not in leave_out and holds_images(here / f)]
    flat = any(f.lower().endswith(IMAGE_SUFFIXES) for f in files)
    tables = [f for f in files if f.lower().endswith(TABLES)]
    return ImageFolder(top, here, tuple(sorted(pictures)), flat, tuple(sorted(tables)))
