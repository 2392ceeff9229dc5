"""Methods of which a sum over clients is enough, and such a sum as a round's updates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedvlm.check.world import CheckWorld, Setup
from fedvlm.core.errors import FedvlmError
from fedvlm.core.trees import Tree
from fedvlm.federation.aggregation.sums import add_moves, beyond_sums, of_each, reads_single
from fedvlm.federation.aggregation.updates import Updates
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.server import ServerContext
from fedvlm.federation.trainer import Trainer


@pytest.fixture(scope="module")
def world() -> CheckWorld:
    return CheckWorld()


@pytest.mark.parametrize(("method", "why"), [
    ("fedavg", ""), ("promptfl", ""), ("ditto", ""), ("apfl", ""), ("feddecomp", ""),
    ("scaffold", "beside the shared tensors"), ("localonly", "send no shared tensor"),
    ("feddyn", "unlike models"), ("fedfomo", "unlike models"), ("fedas", "beside the shared"),
])  # fmt: skip
def test_what_a_method_declares_says_whether_a_sum_is_enough(
    world: CheckWorld, method: str, why: str
) -> None:
    fed = world.federation(load_trainer(method), Setup())
    for exact in (False, True):
        found = beyond_sums(fed.trainer, fed.groups, exact)
        assert why in found and bool(why) == bool(found)


def test_the_page_counts_the_methods_whose_sums_are_enough(world: CheckWorld) -> None:
    feds = [world.federation(load_trainer(name), Setup()) for name in trainer_files()]
    exact = [fed for fed in feds if not beyond_sums(fed.trainer, fed.groups, exact=True)]
    page = (Path(__file__).resolve().parents[3] / "docs/privacy.md").read_text(encoding="utf-8")
    assert f"{len(exact)} of the {len(feds)} methods remain" in page


def test_a_method_that_a_mean_changes_has_no_exact_sum(world: CheckWorld) -> None:
    """FedTV's weights come from cosines of single updates, whatever its `aggregators` allow."""
    fed = world.federation(load_trainer("fedtv"), Setup())
    assert beyond_sums(fed.trainer, fed.groups) == ""
    assert beyond_sums(fed.trainer, fed.groups, exact=True) == "its server reads single updates"


def test_an_aggregate_of_its_own_is_linear_only_where_its_class_says_so() -> None:
    class Own(Trainer):
        def combine(self, ctx: ServerContext, updates: Updates) -> Tree:
            return {}

    class Said(Own):
        linear = True

    assert Own.linear is False and Said.linear is True and isinstance(Trainer.linear, property)


def test_rules_that_look_at_single_updates() -> None:
    assert [r for r in ("auto", "mean", "median", "krum", "similarity") if reads_single(r)] == [
        "median", "krum", "similarity"]


def test_a_sum_is_of_moves_from_what_all_received() -> None:
    home = {"w": torch.tensor([1.0, 2.0])}
    rows = torch.tensor([[2.0, 2.0], [1.0, 6.0]])
    updates = Updates((3, 5), {"w": rows}, torch.ones(2, dtype=torch.float64),
                      received={"w": home["w"].expand(2, 2)})
    sums = {"w": torch.zeros(2, dtype=torch.float64)}
    add_moves(sums, updates, torch.tensor([0.25, 0.5], dtype=torch.float64), home, "KEY")
    assert sums["w"].tolist() == [0.25, 2.0]
    each = of_each((3, 5), home, sums, {"w": (8, 0)})
    assert each.params["w"].tolist() == [[1.25, 4.0]] * 2 and each.weight.tolist() == [1, 1]
    assert each.bytes() == {3: {"w": 8}, 5: {}}
    with pytest.raises(FedvlmError, match="KEY does not cover 'w': clients received unlike"):
        add_moves(sums, updates, torch.ones(2), {"w": torch.zeros(2)}, "KEY")
