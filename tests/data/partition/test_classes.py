"""Clients that hold some classes only: disjoint, shared, n of them."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvlm.core.errors import ConfigError
from fedvlm.data.datum import PARTS, IntArray
from fedvlm.data.partition.classes import class_map, draw_classes
from fedvlm.data.partition.kinds import check_fits, make_partition
from fedvlm.data.partition.spec import ImagePool, Partition, PartitionSpec
from tests.data.partition.pools import pool_of


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 99))
def test_disjoint_classes_spread_the_remainder(classes: int, clients: int, seed: int) -> None:
    spec = PartitionSpec("disjoint", clients, seed=seed)
    if classes < clients:
        with pytest.raises(ConfigError, match="cannot deal"):
            class_map(classes, spec)
        return
    held = class_map(classes, spec)
    sizes = [len(h) for h in held]
    assert max(sizes) - min(sizes) <= 1
    assert sorted(c for h in held for c in h) == list(range(classes))


@pytest.mark.parametrize(
    ("classes", "sizes"),
    [(50, [5] * 10), (19, [2] * 9 + [1]), (51, [5] * 9 + [6]), (24, [2] * 9 + [6])],
)
def test_legacy_class_map(classes: int, sizes: list[int]) -> None:
    """The table of the family: Caltech, Pets, Flowers/Food, DTD base classes at K = 10."""
    order = list(range(classes))
    kept = random.getstate()
    random.seed(2023)
    random.shuffle(order)
    random.setstate(kept)
    each = int(round(classes / 10))
    for seed in (0, 7):
        held = class_map(classes, PartitionSpec("disjoint", 10, seed=seed, legacy=True))
        assert [len(h) for h in held] == sizes
        assert held[0] == sorted(order[:each]) and held[9] == sorted(order[9 * each :])


def test_legacy_map_that_leaves_a_client_empty_is_refused() -> None:
    with pytest.raises(ConfigError, match="leave client 8 with none"):
        class_map(15, PartitionSpec("disjoint", 10, legacy=True))


def test_disjoint_clients_hold_all_images_of_their_classes() -> None:
    pool = pool_of(7, 10)
    partition = make_partition(pool, PartitionSpec("disjoint", 3))
    for part in PARTS:
        for mine in partition.part(part):
            held = np.unique(pool.labels[part][mine])
            assert len(mine) == np.isin(pool.labels[part], held).sum()


def test_repeat_rate_shares_classes() -> None:
    pool = pool_of(10, 12)
    partition = make_partition(pool, PartitionSpec("disjoint", 4, repeat_rate=0.2))

    def classes(arrays: tuple[IntArray, ...], part: str) -> list[set[int]]:
        return [set(pool.labels[part][a].tolist()) for a in arrays]

    train, test = classes(partition.train, "train"), classes(partition.test, "test")
    assert train == test
    assert len(set.intersection(*train)) == 2
    together = np.sort(np.concatenate(partition.train))
    assert np.array_equal(together, np.arange(120))
    common = next(iter(set.intersection(*test)))
    assert all((pool.labels["test"][t] == common).sum() == 12 for t in partition.test)


def test_repeat_rate_serves_more_clients_than_classes() -> None:
    held = class_map(4, PartitionSpec("disjoint", 10, repeat_rate=0.5))
    assert all(len(h) >= 2 for h in held)


def table(pool: ImagePool, partition: Partition, part: str) -> np.ndarray:
    """Images per client and class ``[K, C]``."""
    counts = [np.bincount(pool.labels[part][a], minlength=pool.num_classes)
              for a in partition.part(part)]  # fmt: skip
    return np.stack(counts)


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 30), st.integers(0, 99))
def test_n_classes_deals_every_class_nearly_as_often(
    classes: int, clients: int, each: int, seed: int
) -> None:
    spec = PartitionSpec("n_classes", clients, seed, classes_per_client=each)
    if each > classes or clients * each < classes:
        with pytest.raises(ConfigError, match="use FED.CLASSES_PER_CLIENT"):
            draw_classes(classes, spec)
        return
    held = draw_classes(classes, spec)
    assert [len(set(h)) for h in held] == [each] * clients
    holders = np.bincount(np.concatenate(held), minlength=classes)
    assert holders.min() >= 1 and holders.max() - holders.min() <= 1


def test_n_classes_shares_are_the_familys() -> None:
    """Two holders of a class: each share is at least 0.4 / (0.4 + 0.6); all parts the same."""
    pool = pool_of(10, 1000)
    partition = make_partition(pool, PartitionSpec("n_classes", 10, classes_per_client=2))
    train, test = (table(pool, partition, part) for part in ("train", "test"))
    assert ((train > 0).sum(axis=1) == 2).all() and ((train > 0).sum(axis=0) == 2).all()
    assert train[train > 0].min() >= 399 and train.max() <= 601 and len(set(train[train > 0])) > 9
    assert np.array_equal(train, test)


def test_a_copy_with_fewer_classes_is_named_as_the_cause() -> None:
    pool, spec = pool_of(5, 4), PartitionSpec("disjoint", 10)
    with pytest.raises(ConfigError) as error:
        check_fits(spec, pool, 10, "dtd")
    assert str(error.value).startswith(
        "FED.PARTITION disjoint cannot deal 5 classes to 10 clients: this copy of "
        "DescribableTextures has 10 of the 47 published classes; use the published set, or "
        "FED.CLIENTS 1 to 5, or DATASET.SUBSAMPLE_CLASSES all (10 classes), or ")
    for classes, name in ((47, "dtd"), (10, "mine")):
        with pytest.raises(ConfigError, match="to 10 clients; use FED.CLIENTS 1 to 5, or"):
            check_fits(spec, pool, classes, name)


@pytest.mark.parametrize(
    ("classes", "clients", "each", "way_out"),
    [(10, 3, 2, {"classes_per_client": 4}), (10, 3, 2, {"clients": 5}),
     (3, 4, 5, {"classes_per_client": 3})],
)  # fmt: skip
def test_what_n_classes_advises_works(
    classes: int, clients: int, each: int, way_out: dict[str, int]
) -> None:
    pool = pool_of(classes, 12)
    asked = {"clients": clients, "classes_per_client": each}
    with pytest.raises(ConfigError) as error:
        check_fits(PartitionSpec("n_classes", **asked), pool, classes)  # type: ignore[arg-type]
    assert str(next(iter(way_out.values()))) in str(error.value)
    spec = PartitionSpec("n_classes", **(asked | way_out))  # type: ignore[arg-type]
    assert len(make_partition(pool, spec).train) == spec.clients


def test_n_classes_gives_each_holder_an_image_or_says_which_class_is_short() -> None:
    labels = {p: np.repeat([0, 1, 2], [3, 6, 9]) for p in ("train", "val", "test")}
    few = ImagePool(labels, 3, {}, (), ["a", "b", "c"])
    spec = PartitionSpec("n_classes", 3, classes_per_client=3)
    assert (table(few, make_partition(few, spec), "train") >= 1).all()
    assert (table(few, make_partition(few, spec), "test") >= 1).all()
    with pytest.raises(ConfigError, match="class 'a' has 3 training images for the 4 client"):
        make_partition(few, PartitionSpec("n_classes", 4, classes_per_client=3))


def small_pool(classes: int, each: int) -> ImagePool:
    labels = {p: np.repeat(np.arange(classes), n) for p, n in
              (("train", each), ("val", 1), ("test", 2))}
    return ImagePool(labels, classes, {p: np.zeros_like(a) for p, a in labels.items()}, [],
                [f"c{i}" for i in range(classes)])


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("classes", "shots", "rate", "clients"), [
    (2, 2, 0.5, 4), (4, 2, 0.5, 8), (3, 2, 1.0, 9), (50, 1, 0.02, 90),
])  # fmt: skip
def test_shared_classes_that_do_not_reach_all_clients_name_a_number_that_fits(
    classes: int, shots: int, rate: float, clients: int, seed: int
) -> None:
    pool = small_pool(classes, shots)
    spec = PartitionSpec("disjoint", clients, seed, repeat_rate=rate, shots=shots)
    with pytest.raises(ConfigError, match="without a training image; use FED.CLIENTS") as found:
        make_partition(pool, spec)
    fits = int(re.findall(r"FED\.CLIENTS (\d+)", str(found.value))[0])
    dealt = make_partition(pool, replace(spec, clients=fits))
    assert all(len(mine) for mine in dealt.train)
    assert sorted(np.concatenate(dealt.train)) == list(range(classes * shots))
    if fits + 1 < clients:
        with pytest.raises(ConfigError, match=f"use FED.CLIENTS {fits}, or"):
            make_partition(pool, replace(spec, clients=fits + 1))
