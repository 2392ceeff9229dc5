"""Clients' images without a label: who trains on them.

Only a method that says so does (``Trainer.unlabelled``); every other run is that of the same data
without them, to the bit. Nothing is ever measured on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.datum import refuse_targets
from fedvlm.data.federated import ClientSplit, FederatedData
from fedvlm.data.locate import first_names

_FIRST = 5  # clients that a message lists


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
    if data.without_labels:
        names = [data.client_names[c] if data.client_names else str(c)
                 for c in data.without_labels]
        raise DataError(
            f"client(s) {first_names(names, _FIRST)} have only images without a label, and "
            f"{method} needs labels: train with --trainer SAGE, or take these clients out")
    keep = len(data.samples) - count
    return replace(
        data, samples=data.samples[:keep], labels=data.labels[:keep], domains=data.domains[:keep],
        groups=None if data.groups is None else data.groups[:keep],
        clients=[replace(client, unlabelled=client.unlabelled[:0]) for client in data.clients],
        notes=[*data.notes, f"{method} trains on images with a label only: the {count:,} without "
               "are left out (--trainer SAGE uses them)"],
    )


def taught(clients: Sequence[ClientSplit]) -> list[ClientSplit]:
    """Return splits whose training images are all that a client trains on, unlabelled ones last."""
    return [replace(c, train=np.concatenate([c.train, c.unlabelled])) for c in clients]
