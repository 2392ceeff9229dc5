"""What test images add to an interval: all seeds of a data set are tested on the same ones.

Results of format 2 may keep a bit per test image (``TEST.PER_IMAGE``; ``fedvlm.runs.bits``): then
two methods are compared image by image, across seeds where results say which image of the set each
is (``test_images``). Otherwise the variance is bounded from
above: by all that images do in one seed, or, where results count right answers per client, by
methods whose errors are independent.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from fedvlm.core.rng import numpy_stream
from fedvlm.report.statistics.intervals import LEVEL, Component
from fedvlm.runs.bits import BITS, decode_bits, decode_places

RESAMPLES = 2000
T = TypeVar("T")


@dataclass(frozen=True)
class ClientAnswers:
    """A client's test images, how many were classified right, which, and what they are called.

    ``bits`` and ``names`` are () where not kept. A name is the image's place, or its group's (a
    patient), in a list of test images: images of one name are one draw. ``listed`` is that list's
    checksum: names of different lists say nothing of each other.
    """

    images: int
    right: float
    bits: tuple[bool, ...] = ()
    names: tuple[Hashable, ...] = ()
    listed: str = ""


Answers = Mapping[str, ClientAnswers]  # client -> its answers


def answers_of(
    record: Mapping[str, Any], images: Mapping[str, Any] | None = None
) -> dict[str, ClientAnswers]:
    """Return what each client answered by a round's record, or by a baseline's section.

    Empty of a record without clients' rows. Damaged bits count as not kept (``fedvlm verify``
    names them).

    Args:
        images: the run's section ``test_images``, which names them.
    """
    found = record.get(BITS)
    kept = found.get("personal") if isinstance(found, Mapping) else None
    places, listed = (images or {}).get("clients"), str((images or {}).get("of") or "")
    rows = record.get("clients")
    out = {}
    for row in rows if isinstance(rows, list) else ():
        client, count, right = (row.get(key) for key in ("client", "n", "correct"))
        if not count or right is None:
            continue
        bits = _decoded(decode_bits, kept, client, count)
        named = _decoded(decode_places, places, client, count) if bits and listed else ()
        out[str(client)] = ClientAnswers(int(count), float(right), bits, named, listed)
    return out


def _decoded(
    decode: Callable[[str], list[T]], texts: Any, client: Any, count: int
) -> tuple[T, ...]:
    """Return what a client's text says of its ``count`` images; () of none, or a damaged one."""
    if not isinstance(texts, Mapping) or str(client) not in texts:
        return ()
    try:
        found = tuple(decode(str(texts[str(client)])))
    except ValueError:
        return ()
    return found if len(found) == count else ()


def image_component(
    a: Mapping[Any, Answers], b: Mapping[Any, Answers]
) -> tuple[Component, bool] | None:
    """Return the variance that test images give to the difference of two ``personal``, points^2.

    ``personal`` is the unweighted mean over clients, so a client's images weigh 1 / (clients x
    images). Seeds share their test images; what a seed alone does to an image is in the variance
    over seeds. Where all images of all seeds are named in one list, the part that images keep over
    seeds is estimated: the products of two seeds' deviations on the same image. Elsewhere it is the
    mean over the seeds of the whole variance of the images, which is never too small where these
    are draws of their own; where a seed names them, images of one name are one draw. Of counts it
    is that of independent errors, p(1 - p) of both methods summed.

    Args:
        a, b: seed -> answers; only common seeds count. One side's names are enough.

    Returns:
        The component and whether it is estimated image by image; None where a seed's clients or
        images differ.
    """
    parts, draws = [], []
    summed: dict[Hashable, list[float]] = {}  # name -> its weighted deviation in each seed
    seeds = a.keys() & b.keys()
    lists: set[str | None] = set()
    for seed in sorted(seeds, key=str):
        one, other = a[seed], b[seed]
        if not one or one.keys() != other.keys():
            return None
        total, deviations = 0.0, dict[Hashable, float]()
        scaled, alone = dict[Hashable, float](), 0
        for client, mine in one.items():
            theirs = other[client]
            if mine.images != theirs.images:
                return None
            if mine.bits and theirs.bits:
                gaps = np.subtract(theirs.bits, mine.bits, dtype=float)
                gaps = (gaps - gaps.mean()) / gaps.size
                free = (gaps.size / max(gaps.size - 1, 1)) ** 0.5
                named = _named(mine, theirs)
                lists.add(named.listed if named else None)
                for at, gap in enumerate(gaps.tolist()):
                    name = named.names[at] if named else (client, at)
                    scaled[name] = scaled.get(name, 0.0) + gap * free / len(one)
                    if named:
                        deviations[name] = deviations.get(name, 0.0) + gap / len(one)
            else:
                lists.add(None)
                alone += mine.images
                rates = (mine.right / mine.images, theirs.right / theirs.images)
                total += sum(p * (1 - p) for p in rates) / mine.images / len(one) ** 2
        for name, gap in deviations.items():
            summed.setdefault(name, []).append(gap)
        parts.append((total + sum(gap**2 for gap in scaled.values())) * 100**2)
        draws.append(len(scaled) + alone)
    if not parts:
        return None
    if len(lists) == 1 and None not in lists and len(parts) > 1:
        pairs = [sum(each) ** 2 - sum(gap**2 for gap in each) for each in summed.values()]
        kept = 100**2 * sum(pairs) / (len(parts) * (len(parts) - 1))
        return Component(max(kept, 0.0), max(1.0, len(summed) - 1.0)), True
    return Component(float(np.mean(parts)), max(1.0, min(draws) - 1.0)), False


