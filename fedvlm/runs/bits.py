"""Test images one by one: bits in few bytes of JSON, and how far apart two models are by them.

A bit says whether an image was classified right. ``"12:v/A="`` is 12 images, 8 to a byte, the first
in the highest bit, as base64. The images are in the order of the partition's test split
(``partition.json``), or of the global test set. Which image of the set each is, the places say:
``"3:AAABAAUA"`` is the places 0, 1 and 5, two bytes each (four from 65,536 on), the low byte first.

A margin is half a 95 % interval of the mean difference of two models over clients, in points: the
clients are fixed, their images are drawn. Where it is known image by image which of the two is
right, the images' differences give it (``paired_margin``), else the binomial variances of both
sides (``unpaired_margin``). ``fedvlm verify`` computes both again.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

PAIRED = "paired"  # section of the results: two names -> what is known image by image
LAST = "last"  # the run itself, beside names of baselines
IMAGE, GROUP = "image", "group"  # what is drawn
NORMAL = 1.96  # standard errors of a 95 % margin
PSEUDO = 2.0  # images added on which one model alone is right, one for each model
LEAST = 2.0  # degrees of freedom: below, the pseudo-images decide
CLOSE = 1e-9  # points
BITS = "image_bits"  # of a round's record: {"personal": {client: bits}, "shared": bits}
PLACES = "test_images"  # section of the results: {"of": checksum of the set's, client -> places}
WIDE = 1 << 16  # places that two bytes do not hold
Row = Mapping[str, Any]
Pairs = Sequence[tuple[Row, Row]]  # clients' rows of both models


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
    number, data = _split(text, "bits")
    bits = [bool(byte >> (7 - at) & 1) for byte in data for at in range(8)]
    if len(data) != -(-number // 8) or any(bits[number:]):
        raise ValueError(f"{text[:40]!r} has another number of bits than stated")
    return bits[:number]


def _split(text: str, what: str) -> tuple[int, bytes]:
    count, colon, coded = text.partition(":")
    if not (colon and count.isascii() and count.isdigit()):
        raise ValueError(f"{text[:40]!r} is not a row of {what}")
    try:
        return int(count), base64.b64decode(coded, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text[:40]!r} is not a row of {what} ({error})") from error


def encode_places(places: Sequence[int]) -> str:
    """Return places, each at least 0, as text."""
    width = 2 if max(places, default=0) < WIDE else 4
    data = b"".join(place.to_bytes(width, "little") for place in places)
    return f"{len(places)}:{base64.b64encode(data).decode()}"


def decode_places(text: str) -> list[int]:
    """Return the places of a text.

    Raises:
        ValueError: it is none, or has another number of places than stated.
    """
    number, data = _split(text, "places")
    width = 2 if len(data) == 2 * number else 4
    if len(data) != width * number:
        raise ValueError(f"{text[:40]!r} has another number of places than stated")
    return [int.from_bytes(data[at : at + width], "little") for at in range(0, len(data), width)]


def place_problems(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield clients whose test images are not as many as their rows say; nothing without places.

    Args:
        results: the section ``results`` of ``results.json``.
    """
    found = results.get(PLACES)
    if not isinstance(found, Mapping):
        return
    last = results.get("last")
    rows = last.get("clients", ()) if isinstance(last, Mapping) else ()
    counts = {str(row.get("client")): row.get("n") for row in rows}
    for client, text in found.get("clients", {}).items():
        try:
            places = decode_places(str(text))
        except ValueError as error:
            yield f"{PLACES}.{client}: {error}"
            continue
        if len(places) != counts.get(client):
            yield f"{PLACES}.{client} has {len(places)} images, its row {counts.get(client)}"


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


# ---- margins -----------------------------------------------------------------------------------
def unpaired_margin(pairs: Pairs) -> float:
    """Return the margin in points from the number of test images.

    Binomial, one success and one failure added to each count; both sides saw the same images, so
    their errors partly cancel and the interval is mostly wider than it has to be. Of sets of labels
    the count is that of the positives, at which precision is averaged: a rough guide.
    """
    if not pairs:
        return math.inf
    variances = [_variance(a) + _variance(b) for a, b in pairs]
    return NORMAL * 100.0 * math.sqrt(math.fsum(variances)) / len(pairs)


def paired_margin(pairs: Pairs, differ: Sequence[int]) -> float:
    """Return the margin in points from the images' differences, each image a draw of its own.

    An image's difference is 1, 0 or -1, so a client's counts and the number of images on which the
    models differ give its variance. A client of one image lends its distance to the mean.

    Args:
        pairs: with ``n`` and ``correct``; n > 0.
        differ: per client the images on which exactly one of the two models is right.
    """
    clients = len(pairs)
    sizes = [int(a["n"]) for a, _ in pairs]
    gaps = [float(a["correct"]) - float(b["correct"]) for a, b in pairs]
    centre = math.fsum(gap / n for gap, n in zip(gaps, sizes, strict=True)) / clients
    variances = []
    for n, gap, unlike in zip(sizes, gaps, differ, strict=True):
        mean = gap / n if n > 1 else centre
        squares = unlike - 2 * mean * gap + n * mean**2
        variances.append(squares * (n / (n - 1) if n > 1 else 1.0) / (clients * n) ** 2)
    cubes = math.fsum(1 / (clients * clients * clients * n * n) for n in sizes)
    shares = [1 / (clients * clients * n) for n in sizes]
    return margin_of(math.fsum(variances), cubes, freedom(shares, sizes, sum(sizes)))


