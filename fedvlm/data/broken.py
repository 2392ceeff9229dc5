"""Images that do not decode: counted and named, or refused (``DATASET.ON_CORRUPT``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedvlm.data.datum import Datum
from fedvlm.data.image_records import ImageRecords
from fedvlm.data.images import check_decodes
from fedvlm.errors import DataError

_NAMED = 10


def broken_images(
    name: str, lists: Mapping[str, Sequence[Datum]], records: ImageRecords, policy: str
) -> tuple[dict[str, list[int]], list[str]]:
    """Return the places in each list whose image does not decode, and a note that names them.

    Args:
        name: of the data set.
        policy: ``skip`` or ``refuse``.

    Raises:
        DataError: there are some and ``policy`` is ``refuse``; or files that do not exist.
    """
    found, lines = find_broken(lists, records)
    return found, say_broken(name, lines, policy)


def find_broken(
    lists: Mapping[str, Sequence[Datum]], records: ImageRecords
) -> tuple[dict[str, list[int]], list[str]]:
    """Return the places in each list whose image does not decode, and a word on each.

    Raises:
        DataError: files that do not exist.
    """
    found: dict[str, list[int]] = {}
    lines: list[str] = []
    for part, items in lists.items():
        reasons = records.find_broken(items, check_decodes)
        found[part] = sorted(reasons)
        lines += [f"{items[i].key} ({reason})" for i, reason in reasons.items()]
    return found, lines


def say_broken(name: str, lines: Sequence[str], policy: str) -> list[str]:
    """Return a note on broken images, at most one.

    Raises:
        DataError: there are some and ``policy`` is ``refuse``.
    """
    if not lines:
        return []
    named = "; ".join(lines[:_NAMED]) + ("; ..." if len(lines) > _NAMED else "")
    if policy == "refuse":
        raise DataError(
            f"{name}: {len(lines)} image(s) do not decode: {named}; "
            "replace them, or set DATASET.ON_CORRUPT skip"
        )
    return [f"{len(lines)} image(s) do not decode and are left out: {named}"]
