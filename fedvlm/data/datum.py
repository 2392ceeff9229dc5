"""One image with its label, and a data set as three lists of them (Dassl's vocabulary).

Text files that list something, line by line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedvlm.core.errors import DataError

IntArray = NDArray[np.int64]
PARTS = ("train", "val", "test")


@dataclass(frozen=True, slots=True)
class Datum:
    """One labelled image.

    Attributes:
        impath: absolute path of the image file, or of the file that holds it.
        label: class number from 0.
        domain: number into ``DatasetBase.domain_names`` (0 where there is one domain).
        classname: as in the split file or folder name; ``_`` becomes a blank at prompt time.
        key: path relative to the image folder, with ``/``: the image's name in index files.
        array: uint8 ``[H, W, 3]`` where the image comes out of an archive, else None.
    """

    impath: str
    label: int
    domain: int = 0
    classname: str = ""
    key: str = ""
    array: NDArray[np.uint8] | None = field(default=None, compare=False, repr=False)

    @property
    def path(self) -> Path:
        """The image file, or the file that holds the image."""
        return Path(self.impath)


class DatasetBase:
    """The train, validation and test lists of one data set, checked on construction.

    Args:
        train_x, val, test: the three lists; ``val`` may be empty.
        name: shown in messages and files.
        domain_names: names of the domains by number; empty where there is one unnamed domain.
        notes: what the user should know of this copy (subset, own split, chosen layout).

    Raises:
        DataError: labels with gaps, a label with two names, a name with two labels, or an image
            that is in two parts or twice in one.
    """

    def __init__(
        self,
        train_x: Sequence[Datum],
        val: Sequence[Datum],
        test: Sequence[Datum],
        *,
        name: str = "",
        domain_names: Sequence[str] = (),
        notes: Iterable[str] = (),
    ) -> None:
        self.train_x, self.val, self.test = list(train_x), list(val), list(test)
        self.name = name
        self.domain_names = list(domain_names)
        self.notes = list(notes)
        self.lab2cname = _label_names(self.all(), name)
        self.classnames = [self.lab2cname[label] for label in sorted(self.lab2cname)]
        _refuse_repeats({part: self.part(part) for part in PARTS}, name)

    @property
    def num_classes(self) -> int:
        """Number of classes over all three lists (Dassl counts train only)."""
        return len(self.classnames)

    def part(self, name: str) -> list[Datum]:
        """Return the list called ``train``, ``val`` or ``test``."""
        return {"train": self.train_x, "val": self.val, "test": self.test}[name]

    def all(self) -> list[Datum]:
        """Return all images: train, then val, then test."""
        return [*self.train_x, *self.val, *self.test]


def labels_of(items: Sequence[Datum]) -> IntArray:
    """Return the labels ``[n]`` of a list."""
    return np.fromiter((d.label for d in items), dtype=np.int64, count=len(items))


def domains_of(items: Sequence[Datum]) -> IntArray:
    """Return the domain numbers ``[n]`` of a list."""
    return np.fromiter((d.domain for d in items), dtype=np.int64, count=len(items))


def _label_names(items: Sequence[Datum], where: str) -> dict[int, str]:
    names: dict[int, str] = {}
    for datum in items:
        known = names.setdefault(datum.label, datum.classname)
        if known != datum.classname:
            raise DataError(
                f"{where}: label {datum.label} is called both '{known}' and '{datum.classname}' "
                f"(at {datum.key}); a label has one name"
            )
    if not names:
        raise DataError(f"{where}: no images at all")
    missing = sorted(set(range(max(names) + 1)) - set(names))
    if missing or min(names) < 0:
        raise DataError(
            f"{where}: labels must be 0..{len(names) - 1} without gaps, but they go from "
            f"{min(names)} to {max(names)} with {len(names)} classes"
            + (f" (first missing: {missing[0]})" if missing else "")
        )
    seen: dict[str, int] = {}
    for label in sorted(names):
        other = seen.setdefault(names[label], label)
        if other != label:
            raise DataError(
                f"{where}: labels {other} and {label} are both called '{names[label]}'; "
                "class names must differ"
            )
    return names


def _refuse_repeats(parts: Mapping[str, Sequence[Datum]], where: str) -> None:
    """Refuse an image that is named twice: it would leak, weigh double, or have two labels."""
    held: dict[str, set[str]] = {}
    for part, items in parts.items():
        held[part] = {d.key for d in items}
        if len(held[part]) < len(items):
            times = Counter(d.key for d in items)
            twice = sorted(key for key, n in times.items() if n > 1)
            raise DataError(
                f"{where}: {len(twice)} image(s) are named twice or more in {part} (first: "
                f"{twice[0]}); leave each of them there once"
            )
    for a, b in (("train", "test"), ("train", "val"), ("val", "test")):
        both = sorted(held[a] & held[b])
        if both:
            raise DataError(
                f"{where}: {len(both)} image(s) are in {a} and in {b} (first: {both[0]}); "
                f"remove them from one of the two"
            )


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