def _named(mine: ClientAnswers, theirs: ClientAnswers) -> ClientAnswers | None:
    """Return the side that names a client's images; None: neither, or they contradict."""
    if mine.names and theirs.names and (mine.names, mine.listed) != (theirs.names, theirs.listed):
        return None
    return next((one for one in (mine, theirs) if one.names), None)


def bootstrap_images(
    a: Mapping[Any, Answers], b: Mapping[Any, Answers], resamples: int = RESAMPLES
) -> tuple[float, float, float]:
    """Return the difference of two ``personal`` in points, and its 95 % bootstrap interval.

    Crossed: each resample draws seeds, and images (or groups of them), with replacement, both
    methods with the same draw (Owen, The Pigeonhole Bootstrap, 2007). The stream is a function of
    the sizes alone. How to read runs::

        answers = {run.protocol["data_seed"]: answers_of(run.last, run.section("test_images"))
                   for run in collect([Path("output")]).runs if run.method == "Ditto"}

    Args:
        a, b: seed -> answers with bits; the difference is b - a. An image (or group) whose name
            appears in several seeds is drawn in all of them together; without names the images of
            two seeds count as different ones.

    Raises:
        ValueError: no common seed, other clients or images, or answers without bits.
    """
    seeds = sorted(a.keys() & b.keys(), key=str)
    if not seeds:
        raise ValueError("no seed in common")
    places: dict[Hashable, int] = {}
    rows = []  # per seed and client: the gaps of its images, and their places among all draws
    for seed in seeds:
        if a[seed].keys() != b[seed].keys():
            raise ValueError(f"seed {seed}: the clients differ")
        for client, mine in a[seed].items():
            theirs = b[seed][client]
            if not mine.bits or len(mine.bits) != len(theirs.bits):
                raise ValueError(f"seed {seed}, client {client}: no bit per test image")
            named = _named(mine, theirs)
            labels = [(named.listed, name) for name in named.names] if named else [
                (seed, client, at) for at in range(mine.images)]
            at = np.array([places.setdefault(label, len(places)) for label in labels])
            rows.append((seed, np.subtract(theirs.bits, mine.bits, dtype=float), at))
    stream = numpy_stream(0, "report.statistics.images", len(places), len(seeds), resamples)
    even = np.full(len(places), 1 / len(places))
    weights = stream.multinomial(len(places), even, resamples)  # resamples x draws
    of_seed: dict[Any, list[np.ndarray]] = {seed: [] for seed in seeds}
    for seed, gaps, at in rows:
        drawn = weights[:, at]
        total = drawn.sum(axis=1)
        drawn = np.where(total > 0, drawn @ gaps / np.maximum(total, 1), gaps.mean())
        of_seed[seed].append(drawn)
    table = 100 * np.stack([np.mean(each, axis=0) for each in of_seed.values()])
    which = stream.integers(0, len(seeds), (resamples, len(seeds)))
    means = table[which, np.arange(resamples)[:, None]].mean(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    centre = np.mean([np.mean([gaps.mean() for owner, gaps, _ in rows if owner == seed])
                      for seed in seeds])
    return 100 * float(centre), float(low), float(high)
