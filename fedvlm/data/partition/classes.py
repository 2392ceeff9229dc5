"""Class skew: each client holds some classes only ("pathological").

``disjoint``: no class at two clients, unless ``repeat_rate`` shares some of them with all.
``n_classes``: every client holds exactly n classes, every class has a client.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from fedvlm.core.errors import ConfigError
from fedvlm.core.rng import numpy_stream
from fedvlm.data.datum import PARTS, IntArray
from fedvlm.data.partition.deal import cut_evenly, deal, fewer_clients, fill_empty_clients
from fedvlm.data.partition.spec import ImagePool, Partition, PartitionSpec

LEGACY_SEED = 2023  # the family seeds Python's generator with it, whatever the run's seed
_SHARES = (0.4, 0.6)


def check_disjoint(
    spec: PartitionSpec, num_classes: int, all_classes: int | None = None, copy: str = ""
) -> None:
    """Refuse a disjoint partition with fewer classes than clients, before any image is read.

    Args:
        all_classes: classes of the whole set where the run uses base or new ones.
        copy: what the images lack of the published set (``catalog.missing_classes``).

    Raises:
        ConfigError: it does not fit; the message names the choices that do.
    """
    common = int(spec.repeat_rate * num_classes)
    if common == 0 and num_classes < spec.clients:
        choices = [fewer_clients(num_classes)]
        if all_classes is not None and all_classes >= spec.clients and all_classes > num_classes:
            choices.append(f"DATASET.SUBSAMPLE_CLASSES all ({all_classes} classes)")
        choices.append("FED.PARTITION dirichlet or iid")
        raise ConfigError(
            f"FED.PARTITION disjoint cannot deal {num_classes} classes to {spec.clients} clients"
            + (f": {copy}; use the published set, or " if copy else "; use ")
            + ", or ".join(choices)
        )
    if spec.legacy:
        _legacy_map(num_classes, spec.clients)


def class_map(num_classes: int, spec: PartitionSpec) -> list[list[int]]:
    """Return the classes each client holds under the disjoint partition.

    By default class ids are shuffled with DATA_SEED and the remainder is spread evenly. With
    ``legacy`` ids 0..C-1 are shuffled by ``random.Random(2023)``, each client gets int(round(C/K)),
    the last one the rest, whatever the seed (the published repositories' rule). With a
    ``repeat_rate`` the first int(rate * C) shuffled classes are common to all clients.

    Raises:
        ConfigError: as ``check_disjoint``.
    """
    check_disjoint(spec, num_classes)
    if spec.legacy:
        return _legacy_map(num_classes, spec.clients)
    order = numpy_stream(spec.seed, "partition", "classes").permutation(num_classes)
    common = int(spec.repeat_rate * num_classes)
    shares = np.array_split(order[common:], spec.clients)
    return [sorted(int(c) for c in (*order[:common], *share)) for share in shares]


def _legacy_map(num_classes: int, clients: int) -> list[list[int]]:
    order = list(range(num_classes))
    random.Random(LEGACY_SEED).shuffle(order)  # noqa: S311 (the family's stream, kept private)
    each = int(round(num_classes / clients))
    bounds = [*(each * j for j in range(clients)), num_classes]
    shares = [order[lo:hi] for lo, hi in zip(bounds, bounds[1:], strict=False)]
    empty = [j for j, classes in enumerate(shares) if not classes]
    if empty:
        raise ConfigError(
            f"FED.LEGACY: {num_classes} classes, {each} to each of {clients} clients, leave "
            f"client {empty[0]} with none; set FED.LEGACY False or use another FED.CLIENTS"
        )
    return [sorted(classes) for classes in shares]


def disjoint(pool: ImagePool, spec: PartitionSpec) -> Partition:
    """Deal classes, not images ("pathological"): a client holds all images of its classes.

    Training and validation images of a class that all clients hold (``repeat_rate``) are dealt
    evenly, so that every one is used once; its test images are in every client's test set.

    Raises:
        ConfigError: as ``check_disjoint``, or classes that all share have too few training images
            for clients without a class of their own.
    """
    shares = _class_shares(pool, spec)
    empty = [j for j, share in enumerate(shares["train"]) if not len(share)]
    common = int(spec.repeat_rate * pool.num_classes)
    if empty and common and not spec.legacy:
        _refuse_thin(pool, spec, len(empty), common)
    return Partition.of(shares)


def _refuse_thin(pool: ImagePool, spec: PartitionSpec, empty: int, common: int) -> None:
    """Say how many clients the shared classes have images for; pass where no number helps."""
    for fewer in range(spec.clients - 1, 0, -1):
        shares = _class_shares(pool, replace(spec, clients=fewer))
        if all(len(share) for share in shares["train"]):
            raise ConfigError(
                f"FED.PARTITION disjoint with FED.REPEAT_RATE {spec.repeat_rate:g}: "
                f"{pool.num_classes} classes, {common} of them dealt to all, leave {empty} of "
                f"{spec.clients} clients without a training image; use FED.CLIENTS {fewer}, or "
                "more DATASET.NUM_SHOTS"
            )


def _class_shares(pool: ImagePool, spec: PartitionSpec) -> dict[str, list[IntArray]]:
    """Return by part the positions of each client; some may have none."""
    classes = class_map(pool.num_classes, spec)
    holders = np.bincount(
        np.concatenate([np.asarray(row) for row in classes]), minlength=pool.num_classes
    )
    shares: dict[str, list[IntArray]] = {}
    for part, labels in pool.labels.items():
        whole = {c for c in range(pool.num_classes) if holders[c] == 1 or part == "test"}
        clients = [np.flatnonzero(np.isin(labels, list(set(row) & whole))) for row in classes]
        for c in sorted(set(range(pool.num_classes)) - whole):
            stream = numpy_stream(spec.seed, "partition", "common", part, c)
            pieces = np.array_split(stream.permutation(np.flatnonzero(labels == c)), spec.clients)
            turn = c % spec.clients  # so that client 0 does not get every odd image
            clients = [
                np.concatenate([share, pieces[(j + turn) % spec.clients]])
                for j, share in enumerate(clients)
            ]
        shares[part] = clients
    return shares


def check_n_classes(spec: PartitionSpec, num_classes: int) -> None:
    """Refuse numbers that leave a class without a client or ask for more classes than there are.

    Raises:
        ConfigError: names the choices that fit.
    """
    each = spec.classes_per_client
    if each > num_classes:
        raise ConfigError(
            f"FED.PARTITION n_classes: the run has {num_classes} class(es), not {each}; "
            f"use FED.CLASSES_PER_CLIENT {num_classes} or less"
        )
    if spec.clients * each < num_classes:
        raise ConfigError(
            f"FED.PARTITION n_classes: {spec.clients} clients with {each} classes each cannot hold "
            f"{num_classes} classes; use FED.CLASSES_PER_CLIENT {-(-num_classes // spec.clients)} "
            f"or more, or FED.CLIENTS {-(-num_classes // each)} or more"
        )


def draw_classes(num_classes: int, spec: PartitionSpec) -> list[list[int]]:
    """Return the classes each client holds under ``n_classes``.

    Random permutations of all classes are dealt one after the other, so a class has as many
    holders as any other, or one more; a client that gets the end of one and the beginning of the
    next skips what it has.

    Raises:
        ConfigError: as ``check_n_classes``.
    """
    check_n_classes(spec, num_classes)
    rng = numpy_stream(spec.seed, "partition", "n_classes")
    rows: list[list[int]] = []
    queue: list[int] = []
    for _ in range(spec.clients):
        row, queue = queue[: spec.classes_per_client], queue[spec.classes_per_client :]
        if rest := spec.classes_per_client - len(row):
            order = rng.permutation(num_classes).tolist()
            more = [c for c in order if c not in row][:rest]
            row, queue = row + more, [c for c in order if c not in more]
        rows.append(sorted(row))
    return rows


def n_classes(pool: ImagePool, spec: PartitionSpec) -> Partition:
    """Give every client exactly n classes; the holders of a class share its images.

    As in the family's ``noniid-labeluni`` a holder's share is drawn from U(0.4, 0.6), then
    normalised; here rounding loses no image, and all parts of a class are cut by the same shares.
    Each holder gets at least one training image of each of its classes. A client has a test image
    unless its classes have fewer than holders.

    Raises:
        ConfigError: as ``check_n_classes``, or a class with fewer training images than holders.
    """
    counts = {p: np.bincount(pool.labels[p], minlength=pool.num_classes) for p in PARTS}
    holds = np.zeros((pool.num_classes, spec.clients))
    for client, classes in enumerate(draw_classes(pool.num_classes, spec)):
        holds[classes, client] = 1
    short = np.flatnonzero(counts["train"] < holds.sum(axis=1))
    if len(short):
        c = int(short[0])
        fewer = "fewer FED.CLIENTS or FED.CLASSES_PER_CLIENT, or " if counts["train"][c] else ""
        raise ConfigError(
            f"class {pool.class_name(c)} has {counts['train'][c]} training {pool.kind}s for the "
            f"{int(holds[c].sum())} client(s) that FED.PARTITION n_classes gives it to; "
            f"use {fewer}FED.PARTITION dirichlet or iid"
        )
    rng = numpy_stream(spec.seed, "partition", "n_classes", "shares")
    shares = holds * rng.uniform(*_SHARES, size=holds.shape)
    shares /= shares.sum(axis=1, keepdims=True)
    sizes = {part: cut_evenly(shares, counts[part], least=1) for part in PARTS}
    sizes["test"] = fill_empty_clients(sizes["test"], shares)
    return Partition.of(deal(pool.labels, sizes, rng))