def margin_of(variance: float, cubes: float, df: float) -> float:
    """Return 100 sqrt(t^2 variance + z^2 2 cubes): as if one image more were won and one lost.

    The second term keeps the margin above 0 where few images differ (Agresti and Min, Simple
    Improved Confidence Intervals for Comparing Matched Proportions, 2005, add such counts, too).

    Args:
        variance: of the mean difference, from the draws' differences.
        cubes: sum of the draws' weights, cubed; the weights' sum is 1.
        df: degrees of freedom of ``variance``.
    """
    return 100.0 * math.sqrt(student(df) ** 2 * max(variance, 0.0) + NORMAL**2 * PSEUDO * cubes)


def freedom(shares: Sequence[float], draws: Sequence[int], whole: int) -> float:
    """Return degrees of freedom, each client's share of the variance being known beforehand.

    Satterthwaite, An Approximate Distribution of Estimates of Variance Components (1946).

    Args:
        shares: per client the sum of its draws' squared weights.
        draws: per client its images, or groups of them.
        whole: how many different ones there are over all clients.
    """
    alone = (len(draws) - 1) / len(draws) or 1.0  # of clients with one: they share a mean
    squares = math.fsum(v * v / (n - 1 if n > 1 else alone)
                        for v, n in zip(shares, draws, strict=True))
    return max(min(math.fsum(shares) ** 2 / squares, whole - 1.0), LEAST)


def student(df: float) -> float:
    """Return the 97.5 % quantile of Student's t from 2 degrees of freedom on, within 1 %.

    Not SciPy's: ``fedvlm verify`` compares margins exactly, with whatever SciPy is installed.

    Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.7.5.
    """
    z = 1.959964
    terms = (
        z, (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / df**power for power, term in enumerate(terms))


def both_rows(mine: Sequence[Row], own: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return each client's two rows, where both have test images."""
    by_client = {row["client"]: row for row in own}
    pairs = [(row, by_client[row["client"]]) for row in mine if row["client"] in by_client]
    return [(a, b) for a, b in pairs if a["accuracy"] is not None and b["accuracy"] is not None]


def pair_name(one: str, other: str) -> str:
    """Return the name of two models in the section ``paired``."""
    return f"{one}|{other}"


def margin_between(results: Mapping[str, Any], one: str, other: str) -> tuple[float, str]:
    """Return the margin of two models of a run in points, and what was paired; '': nothing.

    Args:
        results: the section ``results`` of ``results.json``.
        one, other: ``last``, or names of baselines.
    """
    pairs = both_rows(*(_section(results, name).get("clients", ()) for name in (one, other)))
    found = (results.get(PAIRED) or {}).get(pair_name(one, other))
    if not found or not pairs:
        return unpaired_margin(pairs), ""
    if "margin" in found:
        return float(found["margin"]), str(found["by"])
    return paired_margin(pairs, [int(found["differ"][str(a["client"])]) for a, _ in pairs]), IMAGE


def client_margins(results: Mapping[str, Any], one: str, other: str) -> dict[int, float]:
    """Return ``margin_between`` of each client's own test images.

    Draws of several images are recorded over all clients only: a client's margin is as much wider
    than that of its images as the whole one is.
    """
    pairs = both_rows(*(_section(results, name).get("clients", ()) for name in (one, other)))
    found = (results.get(PAIRED) or {}).get(pair_name(one, other))
    if not found or not pairs:
        return {a["client"]: unpaired_margin([(a, b)]) for a, b in pairs}
    differ = [int(found["differ"][str(a["client"])]) for a, _ in pairs]
    wider = max(1.0, float(found.get("margin", 0.0)) / paired_margin(pairs, differ))
    return {pair[0]["client"]: wider * paired_margin([pair], [unlike])
            for pair, unlike in zip(pairs, differ, strict=True)}


def pair_problems(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield numbers of the section ``paired`` that the counts, or the bits, beside it refute."""
    for name, found in (results.get(PAIRED) or {}).items():
        sides = [_section(results, side) for side in str(name).split("|")]
        pairs = both_rows(*(side.get("clients", ()) for side in sides))
        differ = found["differ"]
        if found.get("by", IMAGE) not in (IMAGE, GROUP):
            yield f"{PAIRED}.{name} pairs {found['by']!r}, and not images or groups"
        if differ.keys() != {str(a["client"]) for a, _ in pairs}:
            yield f"{PAIRED}.{name} is of other clients than its rows"
            continue
        bits = [(side.get(BITS) or {}).get("personal") or {} for side in sides]
        for a, b in pairs:
            client = str(a["client"])
            unlike, n, right = differ[client], a["n"], (a["correct"], b["correct"])
            most = min(sum(right), 2 * n - sum(right))
            gap = abs(right[0] - right[1])
            if type(unlike) is not int or not gap <= unlike <= most or (unlike - gap) % 2:
                yield (f"{PAIRED}.{name}: {unlike!r} images of client {client} differ, with "
                       f"{right[0]} and {right[1]} right of {n}")
            elif all(client in side for side in bits):
                told = sum(x != y for x, y in zip(
                    *(decode_bits(str(side[client])) for side in bits), strict=True))
                if told != unlike:
                    yield (f"{PAIRED}.{name}: {unlike} images of client {client} differ, their "
                           f"bits give {told}")
        images = sum(int(a["n"]) for a, _ in pairs)
        least = margin_of(0.0, 1 / max(images, 1) ** 2, LEAST)  # all images differ alike
        if "margin" in found and not least - CLOSE <= found["margin"] < math.inf:
            yield f"{PAIRED}.{name}: the margin {found['margin']} is below that of its images"


def _section(results: Mapping[str, Any], name: str) -> Row:
    section = results[LAST] if name == LAST else (results.get("references") or {})[name]
    return section if isinstance(section, Mapping) else {}


def _variance(row: Row) -> float:
    n = float(row.get("positives") or row["n"])
    share = (n * float(row["accuracy"]) / 100.0 + 1) / (n + 2)
    return share * (1 - share) / n
