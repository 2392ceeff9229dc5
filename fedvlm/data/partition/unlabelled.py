"""Clients' images without a label: whose they are.

Where the data name the clients, an image is its client's. Elsewhere they are dealt evenly, at
random by DATA_SEED: they have no class by which a partition could deal them.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import user_path
from fedvlm.core.rng import numpy_stream
from fedvlm.data.datum import Datum
from fedvlm.data.draw import DatasetDraw
from fedvlm.data.images import find_broken, say_broken
from fedvlm.data.partition.index_file import UNLABELLED, name_in


def deal_unlabelled(
    selection: DatasetDraw, content: Mapping[str, Any] | None, where: str
) -> list[list[Datum]]:
    """Return each client's images without a label, those that decode; notes go to ``selection``.

    Args:
        content: of the index file that says the partition; None: the config says it.
        where: the index file.

    Raises:
        ConfigError: groups, and nothing that says whose an image is.
        DataError: an index file that names other images; images that do not exist, or do not
            decode where that is refused.
    """
    data, spec = selection.data, selection.spec
    items = sorted((d for d in data.unlabelled if d.domain != selection.held_out),
                   key=lambda d: d.key)
    places, reasons = find_broken({"train": items}, selection.records)
    selection.notes += say_broken(data.name, reasons, selection.policy)
    bad = set(places["train"])
    selection.skipped += [items[i].key for i in bad]
    items = [d for i, d in enumerate(items) if i not in bad]
    shares: list[list[Datum]] = [[] for _ in range(spec.clients)]
    how = ""
    if content is not None:
        name_of = name_in(content, user_path(where))
        owner = {key: c for c, client in enumerate(content["clients"])
                 for key in client.get(UNLABELLED, ())}
        _check_names(content, {name_of(d.key) for d in data.unlabelled}, where)
        for d in items:
            if name_of(d.key) in owner:
                shares[owner[name_of(d.key)]].append(d)
        how = "; the index file says whose they are"
    elif spec.kind == "natural":
        number = {name: c for c, name in enumerate(data.client_names)}
        for d in items:
            shares[number[d.client]].append(d)
    else:
        if any(d.group is not None for d in items):
            raise ConfigError(
                "images without a label and DATASET.GROUPS: nothing says which client a group's "
                "images are dealt to; name the clients with --clients-by COLUMN")
        order = numpy_stream(spec.seed, "unlabelled").permutation(len(items))
        for at, i in enumerate(order.tolist()):
            shares[at % spec.clients].append(items[i])
        how = "; they have no class, so they are dealt evenly, at random by DATA_SEED"
    selection.notes.append(f"{sum(map(len, shares)):,} images without a label at "
                           f"{sum(map(bool, shares))} clients{how}")
    return [sorted(share, key=lambda d: d.key) for share in shares]


def _check_names(content: Mapping[str, Any], known: AbstractSet[str], where: str) -> None:
    """Refuse an index file that names an image without a label twice, or one that is not there."""
    seen: set[str] = set()
    for number, client in enumerate(content["clients"]):
        for name in client.get(UNLABELLED, ()):
            if name not in known:
                raise DataError(f"{where}: client {number} names '{name}' without a label, and the "
                                "set has no such image without a label")
            if name in seen:
                raise DataError(f"{where}: '{name}' is named twice among the images without a "
                                "label")
            seen.add(name)
