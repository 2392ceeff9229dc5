"""Whole groups put where their members are most wanted: into parts, folds, or clients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


def place_groups(
    counts: IntArray, wanted: IntArray | NDArray[np.float64]
) -> IntArray:
    """Return the place of each group, ``[G]``: greedy, the largest first, ties by their order.

    Args:
        counts: images of each group by kind, ``[G, S]``.
        wanted: images that each place should get by kind, ``[P, S]``.
    """
    left = np.asarray(wanted, dtype=np.float64).copy()
    places = np.zeros(len(counts), dtype=np.int64)
    for g in np.argsort(-counts.sum(axis=1), kind="stable"):
        places[g] = int((left @ counts[g]).argmax())
        left[places[g]] -= counts[g]
    return places


def table_of(numbers: IntArray, kinds: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct group numbers ``[G]`` and their images by kind, ``[G, S]``."""
    distinct, at = np.unique(numbers, return_inverse=True)
    table = np.zeros((len(distinct), int(kinds.max(initial=-1)) + 1), dtype=np.int64)
    np.add.at(table, (at, kinds), 1)
    return distinct, table


def folds_of(groups: IntArray, kinds: IntArray, folds: int) -> IntArray:
    """Return a fold for each member, ``[n]``: groups whole, each kind spread evenly.

    Args:
        groups: group of each member, ``[n]``.
        kinds: its class, from 0.
    """
    distinct, counts = table_of(groups, kinds)
    wanted = np.repeat(counts.sum(axis=0, keepdims=True) / folds, folds, axis=0)
    return place_groups(counts, wanted)[np.searchsorted(distinct, groups)]
