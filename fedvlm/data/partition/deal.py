"""What the kinds share: proportions, proportions to whole images, the dealing, and refusals.

A table of proportions or numbers is ``[C, K]``: classes by clients.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedvlm.core.errors import ConfigError
from fedvlm.data.datum import PARTS, IntArray
from fedvlm.data.partition.spec import PartitionSpec

FloatArray = NDArray[np.float64]
NEGLIGIBLE = 1e-12
HIGHEST_BETA = 1e12  # proportions are equal to 1e-6 there; numpy's draw overflows further up
_NEARLY = 1e-9  # 2.9999999999 images are 3


def proportions(beta: float, n: int, rng: np.random.Generator) -> FloatArray:
    """Draw ``[n]`` proportions from Dir(beta); where the draw underflows its limit, one of n."""
    row = np.nan_to_num(rng.dirichlet(np.full(n, min(beta, HIGHEST_BETA))))
    if row.sum() < NEGLIGIBLE:
        row[:] = 0.0
        row[rng.integers(n)] = 1.0
    return np.asarray(row / row.sum(), dtype=np.float64)


def cut_counts(shares: FloatArray, counts: IntArray) -> IntArray:
    """Return whole numbers of images ``[C, K]``: cumulative shares times counts, cut down."""
    ends = np.floor(np.cumsum(shares, axis=1) * counts[:, None] + _NEARLY).astype(np.int64)
    ends[:, -1] = counts
    ends = np.minimum(ends, counts[:, None])
    return np.diff(ends, axis=1, prepend=0)


def cut_evenly(shares: FloatArray, counts: IntArray, least: int = 0) -> IntArray:
    """Return whole numbers of images ``[C, K]`` that keep each client's total near its share.

    The images of a class that rounding down leaves go to the clients to which the classes so far
    owe most. A client gets nothing of a class of which its share is 0.

    Args:
        shares: rows that sum to 1.
        counts: images per class ``[C]``.
        least: images first given to each client with a share, where the class has enough.
    """
    table = np.zeros(shares.shape, dtype=np.int64)
    owed = np.zeros(shares.shape[1])
    for c, row in enumerate(shares):
        holders = row > 0
        each = least if counts[c] >= least * holders.sum() else 0
        left = counts[c] - each * holders.sum()
        whole = np.floor(row * left + _NEARLY).astype(np.int64)
        owed += row * left - whole
        next_ = np.argsort(np.where(holders, -owed, np.inf), kind="stable")[: left - whole.sum()]
        whole[next_] += 1
        owed[next_] -= 1
        table[c] = whole + each * holders
    return table


def fill_empty_clients(table: IntArray, shares: FloatArray) -> IntArray:
    """Return the table with an image moved to each client that has none, where there is one.

    The image is of a class in which the client has a share, and comes from the richest client
    that holds it and keeps another.
    """
    table = table.copy()
    for client in np.flatnonzero(table.sum(axis=0) == 0):
        able = (table > 0) & (shares[:, client] > 0)[:, None] & (table.sum(axis=0) > 1)
        if able.any():
            giver = int(np.where(able.any(axis=0), table.sum(axis=0), 0).argmax())
            c = int(np.where(able[:, giver], table[:, giver], 0).argmax())
            table[c, giver] -= 1
            table[c, client] += 1
    return table


def deal(
    labels: Mapping[str, IntArray], sizes: Mapping[str, IntArray], rng: np.random.Generator
) -> dict[str, list[IntArray]]:
    """Shuffle each class and give every client its number of images of it.

    Args:
        sizes: by part, whole numbers ``[C, K]`` whose rows sum to the images of the class.

    Returns:
        By part, the positions of each client.
    """
    shares: dict[str, list[IntArray]] = {}
    for part in PARTS:
        pieces: list[list[IntArray]] = [[] for _ in range(sizes[part].shape[1])]
        for c, row in enumerate(sizes[part]):
            order = rng.permutation(np.flatnonzero(labels[part] == c))
            for j, piece in enumerate(np.split(order, np.cumsum(row)[:-1])):
                pieces[j].append(piece)
        empty = np.zeros(0, dtype=np.int64)
        shares[part] = [np.concatenate([empty, *client]) for client in pieces]
    return shares


def check_enough(
    totals: Mapping[str, int], spec: PartitionSpec, clients: int, where: str, kind: str
) -> None:
    """Refuse too few images for ``spec.min_size`` training images and a test image each.

    Args:
        totals: images by part.
        where: words for the message, `` of domain 'x'`` or nothing.
        kind: of the samples, ``image`` or ``text``.

    Raises:
        ConfigError: says what to change.
    """
    for part, least in (("train", spec.min_size), ("test", 1)):
        if not totals[part]:
            raise ConfigError(no_images(part, kind, where))
        if totals[part] < least * clients:
            raise ConfigError(
                f"{totals[part]} {part} {kind}s{where} cannot give {clients} clients "
                f"{least} each; use fewer FED.CLIENTS"
                + (" or a lower FED.MIN_SIZE" if part == "train" and spec.min_size > 1 else "")
            )


def no_images(part: str, kind: str, where: str = "") -> str:
    """Return the message for a part of the set, or of one of its domains, without any sample."""
    return (
        f"there are no {part} {kind}s{where} to deal: give classes more {kind}s, or use another "
        "DATASET.SPLIT_FILE or DATASET.SUBSAMPLE_CLASSES"
        + (", or FED.HELD_OUT_DOMAIN to leave it out" if where else "")
    )


def fewer_clients(limit: int) -> str:
    """Return ``FED.CLIENTS 1 to 5`` or ``FED.CLIENTS 1``."""
    return "FED.CLIENTS 1" if limit <= 1 else f"FED.CLIENTS 1 to {limit}"
