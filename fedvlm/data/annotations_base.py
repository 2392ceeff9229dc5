"""What a set's own annotations say of its images, before anything is cut."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedvlm.data.datum import Datum
from fedvlm.data.locate import check_relative, find
from fedvlm.errors import DataError


@dataclass(frozen=True)
class Annotated:
    """The labelled images of a set without a split file.

    Attributes:
        images: all of them, or those that are not test images where the set names these.
        how: what said so, in the user's words: ``annotations/trainval.txt``.
        test: the set's own test images; None where it names none.
        val: the set's own validation images; None where it names none.
    """

    images: list[Datum]
    how: str
    test: list[Datum] | None = None
    val: list[Datum] | None = None


def labelled(images: Path, key: str, label: int, classname: str, where: str) -> Datum:
    """Return one image that an annotation names.

    Raises:
        DataError: a path that leads outside, a label below 0.
    """
    check_relative(key, where)
    if label < 0:
        raise DataError(f"{where}: label {label} of {key} is below the first one")
    return Datum(str(images / key), label, 0, classname, key)


def lines_of(home: Path, name: str, what: str, source: str) -> list[str]:
    """Return the stripped, non-empty lines of a text file below a set's folder.

    Raises:
        DataError: absent or not text.
    """
    path = find(home, name, what, source=source, file=True)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def number(word: str, where: str) -> int:
    """Return a whole number written in an annotation.

    Raises:
        DataError: it is none.
    """
    try:
        return int(word)
    except ValueError:
        raise DataError(f"{where}: '{word}' is not a whole number") from None
