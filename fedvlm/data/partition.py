"""Who holds what: partitions as pure functions of labels, domains and a ``PartitionSpec``.

Here: the plain data, iid, and by domain. ``partition_classes.py`` deals classes,
``partition_dirichlet.py``, ``partition_superclass.py`` and ``partition_quantity.py`` skew.
All randomness is a stream of (seed, "partition", ...); the same spec gives the same partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedvlm.data.datum import PARTS, IntArray
from fedvlm.data.partition_spec import PartitionSpec
from fedvlm.errors import ConfigError, did_you_mean, fold
from fedvlm.rng import numpy_stream


@dataclass(frozen=True)
class Pool:
    """Labels and domains of the images at hand, by part; positions are into these arrays.

    Label -1 stands for an image that takes no part; domains are numbers into ``domain_names``.
    """

    labels: Mapping[str, IntArray]
    num_classes: int
    domains: Mapping[str, IntArray] = field(default_factory=dict)
    domain_names: Sequence[str] = ()
    class_names: Sequence[str] = ()

    def select(self, positions: Mapping[str, IntArray]) -> Pool:
        """Return the pool of the given positions only."""
        return Pool(
            {part: self.labels[part][positions[part]] for part in PARTS},
            self.num_classes,
            {part: d[positions[part]] for part, d in self.domains.items()},
            self.domain_names,
            self.class_names,
        )

    def called(self, label: int) -> str:
        """Return a class by its name, or by its number where names are not known."""
        return f"'{self.class_names[label]}'" if len(self.class_names) else str(label)


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


def no_images(part: str, where: str = "") -> str:
    """Return the message for a part of the set, or of one of its domains, without any image."""
    return (
        f"there are no {part} images{where} to deal; use another DATASET.SPLIT_FILE or "
        "DATASET.SUBSAMPLE_CLASSES" + (", or FED.HELD_OUT_DOMAIN to leave it out" if where else "")
    )


def iid(pool: Pool, spec: PartitionSpec) -> Partition:
    """Deal a random permutation of each part into K nearly equal shares (the family's ``homo``).

    Raises:
        ConfigError: fewer training or test images than clients.
    """
    for part in ("train", "test"):
        n = len(pool.labels[part])
        if not n:
            raise ConfigError(no_images(part))
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


def domain_number(name: str, domain_names: Sequence[str], dataset: str) -> int | None:
    """Return the number of FED.HELD_OUT_DOMAIN, None where it is empty.

    Raises:
        ConfigError: no such domain, or none would be left.
    """
    if not name:
        return None
    known = [fold(domain) for domain in domain_names]
    if fold(name) not in known:
        names = f"known: {', '.join(domain_names)}" if known else f"{dataset} has no domains"
        raise ConfigError(
            f"unknown FED.HELD_OUT_DOMAIN '{name}'{did_you_mean(name, domain_names)} ({names})"
        )
    if len(known) < 2:
        raise ConfigError(
            f"FED.HELD_OUT_DOMAIN '{name}': {dataset} has no other domain; leave it empty"
        )
    return known.index(fold(name))


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
                if not len(mine):
                    raise ConfigError(no_images(part, f" of domain '{name}'"))
                raise ConfigError(
                    f"domain '{name}' has {len(mine)} {part} images for {each} clients; "
                    f"use FED.CLIENTS {len(pool.domain_names) * len(mine)}"
                )
            stream = numpy_stream(spec.seed, "partition", "domain", name, part)
            shares[part] += np.array_split(stream.permutation(mine), each)
    return Partition.of(shares)
