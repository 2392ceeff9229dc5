"""Who holds what: partitions as pure functions of labels, domains and a ``PartitionSpec``.

Here: iid, disjoint classes, and by domain. ``partition_dirichlet.py`` holds the skewed ones.
All randomness is a stream of (seed, "partition", ...); the same spec gives the same partition.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fedvlm.data.datum import PARTS, IntArray
from fedvlm.errors import ConfigError
from fedvlm.rng import numpy_stream

LEGACY_SEED = 2023  # the family seeds Python's generator with it, whatever the run's seed
# Which options change the result, by kind; the others are not part of a partition's identity.
_USES = {
    "iid": (),
    "disjoint": ("repeat_rate", "legacy"),
    "dirichlet": ("beta", "min_size"),
    "domain": (),
    "domain_dirichlet": ("beta", "min_size"),
}


@dataclass(frozen=True)
class PartitionSpec:
    """Everything that a partition depends on beside the data set.

    Attributes:
        kind: iid, disjoint, dirichlet, domain or domain_dirichlet.
        clients: number of clients, K.
        seed: DATA_SEED.
        beta: concentration of the Dirichlet; small is skewed.
        min_size: training images each client must get (Dirichlet kinds).
        repeat_rate: share of the classes that all clients hold (disjoint).
        legacy: the family's class map of 2023 (disjoint).
        shots, val_shots: images per class, negative for all.
        half: all, base or new classes.
    """

    kind: str
    clients: int
    seed: int = 0
    beta: float = 0.3
    min_size: int = 1
    repeat_rate: float = 0.0
    legacy: bool = False
    shots: int = -1
    val_shots: int = -1
    half: str = "all"

    def __post_init__(self) -> None:
        checks = (
            (self.clients >= 1, f"FED.CLIENTS is {self.clients}; it must be at least 1"),
            (self.beta > 0 and np.isfinite(self.beta), f"FED.BETA is {self.beta}; it must be > 0"),
            (self.min_size >= 1, f"FED.MIN_SIZE is {self.min_size}; it must be at least 1"),
            (0 <= self.repeat_rate <= 1, f"FED.REPEAT_RATE is {self.repeat_rate}; it is 0 to 1"),
            (self.shots != 0, "DATASET.NUM_SHOTS is 0; give at least 1, or -1 for all images"),
            (
                not (self.legacy and self.repeat_rate > 0),
                "FED.LEGACY and FED.REPEAT_RATE cannot be combined; set one of them to its default",
            ),
        )
        for right, message in checks:
            if not right:
                raise ConfigError(message)

    def identity(self) -> dict[str, Any]:
        """Return the fields that change the result of this kind, ready for JSON."""
        always = ("kind", "clients", "seed", "shots", "val_shots", "half")
        keep = {*always, *_USES.get(self.kind, ())}
        return {name: value for name, value in asdict(self).items() if name in keep}


@dataclass(frozen=True)
class Pool:
    """Labels and domains of the images at hand, by part; positions are into these arrays."""

    labels: Mapping[str, IntArray]
    num_classes: int
    domains: Mapping[str, IntArray] = field(default_factory=dict)
    domain_names: Sequence[str] = ()

    def select(self, positions: Mapping[str, IntArray]) -> Pool:
        """Return the pool of the given positions only."""
        return Pool(
            {part: self.labels[part][positions[part]] for part in PARTS},
            self.num_classes,
            {part: d[positions[part]] for part, d in self.domains.items()},
            self.domain_names,
        )


@dataclass(frozen=True)
class Partition:
    """One sorted, read-only int64 array of positions per client and part."""

    train: tuple[IntArray, ...]
    val: tuple[IntArray, ...]
    test: tuple[IntArray, ...]

    @staticmethod
    def of(shares: Mapping[str, Sequence[Any]]) -> Partition:
        """Build from ``{part: [positions of client 0, ...]}``."""
        return Partition(*(tuple(_frozen(p) for p in shares[part]) for part in PARTS))

    def part(self, name: str) -> tuple[IntArray, ...]:
        """Return the arrays of ``train``, ``val`` or ``test``."""
        return {"train": self.train, "val": self.val, "test": self.test}[name]

    def through(self, positions: Mapping[str, IntArray]) -> Partition:
        """Translate positions of a selected pool into those of the pool it was selected from."""
        return Partition.of({p: [positions[p][i] for i in self.part(p)] for p in PARTS})

    def without(self, bad: Mapping[str, set[int]]) -> Partition:
        """Leave out the given positions."""
        return Partition.of(
            {p: [[i for i in a if int(i) not in bad[p]] for a in self.part(p)] for p in PARTS}
        )

    def used(self) -> dict[str, IntArray]:
        """Return by part the sorted positions that some client holds."""
        empty = np.zeros(0, dtype=np.int64)
        return {p: np.unique(np.concatenate([empty, *self.part(p)])) for p in PARTS}


def _frozen(positions: Any) -> IntArray:
    array = np.sort(np.asarray(positions, dtype=np.int64).reshape(-1))
    array.setflags(write=False)
    return array


def fewer_clients(limit: int) -> str:
    """Return ``FED.CLIENTS 1 to 5`` or ``FED.CLIENTS 1``."""
    return "FED.CLIENTS 1" if limit <= 1 else f"FED.CLIENTS 1 to {limit}"


def iid(pool: Pool, spec: PartitionSpec) -> Partition:
    """Deal a random permutation of each part into K nearly equal shares (the family's ``homo``).

    Raises:
        ConfigError: fewer training or test images than clients.
    """
    for part in ("train", "test"):
        n = len(pool.labels[part])
        if n < spec.clients:
            raise ConfigError(
                f"FED.CLIENTS {spec.clients}: there are only {n} {part} images to deal; "
                f"use {fewer_clients(n)}"
            )
    return Partition.of(
        {
            part: np.array_split(
                numpy_stream(spec.seed, "partition", "iid", part).permutation(len(labels)),
                spec.clients,
            )
            for part, labels in pool.labels.items()
        }
    )


def check_disjoint(spec: PartitionSpec, num_classes: int, all_classes: int | None = None) -> None:
    """Refuse a disjoint partition with fewer classes than clients, before any image is read.

    Args:
        all_classes: classes of the whole set where the run uses base or new ones.

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
            f"FED.PARTITION disjoint cannot deal {num_classes} classes to {spec.clients} clients; "
            f"use {', or '.join(choices)}"
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
    own = np.array_split(order[common:], spec.clients)
    return [sorted(int(c) for c in (*order[:common], *mine)) for mine in own]


def _legacy_map(num_classes: int, clients: int) -> list[list[int]]:
    order = list(range(num_classes))
    random.Random(LEGACY_SEED).shuffle(order)  # noqa: S311 (the family's stream, kept private)
    each = int(round(num_classes / clients))
    bounds = [*(each * j for j in range(clients)), num_classes]
    held = [order[lo:hi] for lo, hi in zip(bounds, bounds[1:], strict=False)]
    empty = [j for j, classes in enumerate(held) if not classes]
    if empty:
        raise ConfigError(
            f"FED.LEGACY: {num_classes} classes, {each} to each of {clients} clients, leave "
            f"client {empty[0]} with none; set FED.LEGACY False or use another FED.CLIENTS"
        )
    return [sorted(classes) for classes in held]


def disjoint(pool: Pool, spec: PartitionSpec) -> Partition:
    """Deal classes, not images ("pathological"): a client holds all images of its classes.

    Training and validation images of a class that all clients hold (``repeat_rate``) are dealt
    evenly, so that every one is used once; its test images are in every client's test set.

    Raises:
        ConfigError: as ``check_disjoint``.
    """
    held = class_map(pool.num_classes, spec)
    counts = np.bincount(np.concatenate([np.asarray(h) for h in held]), minlength=pool.num_classes)
    shares: dict[str, list[IntArray]] = {}
    for part, labels in pool.labels.items():
        own = [c for c in range(pool.num_classes) if counts[c] == 1 or part == "test"]
        mine = [np.flatnonzero(np.isin(labels, list(set(h) & set(own)))) for h in held]
        for c in sorted(set(range(pool.num_classes)) - set(own)):
            stream = numpy_stream(spec.seed, "partition", "common", part, c)
            dealt = np.array_split(stream.permutation(np.flatnonzero(labels == c)), spec.clients)
            turn = c % spec.clients  # so that client 0 does not get every odd image
            mine = [
                np.concatenate([m, dealt[(j + turn) % spec.clients]]) for j, m in enumerate(mine)
            ]
        shares[part] = mine
    return Partition.of(shares)


def clients_per_domain(spec: PartitionSpec, domain_names: Sequence[str]) -> int:
    """Return K divided by the number of domains.

    Raises:
        ConfigError: no domains, or K is not a multiple of their number.
    """
    n = len(domain_names)
    if n < 1:
        raise ConfigError(
            f"FED.PARTITION {spec.kind} needs a set with domains, and this one has none; "
            "use FED.PARTITION iid, disjoint or dirichlet"
        )
    if spec.clients % n:
        near = sorted({max(n, spec.clients // n * n), (spec.clients // n + 1) * n})
        raise ConfigError(
            f"FED.PARTITION {spec.kind}: {spec.clients} clients cannot be spread evenly over "
            f"{n} domains ({', '.join(domain_names[:6])}); use FED.CLIENTS "
            + " or ".join(map(str, near))
        )
    return spec.clients // n


def domain(pool: Pool, spec: PartitionSpec) -> Partition:
    """Give each domain to K/D clients; several clients of one domain share it iid.

    Clients are ordered by domain. The test share of a client is of its own domain.

    Raises:
        ConfigError: as ``clients_per_domain``, or a domain with too few images.
    """
    each = clients_per_domain(spec, pool.domain_names)
    shares: dict[str, list[IntArray]] = {part: [] for part in PARTS}
    for number, name in enumerate(pool.domain_names):
        for part in PARTS:
            mine = np.flatnonzero(pool.domains[part] == number)
            if part != "val" and len(mine) < each:
                raise ConfigError(
                    f"domain '{name}' has {len(mine)} {part} images for {each} clients; "
                    f"use FED.CLIENTS {len(pool.domain_names)}"
                )
            stream = numpy_stream(spec.seed, "partition", "domain", name, part)
            shares[part] += np.array_split(stream.permutation(mine), each)
    return Partition.of(shares)
