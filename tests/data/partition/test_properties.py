"""Every kind on any pool: each image once, the same again, another by seed, an end in any case."""

from __future__ import annotations

import itertools
import random
import re
import time
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedvlm.config.federation import PARTITION_ALIASES
from fedvlm.config.federation import PARTITIONS as CHOICES
from fedvlm.config.keys import default_schema
from fedvlm.core.errors import ConfigError
from fedvlm.data.datum import PARTS
from fedvlm.data.partition import dirichlet as partition_dirichlet
from fedvlm.data.partition.kinds import PARTITIONERS, candidates, make_partition
from fedvlm.data.partition.spec import ImagePool, Partition, PartitionSpec
from tests.data.partition.pools import DOMAINS, KINDS, NAMES, assert_each_once, equal, pool_of

SECONDS = 2.0  # for a few dozen images; a shared machine may be slow
CAN_BE_EMPTY = ("disjoint",)  # a client of classes without images; the run says so then


def generators() -> tuple[object, ...]:
    kind, keys, *rest = np.random.get_state(legacy=True)
    return random.getstate(), (kind, keys.tobytes(), *rest), torch.get_rng_state().numpy().tobytes()


@st.composite
def pools(draw: st.DrawFn) -> ImagePool:
    """Up to six classes of a few images in each part, some of none, over two domains."""
    classes, least = draw(st.integers(1, 6)), draw(st.sampled_from([0, 1, 6]))
    labels, domains = {}, {}
    for part in PARTS:
        sizes = draw(st.lists(st.integers(least, least + 6), min_size=classes, max_size=classes))
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        labels[part] = rng.permutation(np.repeat(np.arange(classes), sizes))
        domains[part] = rng.permutation(np.arange(len(labels[part])) % 2)
    return ImagePool(labels, classes, domains, DOMAINS, NAMES[:classes])


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    pool=pools(),
    clients=st.sampled_from(["1", "2", "4", "8", "classes + 1", "images"]),
    beta=st.sampled_from([1e-300, 1e-3, 0.3, 1e3, 1e300]),
    fine=st.sampled_from([1e-3, 10.0]),
    least=st.integers(1, 3),
    each=st.integers(1, 7),
    seed=st.integers(0, 2**40),
)
def test_any_pool(
    kind: str, pool: ImagePool, clients: str, beta: float, fine: float, least: int, each: int,
    seed: int,
) -> None:
    images = len(pool.labels["train"])
    known = {"classes + 1": pool.num_classes + 1, "images": images}
    count = max(1, known[clients] if clients in known else int(clients))
    spec = PartitionSpec(
        kind, count, seed, beta=beta, beta_fine=fine, min_size=least, classes_per_client=each
    )
    before, start = generators(), time.process_time()
    with mock.patch.object(partition_dirichlet, "_TRIES", 20):
        try:
            first = make_partition(pool, spec)
        except ConfigError as error:
            assert re.search(r"(use|raise) .*(FED|DATASET)\.[A-Z]", str(error))
            first = None
        assert time.process_time() - start < SECONDS
        assert generators() == before
        if first is None:
            with pytest.raises(ConfigError):
                make_partition(pool, spec)
            return
        assert_each_once(first, pool, count)
        assert equal(first, make_partition(pool, spec))
    if kind not in CAN_BE_EMPTY:
        assert min(map(len, first.train)) >= 1
    if kind in ("dirichlet", "domain_dirichlet", "quantity", "superclass_dirichlet"):
        assert min(map(len, first.train)) >= least


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=10)
@given(seeds=st.lists(st.integers(0, 2**40), min_size=2, max_size=2, unique=True))
def test_seeds_differ(kind: str, seeds: list[int]) -> None:
    pool = pool_of(12, 20)
    one, two = (
        make_partition(pool, PartitionSpec(kind, 4, seed, classes_per_client=4)) for seed in seeds
    )
    assert not equal(one, two)


@pytest.mark.parametrize("kind", KINDS)
def test_one_client_gets_everything(kind: str) -> None:
    pool = pool_of(5, 8)
    pool = ImagePool(pool.labels, 5, {p: 0 * d for p, d in pool.domains.items()}, ("a",), NAMES[:5])
    partition = make_partition(pool, PartitionSpec(kind, 1, classes_per_client=5))
    assert_each_once(partition, pool, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_train_val_and_test_have_one_distribution(kind: str) -> None:
    """A client's class shares differ between its parts no more than two fair draws do.

    The distance is the share that would have to move; unrelated clients are 0.3 to 1 apart.
    """
    pool = pool_of(10, 200)
    partition = make_partition(pool, PartitionSpec(kind, 4, beta=0.5, classes_per_client=5))
    for client in range(4):
        counts = [
            np.bincount(pool.labels[part][partition.part(part)[client]], minlength=10)
            for part in PARTS
        ]
        for a, b in itertools.combinations(counts, 2):
            distance = np.abs(a / a.sum() - b / b.sum()).sum() / 2
            assert distance < 0.8 * np.sqrt(10 / a.sum() + 10 / b.sum())


def classes_of(partition: Partition, pool: ImagePool, part: str) -> list[set[int]]:
    return [set(pool.labels[part][a].tolist()) for a in partition.part(part)]


@pytest.mark.parametrize("kind", ["n_classes", "disjoint", "dirichlet", "superclass_dirichlet"])
def test_clients_are_tested_on_what_they_trained_on(kind: str) -> None:
    pool = pool_of(10, 100)
    partition = make_partition(pool, PartitionSpec(kind, 5, beta=0.2, classes_per_client=3))
    trained, tested = (classes_of(partition, pool, part) for part in ("train", "test"))
    assert all(test <= train for train, test in zip(trained, tested, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_shots_before_the_partition_leave_a_domain_out(kind: str) -> None:
    """Label -1 is never drawn, and the shots of a class all come from what is left."""
    pool = pool_of(6, 12)
    out = {p: np.where(pool.domains[p] == 1, -1, pool.labels[p]) for p in PARTS}
    domains = {p: np.where(pool.domains[p] == 1, -1, 0) for p in PARTS}
    seen = ImagePool(out, 6, domains, ("a",), NAMES[:6])
    picked = candidates(seen, seen, PartitionSpec(kind, 2, shots=3, held_out="b"))
    assert np.bincount(out["train"][picked["train"]]).tolist() == [3] * 6
    assert (out["test"][picked["test"]] >= 0).all()


def test_the_config_knows_every_kind_and_alias() -> None:
    assert set(CHOICES) == set(PARTITIONERS) == {*KINDS, "natural"}  # no pool of KINDS has clients
    for alias, kind in PARTITION_ALIASES.items():
        assert default_schema()["FED.PARTITION"].parse(alias) == kind
