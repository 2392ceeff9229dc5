"""Clients' images without a label: whose they are, and who trains on them.

Only a method that says so trains on them (``Trainer.unlabelled``); every other run is that of the
same data without them, to the bit. Nothing is ever measured on them.

Where the data name the clients, an image is its client's. Elsewhere they are dealt evenly, at
random by DATA_SEED: they have no class by which a partition could deal them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import user_path
from fedvlm.core.rng import numpy_stream
from fedvlm.data.datum import Datum, refuse_targets
from fedvlm.data.draw import DatasetDraw
from fedvlm.data.images import find_broken, say_broken
from fedvlm.data.locate import first_names
from fedvlm.data.partition.index_file import UNLABELLED, name_in

if TYPE_CHECKING:
    from fedvlm.data.federated import ClientSplit, FederatedData

_FIRST = 5  # clients that a message lists


def deal_unlabelled(
    selection: DatasetDraw, content: Mapping[str, Any] | None, where: str
) -> list[list[Datum]]:
    """Return each client's images without a label, those that decode; notes go to ``selection``.

    Args:
        content: of the index file that says the partition; None: the config says it.
        where: the index file.

    Raises:
        ConfigError: groups, and nothing that says whose an image is.
        DataError: images that do not exist, or do not decode where that is refused.
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


def for_method(
    data: FederatedData, taken: bool, method: str, attack: str = ""
) -> FederatedData:
    """Return the data as a method trains on them.

    Args:
        taken: the method trains on images without a label, too.
        attack: of hostile clients, where there are any (FED.ATTACK).

    Raises:
        ConfigError: it does, and the run leaves out classes, which these images may show, or
            hostile clients change classes.
        DataError: it does not, and a client has no other image.
    """
    count = sum(len(client.unlabelled) for client in data.clients)
    if taken and data.spec.half != "all":
        raise ConfigError(
            f"DATASET.SUBSAMPLE_CLASSES {data.spec.half}: images without a label may show classes "
            "that this run leaves out, so no method can train on them here: use all classes, or "
            "another method, which leaves them out")
    if taken:
        refuse_targets(f"FED.ATTACK {attack}", unlabelled=attack in ("label_flip", "backdoor"))
        return data
    bare = [c for c, client in enumerate(data.clients)
            if len(client.unlabelled) and not len(client.train)]
    if bare:
        names = [data.client_names[c] if data.client_names else str(c) for c in bare]
        raise DataError(
            f"client(s) {first_names(names, _FIRST)} have only images without a label, and "
            f"{method} needs labels: train with --trainer SAGE, or take these clients out")
    keep = len(data.samples) - len(unlabelled_of(data))
    return replace(
        data, samples=data.samples[:keep], labels=data.labels[:keep], domains=data.domains[:keep],
        groups=None if data.groups is None else data.groups[:keep],
        clients=[replace(client, unlabelled=client.unlabelled[:0]) for client in data.clients],
        notes=[*data.notes, f"{method} trains on images with a label only: the {count:,} without "
               "are left out (--trainer SAGE uses them)"],
    )


def unlabelled_of(data: FederatedData) -> list[int]:
    """Return the indices of all clients' images without a label, ascending."""
    return sorted(int(i) for client in data.clients for i in client.unlabelled)


def taught(clients: Sequence[ClientSplit]) -> list[ClientSplit]:
    """Return splits whose training images are all that a client trains on, unlabelled ones last."""
    return [replace(c, train=np.concatenate([c.train, c.unlabelled])) for c in clients]
