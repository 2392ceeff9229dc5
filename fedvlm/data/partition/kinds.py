"""From lists to clients: which shots are drawn, and how they are partitioned.

Where shots are asked for (k >= 1), "k shots per class per client" means:
- disjoint: CoOp's global draw of k per class, then the partition: a client has k shots of each of
  its classes (of a class that all clients hold, its share of the k).
- dirichlet, superclass_dirichlet, quantity: CoOp's global draw of k per class, then the partition:
  a client has its share of the k of each class.
- domain_dirichlet: k per class drawn in each domain, then the partition.
- iid: each client draws its own k per class from the full list (draws may overlap; validation
  likewise), test images are dealt.
- n_classes, domain, natural: the full lists are partitioned, then each client draws k per class
  from its own; clients never share an image.
Without shots (k = -1) the full lists are partitioned: every training and validation image is used
once. Draws come before the base/new cut (CoOp). A held-out domain takes no part in any draw.

Where images belong to groups (DATASET.GROUPS), every group goes whole to one client: the kind deals
images one by one, and groups are then placed so that its numbers are met as nearly as they can be.
Under iid each client then draws its shots from its own share.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedvlm.core.rng import python_stream, seed_of
from fedvlm.data.catalog import missing_classes, superclasses_of
from fedvlm.data.datum import PARTS, IntArray
from fedvlm.data.fewshot import coop_draw, draw_shots, val_shots_of
from fedvlm.data.partition.classes import check_disjoint, check_n_classes, disjoint, n_classes
from fedvlm.data.partition.dirichlet import (
    dirichlet,
    domain_dirichlet,
    quantity,
    superclass_dirichlet,
)
from fedvlm.data.partition.even import (
    check_natural,
    clients_per_domain,
    domain,
    iid,
    natural,
)
from fedvlm.data.partition.spec import ImagePool, Partition, PartitionSpec

Partitioner = Callable[[ImagePool, PartitionSpec], Partition]
PARTITIONERS: dict[str, Partitioner] = {kind.__name__: kind for kind in (
    iid, disjoint, n_classes, dirichlet, superclass_dirichlet, quantity, domain, domain_dirichlet,
    natural,
)}  # fmt: skip
_DRAWS_PER_CLIENT = ("iid", "n_classes", "domain", "natural")


def make_partition(pool: ImagePool, spec: PartitionSpec) -> Partition:
    """Return the partition of ``spec.kind`` over all images of the pool, groups whole."""
    partition = PARTITIONERS[spec.kind](pool, spec)
    if not pool.groups or spec.kind == "natural":
        return partition
    from fedvlm.data.whole_groups import keep_whole  # start-up: for groups only

    shares = {part: partition.part(part) for part in PARTS}
    return Partition.of(keep_whole(shares, pool.groups, pool.labels))


def check_fits(spec: PartitionSpec, pool: ImagePool, all_classes: int, name: str = "") -> None:
    """Refuse what cannot work from the numbers alone, before any image is opened.

    Args:
        name: of the data set, whose copy may have fewer classes than the published one.

    Raises:
        ConfigError: names the choices that fit.
    """
    if spec.kind == "disjoint":
        check_disjoint(spec, pool.num_classes, all_classes, missing_classes(name, all_classes))
    if spec.kind == "n_classes":
        check_n_classes(spec, pool.num_classes)
    if spec.kind == "superclass_dirichlet":
        superclasses_of(pool.class_names)
    if spec.kind.startswith("domain"):
        clients_per_domain(spec, pool.domain_names)
    if spec.kind == "natural":
        check_natural(spec, pool.client_names)


def draws_per_client(spec: PartitionSpec) -> bool:
    """Return whether shots are drawn after the partition, by each client."""
    return spec.shots > 0 and spec.kind in _DRAWS_PER_CLIENT


def candidates(full: ImagePool, pool: ImagePool, spec: PartitionSpec) -> dict[str, IntArray]:
    """Return by part the sorted positions to partition: the shots, of the run's classes.

    Args:
        full: labels of the whole set, -1 in a held-out domain (CoOp draws from all classes).
        pool: labels of the run, -1 for classes that take no part.
    """
    shots: dict[str, list[int]]
    if spec.kind == "domain_dirichlet" and spec.shots > 0:
        shots = _draw_by_domain(full, spec)
    else:
        inside = {part: np.flatnonzero(full.labels[part] >= 0) for part in ("train", "val")}
        labels = {part: full.labels[part][where] for part, where in inside.items()}
        train, val = coop_draw(
            labels["train"], labels["val"], spec.shots, spec.val_shots, spec.seed
        )
        shots = {p: inside[p][picks].tolist() for p, picks in (("train", train), ("val", val))}
    of_run: dict[str, IntArray] = {}
    for part in PARTS:
        positions = np.asarray(
            shots.get(part, range(len(pool.labels[part]))), dtype=np.int64
        ).reshape(-1)
        of_run[part] = np.sort(positions[pool.labels[part][positions] >= 0])
    return of_run


def _draw_by_domain(full: ImagePool, spec: PartitionSpec) -> dict[str, list[int]]:
    drawn: dict[str, list[int]] = {"train": [], "val": []}
    for number, name in enumerate(full.domain_names):
        rng = python_stream(seed_of(spec.seed, "shots", name))
        for part, shots in _shots_by_part(spec):
            at = np.flatnonzero(full.domains[part] == number)
            drawn[part] += [int(at[i]) for i in draw_shots(full.labels[part][at], shots, rng)]
    return drawn


def _shots_by_part(spec: PartitionSpec) -> tuple[tuple[str, int], ...]:
    return (("train", spec.shots), ("val", val_shots_of(spec.shots, spec.val_shots)))


def shortage_notes(pool: ImagePool, partition: Partition, spec: PartitionSpec) -> list[str]:
    """Return a note where clients that share a class among them have fewer than k images of it.

    Where every client draws from the full list (iid) the class itself is short, which is noted
    elsewhere.
    """
    if spec.kind == "iid":
        return []
    tables = [np.bincount(pool.labels["train"][a], minlength=1) for a in partition.train]
    short = sum(int(((counts > 0) & (counts < spec.shots)).sum()) for counts in tables)
    if not short:
        return []
    return [
        f"in {short} case(s) a client's own share of a class has fewer than {spec.shots} training "
        "images: it uses all of them"
    ]


def shots_per_client(pool: ImagePool, spec: PartitionSpec) -> Partition:
    """Return the partition whose clients draw their own shots."""
    inside = {part: np.flatnonzero(pool.labels[part] >= 0) for part in PARTS}
    whole = make_partition(pool.select(inside), spec).translate(inside)
    shares = {part: list(whole.part(part)) for part in PARTS}
    for client in range(spec.clients):
        rng = python_stream(seed_of(spec.seed, "shots", client))
        for part, shots in _shots_by_part(spec):
            share = inside[part] if spec.kind == "iid" and not pool.groups else shares[part][client]
            shares[part][client] = share[draw_shots(pool.labels[part][share], shots, rng)]
    return Partition.of(shares)
