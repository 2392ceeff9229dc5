"""From lists to clients: which shots are drawn, and how they are partitioned.

Where shots are asked for (k >= 1):
- disjoint, dirichlet: CoOp's global draw of k per class, then the partition. A disjoint client thus
  has k shots of each of its classes; a Dirichlet client has its share of the k.
- domain_dirichlet: k per class drawn in each domain, then the partition.
- iid: each client draws its own k per class from the full list (draws may overlap; validation
  likewise), test images are dealt.
- domain: the full lists are partitioned, then each client draws k per class from its own.
Without shots (k = -1) the full lists are partitioned. Draws come before the base/new cut (CoOp).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedvlm.data.datum import PARTS, IntArray
from fedvlm.data.fewshot import coop_draw, draw_shots, val_shots_of
from fedvlm.data.partition import (
    Partition,
    PartitionSpec,
    Pool,
    check_disjoint,
    clients_per_domain,
    disjoint,
    domain,
    iid,
)
from fedvlm.data.partition_dirichlet import dirichlet, domain_dirichlet
from fedvlm.errors import ConfigError, fold
from fedvlm.registry import Registry
from fedvlm.rng import python_stream, seed_of

Kind = Callable[[Pool, PartitionSpec], Partition]
PARTITIONS: Registry[Kind] = Registry("partition")
for _kind in (iid, disjoint, dirichlet, domain, domain_dirichlet):
    PARTITIONS.register()(_kind)

# The family's and the literature's spellings.
ALIASES = {
    "homo": "iid",
    "homogeneous": "iid",
    "pathological": "disjoint",
    "disjointclasses": "disjoint",
    "noniidlabeldir": "dirichlet",
    "labeldir": "dirichlet",
    "dir": "dirichlet",
    "bydomain": "domain",
    "domains": "domain",
    "domaindir": "domain_dirichlet",
    "domainlabeldir": "domain_dirichlet",
}
_DRAWN_PER_CLIENT = ("iid", "domain")


def canonical_kind(name: str) -> str:
    """Return the name of a partition kind, aliases resolved.

    Raises:
        ConfigError: unknown; the message gives the nearest.
    """
    try:
        return PARTITIONS.canonical(ALIASES.get(fold(name), name))
    except ConfigError as error:
        raise ConfigError(f"FED.PARTITION: {error}") from None


def make_partition(pool: Pool, spec: PartitionSpec) -> Partition:
    """Return the partition of ``spec.kind`` over all images of the pool."""
    return PARTITIONS.get(spec.kind)(pool, spec)


def check_fits(spec: PartitionSpec, pool: Pool, all_classes: int) -> None:
    """Refuse what cannot work from the numbers alone, before any image is opened.

    Raises:
        ConfigError: names the choices that fit.
    """
    if spec.kind == "disjoint":
        check_disjoint(spec, pool.num_classes, all_classes)
    if spec.kind.startswith("domain"):
        clients_per_domain(spec, pool.domain_names)


def drawn_per_client(spec: PartitionSpec) -> bool:
    """Return whether shots are drawn after the partition, by each client."""
    return spec.shots > 0 and spec.kind in _DRAWN_PER_CLIENT


def candidates(full: Pool, pool: Pool, spec: PartitionSpec) -> dict[str, IntArray]:
    """Return by part the sorted positions to partition: the shots, of the run's classes.

    Args:
        full: labels of the whole set (CoOp draws from all classes).
        pool: labels of the run, -1 for classes that take no part.
    """
    picked: dict[str, IntArray] = {}
    if spec.kind == "domain_dirichlet" and spec.shots > 0:
        chosen = _draw_by_domain(full, spec)
    else:
        labels = full.labels
        train, val = coop_draw(
            labels["train"], labels["val"], spec.shots, spec.val_shots, spec.seed
        )
        chosen = {"train": train, "val": val}
    for part in PARTS:
        positions = np.asarray(
            chosen.get(part, range(len(pool.labels[part]))), dtype=np.int64
        ).reshape(-1)
        picked[part] = np.sort(positions[pool.labels[part][positions] >= 0])
    return picked


def _draw_by_domain(full: Pool, spec: PartitionSpec) -> dict[str, list[int]]:
    chosen: dict[str, list[int]] = {"train": [], "val": []}
    for number, name in enumerate(full.domain_names):
        rng = python_stream(seed_of(spec.seed, "shots", name))
        for part, shots in _wanted(spec):
            mine = np.flatnonzero(full.domains[part] == number)
            chosen[part] += [int(mine[i]) for i in draw_shots(full.labels[part][mine], shots, rng)]
    return chosen


def _wanted(spec: PartitionSpec) -> tuple[tuple[str, int], ...]:
    return (("train", spec.shots), ("val", val_shots_of(spec.shots, spec.val_shots)))


def shots_per_client(pool: Pool, spec: PartitionSpec) -> Partition:
    """Return the partition whose clients draw their own shots (iid, domain)."""
    kept = {part: np.flatnonzero(pool.labels[part] >= 0) for part in PARTS}
    part_of = make_partition(pool.select(kept), spec).through(kept)
    shares = {part: list(part_of.part(part)) for part in PARTS}
    for client in range(spec.clients):
        rng = python_stream(seed_of(spec.seed, "shots", client))
        for part, shots in _wanted(spec):
            mine = kept[part] if spec.kind == "iid" else shares[part][client]
            shares[part][client] = mine[draw_shots(pool.labels[part][mine], shots, rng)]
    return Partition.of(shares)
