"""Properties that all kinds have, for any labels: disjoint, complete, deterministic, by name."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvlm.config.build import build_config
from fedvlm.config.keys import default_schema
from fedvlm.core.errors import ConfigError
from fedvlm.data.partition.kinds import (
    make_partition,
    shortage_notes,
    shots_per_client,
)
from fedvlm.data.partition.spec import ImagePool, Partition, PartitionSpec
from tests.data.partition.pools import KINDS, assert_each_once, equal, pool_of


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


@pytest.mark.parametrize(
    ("word", "kind"),
    [("pathological", "disjoint"), ("noniid-labeldir", "dirichlet"), ("homo", "iid"),
     ("Domain-Dirichlet", "domain_dirichlet"), ("DIRICHLET", "dirichlet")],
)  # fmt: skip
def test_family_spellings(word: str, kind: str) -> None:
    assert default_schema()["FED.PARTITION"].parse(word) == kind


def test_unknown_kind() -> None:
    with pytest.raises(ConfigError, match="FED.PARTITION.*did you mean 'dirichlet'"):
        build_config(None, None, {"FED.PARTITION": "dirichlett"}, [], default_schema())


def table(pool: ImagePool, partition: Partition, part: str) -> np.ndarray:
    """Images per client and class ``[K, C]``."""
    counts = [np.bincount(pool.labels[part][a], minlength=pool.num_classes)
              for a in partition.part(part)]  # fmt: skip
    return np.stack(counts)


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
