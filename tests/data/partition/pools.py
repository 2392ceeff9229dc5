"""Pools with known answers, and what every partition of them must keep."""

from __future__ import annotations

import numpy as np

from fedvlm.data.catalog import CIFAR100_SUPERCLASSES
from fedvlm.data.datum import PARTS
from fedvlm.data.partition.spec import ImagePool, Partition

KINDS = (
    "iid", "disjoint", "n_classes", "dirichlet", "superclass_dirichlet", "quantity", "domain",
    "domain_dirichlet",
)  # fmt: skip
NAMES = [name for group in CIFAR100_SUPERCLASSES.values() for name in group]
DOMAINS = ("a", "b")


def pool_of(classes: int, per_class: int, seed: int = 0, val: bool = True) -> ImagePool:
    """A pool in shuffled order; half of each class in each of two domains."""
    rng = np.random.default_rng(seed)
    sizes = {"train": per_class, "val": per_class // 2 if val else 0, "test": per_class}
    labels, domains = {}, {}
    for part, each in sizes.items():
        order = rng.permutation(classes * each)
        labels[part] = np.repeat(np.arange(classes), each)[order]
        domains[part] = np.tile(np.arange(2), classes * each)[: classes * each][order]
    return ImagePool(labels, classes, domains, DOMAINS, NAMES[:classes])


def assert_each_once(partition: Partition, pool: ImagePool, clients: int) -> None:
    for part in PARTS:
        arrays = partition.part(part)
        assert len(arrays) == clients
        assert all(a.dtype == np.int64 and not a.flags.writeable for a in arrays)
        assert all((np.diff(a) > 0).all() for a in arrays)
        together = np.sort(np.concatenate(arrays)) if arrays else np.zeros(0)
        assert np.array_equal(together, np.arange(len(pool.labels[part])))


def equal(a: Partition, b: Partition) -> bool:
    return all(
        np.array_equal(x, y)
        for part in PARTS
        for x, y in zip(a.part(part), b.part(part), strict=True)
    )
