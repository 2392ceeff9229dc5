"""What a partition depends on: values in range, and an identity of what counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fedvlm.core.errors import ConfigError
from fedvlm.data.partition.spec import PartitionSpec
from tests.data.partition.pools import KINDS


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
