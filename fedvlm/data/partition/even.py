"""Images dealt evenly to all clients (iid), each domain to its own clients, or as the data say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedvlm.core.errors import ConfigError, did_you_mean, fold
from fedvlm.core.rng import numpy_stream
from fedvlm.data.datum import PARTS, IntArray
from fedvlm.data.partition.deal import fewer_clients, no_images
from fedvlm.data.partition.spec import ImagePool, Partition, PartitionSpec


def iid(pool: ImagePool, spec: PartitionSpec) -> Partition:
    """Deal a random permutation of each part into K nearly equal shares (the family's ``homo``).

    Raises:
        ConfigError: fewer training or test images than clients.
    """
    for part in ("train", "test"):
        n = len(pool.labels[part])
        if not n:
            raise ConfigError(no_images(part, pool.kind))
        if n < spec.clients:
            raise ConfigError(
                f"FED.CLIENTS {spec.clients}: there are only {n} {part} {pool.kind}s to deal; "
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


def domain(pool: ImagePool, spec: PartitionSpec) -> Partition:
    """Give each domain to K/D clients; several clients of one domain share it iid.

    Clients are ordered by domain. The test share of a client is of its own domain.

    Raises:
        ConfigError: as ``clients_per_domain``, or a domain with too few images.
    """
    each = clients_per_domain(spec, pool.domain_names)
    shares: dict[str, list[IntArray]] = {part: [] for part in PARTS}
    for number, name in enumerate(pool.domain_names):
        for part in PARTS:
            at = np.flatnonzero(pool.domains[part] == number)
            if part != "val" and len(at) < each:
                if not len(at):
                    raise ConfigError(no_images(part, pool.kind, f" of domain '{name}'"))
                raise ConfigError(
                    f"domain '{name}' has {len(at)} {part} {pool.kind}s for {each} clients; "
                    f"use FED.CLIENTS {len(pool.domain_names) * len(at)}"
                )
            stream = numpy_stream(spec.seed, "partition", "domain", name, part)
            shares[part] += np.array_split(stream.permutation(at), each)
    return Partition.of(shares)


def natural(pool: ImagePool, spec: PartitionSpec) -> Partition:
    """Give each client the images that the data say it holds; nothing is drawn.

    Raises:
        ConfigError: the data name no clients, or another number of them than ``spec`` has.
    """
    check_natural(spec, pool.client_names)
    return Partition.of({
        part: [np.flatnonzero(clients == number) for number in range(spec.clients)]
        for part, clients in pool.clients.items()
    })


def check_natural(spec: PartitionSpec, client_names: Sequence[str]) -> None:
    """Refuse another number of clients than the data name.

    Raises:
        ConfigError: says the number, or how to name the clients.
    """
    if not client_names:
        raise ConfigError(
            "FED.PARTITION natural needs a column that says whose image it is: --clients-by COLUMN "
            "(a table), or a pattern of the folders such as --clients-by '{client}/{class}/*'; "
            "for a feature pack give the partition.json of a run as FED.INDEX_FILE"
        )
    if spec.clients != len(client_names):
        raise ConfigError(
            f"FED.CLIENTS {spec.clients}, but DATASET.CLIENTS_BY names {len(client_names)} "
            f"client(s): set FED.CLIENTS {len(client_names)}, or leave it out"
        )


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


def domain_number(name: str, domain_names: Sequence[str], dataset: str) -> int | None:
    """Return the number of FED.HELD_OUT_DOMAIN, None where it is empty.

    Raises:
        ConfigError: no such domain, or none would be left.
    """
    if not name:
        return None
    keys = [fold(domain) for domain in domain_names]
    if fold(name) not in keys:
        names = f"known: {', '.join(domain_names)}" if keys else f"{dataset} has no domains"
        raise ConfigError(
            f"unknown FED.HELD_OUT_DOMAIN '{name}'{did_you_mean(name, domain_names)} ({names})"
        )
    if len(keys) < 2:
        raise ConfigError(
            f"FED.HELD_OUT_DOMAIN '{name}': {dataset} has no other domain; leave it empty"
        )
    return keys.index(fold(name))
