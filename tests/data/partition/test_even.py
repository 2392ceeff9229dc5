"""Even shares: each domain to its own clients."""

from __future__ import annotations

import pytest

from fedvlm.core.errors import ConfigError
from fedvlm.data.datum import PARTS
from fedvlm.data.partition.kinds import make_partition
from fedvlm.data.partition.spec import ImagePool, PartitionSpec
from tests.data.partition.pools import pool_of


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
