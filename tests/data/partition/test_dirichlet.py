"""Skew by Dirichlet draws: of labels, of superclasses, of quantity."""

from __future__ import annotations

import time

import numpy as np
import pytest

from fedvlm.core.errors import ConfigError
from fedvlm.data.catalog import superclasses_of
from fedvlm.data.partition import dirichlet as module
from fedvlm.data.partition.dirichlet import cut_counts, draw_profiles, draw_shares
from fedvlm.data.partition.kinds import make_partition
from fedvlm.data.partition.spec import ImagePool, Partition, PartitionSpec
from tests.data.partition.pools import NAMES, assert_each_once, pool_of


@pytest.mark.parametrize("kind", ["dirichlet", "domain_dirichlet"])
@pytest.mark.parametrize(("clients", "beta"), [
    *((clients, beta) for clients in (2, 10) for beta in (1e-300, 1e-8, 0.001, 0.01, 1e6)),
    (40, 1e-300), (40, 0.01), (40, 1e6),  # the first two use up all tries
])  # fmt: skip
def test_extreme_dirichlet_ends(
    kind: str, clients: int, beta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pool_of(10, 24)
    if (kind, clients, beta) not in (("domain_dirichlet", 40, 0.01), ("dirichlet", 40, 1e-300)):
        monkeypatch.setattr(module, "_TRIES", 50)
    start = time.process_time()  # other processes must not fail it
    try:
        partition = make_partition(pool, PartitionSpec(kind, clients, beta=beta, min_size=2))
        assert_each_once(partition, pool, clients)
        assert min(map(len, partition.train)) >= 2
        assert min(map(len, partition.test)) >= 1
    except ConfigError as error:
        assert clients == 40 and beta < 1
        assert "raise FED.BETA, lower FED.MIN_SIZE or use fewer FED.CLIENTS" in str(error)
    assert time.process_time() - start < 20


def test_dirichlet_gives_train_and_test_the_same_proportions() -> None:
    pool = pool_of(6, 200)
    partition = make_partition(pool, PartitionSpec("dirichlet", 5, beta=0.3))
    for train, test in zip(partition.train, partition.test, strict=True):
        counts = [np.bincount(pool.labels[p][i], minlength=6) for p, i in
                  (("train", train), ("test", test))]  # fmt: skip
        assert np.array_equal(counts[0], counts[1])  # as many of each class: equal cuts


def test_dirichlet_skews_more_with_a_smaller_beta() -> None:
    pool = pool_of(10, 100)

    def skew(beta: float) -> float:
        p = make_partition(pool, PartitionSpec("dirichlet", 5, beta=beta))
        table = np.stack([np.bincount(pool.labels["train"][a], minlength=10) for a in p.train])
        return float(table.max(axis=0).mean())

    assert skew(100.0) < 30 < skew(0.5) < skew(0.05)


def test_full_clients_get_nothing_more() -> None:
    rng = np.random.default_rng(0)
    counts = np.full(20, 50)
    shares = draw_shares(counts, 10, 0.1, rng)
    assert np.allclose(shares.sum(axis=1), 1)
    held = np.zeros(10)
    for row in cut_counts(shares, counts):
        assert (row[held >= 100] == 0).all()
        held += row
    assert held.sum() == 1000


def test_too_few_images_says_so_at_once() -> None:
    with pytest.raises(ConfigError, match="8 train images cannot give 5 clients 4 each"):
        make_partition(pool_of(2, 4), PartitionSpec("dirichlet", 5, min_size=4))
    with pytest.raises(ConfigError, match=r"only 4 train images.*use FED.CLIENTS 1 to 4"):
        make_partition(pool_of(2, 2), PartitionSpec("iid", 5))


def table(pool: ImagePool, partition: Partition, part: str) -> np.ndarray:
    """Images per client and class ``[K, C]``."""
    counts = [np.bincount(pool.labels[part][a], minlength=pool.num_classes)
              for a in partition.part(part)]  # fmt: skip
    return np.stack(counts)


def test_quantity_cuts_all_parts_alike_and_keeps_the_mix_of_classes() -> None:
    pool = pool_of(5, 400)
    partition = make_partition(pool, PartitionSpec("quantity", 5, seed=3, beta=0.5))
    sizes = np.array([len(a) for a in partition.train])
    assert sizes.max() > 3 * sizes.min()
    assert abs(np.array([len(a) for a in partition.test]) - sizes).max() <= 1
    largest = table(pool, partition, "train")[sizes.argmax()]
    assert largest.min() / largest.max() > 0.75  # five fair draws of about 200


def test_quantity_in_its_limits() -> None:
    pool = pool_of(5, 20)
    even = make_partition(pool, PartitionSpec("quantity", 7, beta=1e300))
    assert sorted(len(a) for a in even.train) == [14] * 5 + [15] * 2
    steep = make_partition(pool, PartitionSpec("quantity", 7, beta=1e-300, min_size=4))
    assert sorted(len(a) for a in steep.train) == [4] * 6 + [76]
    assert sorted(len(a) for a in steep.test) == [1] * 6 + [94]
    exact = make_partition(pool, PartitionSpec("quantity", 10, beta=0.1, min_size=10))
    assert [len(a) for a in exact.train] == [10] * 10


def cifar() -> ImagePool:
    """100 classes of 50 training, 10 validation and 10 test images."""
    sizes = {"train": 50, "val": 10, "test": 10}
    labels = {part: np.repeat(np.arange(100), each) for part, each in sizes.items()}
    return ImagePool(labels, 100, {}, (), NAMES)


@pytest.mark.parametrize("clients", [10, 100])
def test_superclass_clients_are_of_equal_size(clients: int) -> None:
    pool = cifar()
    partition = make_partition(pool, PartitionSpec("superclass_dirichlet", clients, beta=0.3))
    assert {len(a) for a in partition.train} == {5000 // clients}
    for part in ("val", "test"):
        assert max(abs(len(a) - 1000 // clients) for a in partition.part(part)) <= 3
    train, test = (table(pool, partition, part) for part in ("train", "test"))
    assert not test[train == 0].any()
    assert np.abs(test - train / 5).max() <= 3 and np.abs(test - train / 5).mean() < 0.35


def test_superclass_skew_follows_both_concentrations() -> None:
    """The first client draws freely: few superclasses, and all five classes of each."""
    counts, groups = np.full(100, 500), superclasses_of(NAMES)

    def first(beta: float, fine: float) -> np.ndarray:
        spec = PartitionSpec("superclass_dirichlet", 100, beta=beta, beta_fine=fine)
        return draw_profiles(counts, groups, spec, np.random.default_rng(0))[:, 0]

    one = first(1e-3, 1e9)
    assert len(set(groups[one > 0])) == 1 and (one > 0).sum() == 5 and one[one > 0].min() > 70
    single = first(1e-3, 1e-3)
    assert (single > 0).sum() == 1 and single.max() == 500
    flat = first(1e9, 1e9)
    assert (flat > 0).sum() > 90 and flat.max() < 20
