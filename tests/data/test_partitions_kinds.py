"""What each of the newer kinds promises, on pools where the answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from data_helpers import shared
from hypothesis import given, settings
from hypothesis import strategies as st
from test_partitions import NAMES, pool_of

from fedvlm.core.errors import ConfigError, fold
from fedvlm.data.catalog import CIFAR100_SUPERCLASSES, superclasses_of
from fedvlm.data.partition.classes import draw_classes
from fedvlm.data.partition.deal import even_cut, none_empty, proportions
from fedvlm.data.partition.dirichlet import draw_profiles
from fedvlm.data.partition.kinds import (
    check_fits,
    make_partition,
    shortage_notes,
    shots_per_client,
)
from fedvlm.data.partition.spec import ImagePool, Partition, PartitionSpec


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


@pytest.mark.parametrize("kind", ["n_classes", "domain"])
def test_shots_are_drawn_from_the_clients_own(kind: str) -> None:
    pool = pool_of(4, 40)
    spec = PartitionSpec(kind, 4, classes_per_client=2, shots=3)
    partition = shots_per_client(pool, spec)
    train = table(pool, partition, "train")
    assert set(train.ravel()) == ({0, 3} if kind == "n_classes" else {3})
    every = np.concatenate(partition.train)
    assert len(np.unique(every)) == len(every)
    assert shortage_notes(pool, partition, spec) == []
    many = PartitionSpec(kind, 4, classes_per_client=2, shots=30)  # more than any client's own
    whole = shots_per_client(pool, many)
    full = make_partition(pool, many)
    assert np.array_equal(table(pool, whole, "train"), table(pool, full, "train"))
    (note,) = shortage_notes(pool, whole, many)
    assert f"in {(table(pool, full, 'train') > 0).sum()} case(s)" in note


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


def test_the_table_of_superclasses() -> None:
    assert len(CIFAR100_SUPERCLASSES) == 20
    assert {len(group) for group in CIFAR100_SUPERCLASSES.values()} == {5}
    assert len({fold(name) for name in NAMES}) == 100
    assert np.bincount(superclasses_of(NAMES)).tolist() == [5] * 20
    assert superclasses_of(["pickup truck", "Aquarium_Fish", "whale"]).tolist() == [18, 1, 0]


def test_the_table_has_the_names_of_the_real_set() -> None:
    folders = {path.name for path in (shared("cifar-100") / "train").iterdir() if path.is_dir()}
    assert folders == set(NAMES)


@pytest.mark.parametrize("names", [["cat", "dog"], [], ["apple", "truck"]])
def test_other_sets_have_no_superclasses(names: list[str]) -> None:
    pool = ImagePool({p: np.repeat(np.arange(len(names)), 9) for p in ("train", "val", "test")},
                len(names), {}, (), names)  # fmt: skip
    spec = PartitionSpec("superclass_dirichlet", 2)
    with pytest.raises(ConfigError, match="DATASET.NAME Cifar100 only.*use FED.PARTITION dirich"):
        check_fits(spec, pool, len(names))


@settings(deadline=None, max_examples=100)
@given(
    st.integers(1, 8), st.integers(1, 8), st.integers(0, 2), st.integers(0, 999), st.booleans()
)
def test_even_cuts_lose_nothing(
    classes: int, clients: int, least: int, seed: int, sparse: bool
) -> None:
    rng = np.random.default_rng(seed)
    shares = rng.random((classes, clients))
    shares *= (rng.random(shares.shape) < 0.4) | (not sparse)
    shares[shares.sum(axis=1) == 0, 0] = 1
    shares /= shares.sum(axis=1, keepdims=True)
    counts = rng.integers(0, 40, classes)
    cut = even_cut(shares, counts, least)
    assert cut.sum(axis=1).tolist() == counts.tolist() and cut.min() >= 0
    assert not cut[shares == 0].any()
    enough = counts >= least * (shares > 0).sum(axis=1)
    assert (cut[enough] >= least * (shares[enough] > 0)).all()


def test_even_cuts_favour_nobody() -> None:
    assert even_cut(np.full((30, 3), 1 / 3), np.ones(30, dtype=np.int64)).sum(axis=0).tolist() == [
        10, 10, 10,
    ]  # fmt: skip
    assert even_cut(np.array([[0.5, 0.3, 0.2]]), np.array([10])).tolist() == [[5, 3, 2]]
    assert even_cut(np.array([[0.9, 0.1, 0.0]]), np.array([3]), least=1).tolist() == [[2, 1, 0]]


def test_a_client_without_an_image_gets_one_of_its_classes_from_the_richest() -> None:
    shares = np.array([[0.5, 0.1, 0.4], [0.9, 0.1, 0.0], [1.0, 0.0, 0.0]])
    cut = np.array([[2, 0, 3], [4, 0, 0], [9, 0, 0]])
    assert none_empty(cut, shares).tolist() == [[2, 0, 3], [3, 1, 0], [9, 0, 0]]
    alone = np.array([[1, 0]])
    assert none_empty(alone, np.array([[0.5, 0.5]])).tolist() == [[1, 0]]  # nobody can spare one


def test_proportions_in_their_limits() -> None:
    rng = np.random.default_rng(0)
    assert sorted(proportions(1e-300, 4, rng)) == [0, 0, 0, 1]
    assert np.allclose(proportions(1e308, 4, rng), 0.25, atol=1e-5)
