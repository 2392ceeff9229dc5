"""A bit for each test image: whether it was classified right, in few bytes of JSON.

``"12:v/A="`` is 12 images, 8 to a byte, the first in the highest bit, as base64. The images are in
the order of the partition's test split (``partition.json``), or of the global test set.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

BITS = "image_bits"  # of a round's record: {"personal": {client: bits}, "shared": bits}


def encode_bits(right: Sequence[bool]) -> str:
    """Return bits as text."""
    padded = [*map(bool, right), *[False] * (-len(right) % 8)]
    data = bytes(
        sum(bit << (7 - at) for at, bit in enumerate(padded[start : start + 8]))
        for start in range(0, len(padded), 8)
    )
    return f"{len(right)}:{base64.b64encode(data).decode()}"


def decode_bits(text: str) -> list[bool]:
    """Return the bits of a text.

    Raises:
        ValueError: it is none, or has another number of bits than stated.
    """
    count, colon, coded = text.partition(":")
    if not (colon and count.isascii() and count.isdigit()):
        raise ValueError(f"{text[:40]!r} is not a row of bits")
    try:
        data = base64.b64decode(coded, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text[:40]!r} is not a row of bits ({error})") from error
    number = int(count)
    bits = [bool(byte >> (7 - at) & 1) for byte in data for at in range(8)]
    if len(data) != -(-number // 8) or any(bits[number:]):
        raise ValueError(f"{text[:40]!r} has another number of bits than stated")
    return bits[:number]


def bit_problems(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield where a record's bits and its numbers disagree; nothing where it has no bits."""
    found = record.get(BITS)
    if not isinstance(found, Mapping):
        return
    personal = found.get("personal")
    rows = {str(row.get("client")): row for row in record.get("clients", ())}
    for client, text in (personal.items() if isinstance(personal, Mapping) else ()):
        row = rows.get(client, {})
        yield from _disagreement(f"personal.{client}", text, row.get("n"), row.get("correct"))
    if "shared" in found:
        total = record.get("global")
        yield from _disagreement("shared", found["shared"], None, None, total)


def _disagreement(
    place: str, text: Any, count: Any, correct: Any, percent: Any = None
) -> Iterator[str]:
    try:
        bits = decode_bits(str(text))
    except ValueError as error:
        yield f"{BITS}.{place}: {error}"
        return
    if percent is not None and bits:
        correct, count = percent * len(bits) / 100, len(bits)
    if count is not None and (len(bits) != count or abs(sum(bits) - correct) > 1e-6):
        yield f"{BITS}.{place} has {sum(bits)} right of {len(bits)}, its row {correct:g} of {count}"
