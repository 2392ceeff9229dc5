"""Groups of images (a patient's, a slide's) that stand on one side of whatever is cut or dealt.

Where images would be dealt one by one, groups are placed whole: the largest first, each where its
images are most wanted, so that the numbers wanted are met as nearly as whole groups allow.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedvlm.core.errors import DataError
from fedvlm.core.rng import numpy_stream
from fedvlm.core.spelling import quote_name
from fedvlm.data.datum import PARTS, Datum, IntArray, group_numbers

FloatArray = NDArray[np.float64]
_SEED = 0
_FIRST = 3  # groups that a message names


def place_groups(
    counts: IntArray, wanted: IntArray | FloatArray
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


def cut_whole(
    items: Sequence[Datum], shares: Sequence[float], seed: int = _SEED
) -> list[list[Datum]]:
    """Cut a list into parts, groups whole, so that each class of each client is cut by ``shares``.

    Args:
        items: images; one without a group is a group of its own.
        shares: of the parts; they sum to 1.
        seed: of the order in which equal groups come.
    """
    items = sorted(items, key=lambda d: d.key)
    numbers, kinds = group_numbers(items), _kinds(items)
    distinct, counts = table_of(numbers, kinds)
    order = numpy_stream(seed, "whole-groups").permutation(len(distinct))
    wanted = np.outer(np.asarray(shares), counts.sum(axis=0))
    places = np.empty(len(distinct), dtype=np.int64)
    places[order] = place_groups(counts[order], wanted)
    at = places[np.searchsorted(distinct, numbers)]
    return [[d for d, p in zip(items, at, strict=True) if p == part] for part in range(len(shares))]


def _kinds(items: Sequence[Datum]) -> IntArray:
    """Number what is cut evenly: the classes of each client and domain."""
    keys: list[Hashable] = [(d.client, d.domain, d.label) for d in items]
    number = {key: i for i, key in enumerate(sorted(set(keys)))}  # type: ignore[type-var]
    return np.array([number[key] for key in keys], dtype=np.int64)


def keep_whole(
    shares: Mapping[str, Sequence[IntArray]], groups: Mapping[str, IntArray],
    labels: Mapping[str, IntArray],
) -> dict[str, list[IntArray]]:
    """Return a partition with every group at one client, in numbers near to those it had.

    Args:
        shares: by part the positions of each client.
        groups, labels: group number and label of each position, by part.
    """
    whole: dict[str, list[IntArray]] = {}
    for part, clients in shares.items():
        used = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *clients]))
        if not len(used):
            whole[part] = list(clients)
            continue
        own, kinds = groups[part][used], labels[part][used]
        distinct, counts = table_of(own, kinds)
        wanted = np.array([np.bincount(labels[part][a], minlength=counts.shape[1])
                           for a in clients])
        at = place_groups(counts, wanted)[np.searchsorted(distinct, own)]
        whole[part] = [used[at == j] for j in range(len(clients))]
    return whole


def refuse_torn(parts: Mapping[str, Sequence[Datum]], where: str) -> None:
    """Refuse lists in which a group stands on two sides, or at two clients.

    Raises:
        DataError: names the first such group and what would settle it.
    """
    side: dict[str, set[str]] = {}
    holder: dict[str, set[str]] = {}
    for part in PARTS:
        for d in parts[part]:
            if d.group is not None:
                side.setdefault(d.group, set()).add(part)
                if d.client:
                    holder.setdefault(d.group, set()).add(d.client)
    torn = sorted(g for g, names in holder.items() if len(names) > 1)
    if torn:
        a, b, *_ = sorted(holder[torn[0]])
        raise DataError(
            f"{where}: --groups: {len(torn)} group(s) have images at two clients (first: "
            f"{quote_name(torn[0])}, at {quote_name(a)} and {quote_name(b)}); if every client "
            "numbers its groups anew, name both columns (--groups CLIENT_COLUMN,GROUP_COLUMN); if "
            "they are the same, give the group to one client in the table"
        )
    torn = sorted(g for g, names in side.items() if len(names) > 1)
    if torn:
        names = " and ".join(p for p in PARTS if p in side[torn[0]])
        shown = ", ".join(quote_name(g) for g in torn[:_FIRST])
        raise DataError(
            f"{where}: --groups: {len(torn)} group(s) stand on two sides of the split (first: "
            f"{shown}; in {names}): mend the split, or let fedvlm cut it by groups (a table: "
            "--columns split=-)"
        )
