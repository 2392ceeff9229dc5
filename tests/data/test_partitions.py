"""Properties every partition has, for any labels: disjoint, complete, deterministic, bounded."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvlm.core.errors import ConfigError
from fedvlm.data.catalog import CIFAR100_SUPERCLASSES
from fedvlm.data.datum import PARTS, IntArray
from fedvlm.data.partition.classes import class_map
from fedvlm.data.partition.dirichlet import cut_counts, draw_shares
from fedvlm.data.partition.kinds import canonical_kind, make_partition
from fedvlm.data.partition.spec import ImagePool, Partition, PartitionSpec

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


@settings(deadline=None, max_examples=80)
@given(
    kind=st.sampled_from(KINDS),
    classes=st.integers(4, 12),
    per_class=st.integers(8, 30),
    half=st.integers(1, 2),
    beta=st.sampled_from([0.1, 0.5, 5.0]),
    seed=st.integers(0, 10_000),
)
def test_each_index_exactly_once_and_deterministic(
    kind: str, classes: int, per_class: int, half: int, beta: float, seed: int
) -> None:
    pool = pool_of(classes, per_class)
    spec = PartitionSpec(kind, 2 * half, seed=seed, beta=beta, classes_per_client=classes)
    before = random.getstate(), np.random.get_state()[1].copy()
    try:
        first = make_partition(pool, spec)
    except ConfigError as error:
        assert "Dirichlet" in str(error) and "raise FED.BETA" in str(error)
        return
    assert random.getstate() == before[0]
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert_each_once(first, pool, spec.clients)
    assert equal(first, make_partition(pool, spec))


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_gives_another_partition(kind: str) -> None:
    pool = pool_of(12, 20)
    specs = [PartitionSpec(kind, 4, seed=s, classes_per_client=4) for s in (1, 2)]
    one, two = (make_partition(pool, spec) for spec in specs)
    assert not equal(one, two)


@pytest.mark.parametrize("kind", ["dirichlet", "domain_dirichlet"])
@pytest.mark.parametrize(("clients", "beta"), [
    *((clients, beta) for clients in (2, 10) for beta in (1e-300, 1e-8, 0.001, 0.01, 1e6)),
    (40, 1e-300), (40, 0.01), (40, 1e6),  # the first two use up all tries: seconds each
])  # fmt: skip
def test_extreme_dirichlet_ends(kind: str, clients: int, beta: float) -> None:
    pool = pool_of(10, 24)
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


def test_cuts_lose_no_image_to_rounding() -> None:
    short = np.array([[0.3, 0.3, 0.4 - 1e-6], [1.0, 0.0, 0.0]])
    cut = cut_counts(short, np.array([1000, 7]))
    assert cut.sum(axis=1).tolist() == [1000, 7] and (cut >= 0).all()


def test_too_few_images_says_so_at_once() -> None:
    with pytest.raises(ConfigError, match="8 train images cannot give 5 clients 4 each"):
        make_partition(pool_of(2, 4), PartitionSpec("dirichlet", 5, min_size=4))
    with pytest.raises(ConfigError, match=r"only 4 train images.*use FED.CLIENTS 1 to 4"):
        make_partition(pool_of(2, 2), PartitionSpec("iid", 5))


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


def test_by_domain() -> None:
    pool = pool_of(5, 12)
    partition = make_partition(pool, PartitionSpec("domain", 4))
    for part in PARTS:
        held = [set(pool.domains[part][a].tolist()) for a in partition.part(part)]
        assert held == [{0}, {0}, {1}, {1}]


@pytest.mark.parametrize("kind", ["domain", "domain_dirichlet"])
@pytest.mark.parametrize(("clients", "choice"), [(1, "2"), (3, "2 or 4"), (7, "6 or 8")])
def test_clients_must_be_a_multiple_of_the_domains(kind: str, clients: int, choice: str) -> None:
    with pytest.raises(ConfigError, match=f"use FED.CLIENTS {choice}$"):
        make_partition(pool_of(5, 12), PartitionSpec(kind, clients))


def test_domain_kind_without_domains() -> None:
    pool = pool_of(5, 12)
    with pytest.raises(ConfigError, match="needs a set with domains"):
        make_partition(ImagePool(pool.labels, 5), PartitionSpec("domain", 2))


@pytest.mark.parametrize(
    ("word", "kind"),
    [("pathological", "disjoint"), ("noniid-labeldir", "dirichlet"), ("homo", "iid"),
     ("Domain-Dirichlet", "domain_dirichlet"), ("DIRICHLET", "dirichlet")],
)  # fmt: skip
def test_family_spellings(word: str, kind: str) -> None:
    assert canonical_kind(word) == kind


def test_unknown_kind() -> None:
    with pytest.raises(ConfigError, match="FED.PARTITION: .*did you mean 'dirichlet'"):
        canonical_kind("dirichlett")


@pytest.mark.parametrize(
    "bad",
    [{"clients": 0}, {"beta": 0.0}, {"beta": float("inf")}, {"min_size": 0}, {"shots": 0},
     {"repeat_rate": 1.5}, {"beta_fine": 0.0}, {"classes_per_client": 0},
     {"legacy": True, "repeat_rate": 0.1}],
)  # fmt: skip
def test_values_out_of_range(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="FED|DATASET"):
        PartitionSpec(**({"kind": "iid", "clients": 2} | bad))  # type: ignore[arg-type]


def test_unused_options_do_not_change_the_identity() -> None:
    make: Callable[..., PartitionSpec] = PartitionSpec
    assert make("disjoint", 3, beta=0.1).identity() == make("disjoint", 3, beta=0.9).identity()
    assert make("dirichlet", 3, beta=0.1).identity() != make("dirichlet", 3, beta=0.9).identity()
    used = {"n_classes": "classes_per_client", "superclass_dirichlet": "beta_fine"}
    for kind in KINDS:
        plain = make(kind, 3).identity()
        assert "held_out" not in plain
        assert make(kind, 3, held_out="b").identity() == plain | {"held_out": "b"}
        for option in ("classes_per_client", "beta_fine"):
            changed = make(kind, 3, **{option: 7}).identity()
            assert (changed != plain) == (used.get(kind) == option)
