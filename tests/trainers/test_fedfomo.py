"""FedFomo: first-order weights by hand, who receives what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedvlm.check.world import CheckWorld, Setup
from fedvlm.core.errors import DataError
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.rounds import Federation

from .toys import drive, leaves, own, personal, shared

FedFomo = load_trainer("FedFomo")
W = "image.w"
FIXED = {"VARIANT": "fixed"}


def mixture(a: float, b: float, theta: float, others: list[float]) -> tuple[float, list[float]]:
    """Return client 0's model after mixing, and the weights before they are normalised."""
    fed, _ = drive("FedFomo", 0, val=1, options=FIXED)
    fed.batcher.source.streams = {"a": torch.full((2,), a).double(),
                                  "b": torch.full((2,), b).double()}
    one = {n: torch.tensor([v], dtype=torch.float64) for n, v in {
        W: theta, **{f"fomo.{i}.{W}": x for i, x in enumerate(others)}
    }.items()}
    ctx = fed.context([0], 1)
    found = fed.trainer.mixed(ctx, {"w": {W: one[W]}}, one)
    batch = ctx.whole("val")
    assert batch is not None
    trees = [{W: one[f"fomo.{i}.{W}"]} for i in range(len(others))]
    raw = fed.trainer.values(ctx, {W: one[W]}, trees, batch)
    return float(found[W]), raw.flatten().tolist()


def test_weights_and_mixture_by_hand() -> None:
    """The specs' own example, and one in which two models help."""
    assert mixture(1.0, 1.0, 4.0, [2.0, -2.0]) == (2.0, [2.0, 0.0])
    # losses 8, 2, 2 over distances 2 and 6: weights 3 and 1, 4 - 0.75 * 2 - 0.25 * 6
    assert mixture(1.0, 0.0, 4.0, [2.0, -2.0]) == (1.0, [3.0, 1.0])


def test_as_released_the_base_is_the_model_before_the_last_training() -> None:
    """From 4, with one's own trained model 2 and another's -2: 4 - 0.75 * 2 - 0.25 * 6."""
    fed, _ = drive("FedFomo", 1, val=1)
    fed.batcher.source.streams = {"a": torch.ones(2).double(), "b": torch.zeros(2).double()}
    one = {n: torch.tensor([v], dtype=torch.float64) for n, v in {
        W: 2.0, f"fomo.0.{W}": -2.0}.items()}
    ctx = replace(fed.context([0], 2), newcomers=(False,))
    first = {W: torch.tensor([4.0], dtype=torch.float64)}
    found = fed.trainer.mixed(ctx, {"w": {W: one[W]}, "first": first}, one)
    assert float(found[W]) == pytest.approx(1.0, abs=1e-12)


def test_what_does_not_help_is_left_alone() -> None:
    assert mixture(1.0, 1.0, 1.0, [2.0, -2.0]) == (1.0, [0.0, 0.0])
    assert mixture(1.0, 1.0, 4.0, [4.0, 4.0]) == (4.0, [0.0, 0.0])  # equal models: no distance
    assert mixture(2.0, 1.0, 4.0, [4.0, 2.0])[0] == 2.0


def test_opposed_clients_keep_apart() -> None:
    """Each goes on from its own model (FedAvg would start both at 0.6); the mean is for reports."""
    fed, state = drive("FedFomo", 2, val=1, options=FIXED)
    assert own(state) == pytest.approx([0.0, 2.04], abs=1e-12)
    assert personal(fed, state) == own(state)
    assert shared(state) == pytest.approx(1.02, abs=1e-12)


def test_alike_clients_take_the_better_model() -> None:
    """Both want 4 with a = 3; client 1 has a step more each round, so client 0 takes its model."""
    fed, state = drive("FedFomo", 1, val=1, sizes=(2, 1), batch=1, options=FIXED)
    fed.batcher.source.streams = {"a": torch.full((3,), 3.0).double(),
                                  "b": torch.full((3,), 4.0).double()}
    first = fed.round(fed.start(), 1)
    assert own(first) == pytest.approx([4 * (1 - 0.49), 1.2], abs=1e-12)
    assert personal(fed, first) == pytest.approx([4 * (1 - 0.49)] * 2, abs=1e-12)
    assert personal(fed, first)[0] == own(first)[0]  # the worse one does not move it


def test_a_client_without_validation_images_takes_its_training_images() -> None:
    fed, state = drive("FedFomo", 0, val=1, options=FIXED)
    fed.batcher.splits[1].val = np.zeros(0, np.int64)
    fed.roster.val[1] = 0
    told: list[Any] = []
    fed.subscribers.append(told.append)
    state = fed.round(fed.round(state, 1), 2)
    assert own(state) == pytest.approx([0.0, 2.04], abs=1e-12)
    assert told[-1].report["without_validation"] == [1]


def test_without_any_validation_image_it_is_refused() -> None:
    with pytest.raises(DataError, match="no client has validation images.*VAL_SHOTS above 0"):
        drive("FedFomo", 1)


@pytest.fixture(scope="module")
def world() -> CheckWorld:
    return CheckWorld()


def sources(fed: Federation, state: Any, round_: int, client: int) -> list[int]:
    """Return whose models a client receives beside its own."""
    down = fed.downloads(state, round_, [client])[client]
    names = fed.groups.shared
    count = len(down) // len(names) - 1
    assert set(down) == {*names, *(f"fomo.{i}.{n}" for i in range(count) for n in names)}
    own_models = fed.downloads(state, round_, sorted(state.versions))
    return [
        c for i in range(count) for c, one in own_models.items()
        if all(torch.equal(one[n], down[f"fomo.{i}.{n}"]) for n in names)
    ]


def test_others_are_drawn_without_oneself(world: CheckWorld) -> None:
    fed = world.federation(FedFomo, Setup(opts={"M": 2}))
    state = fed.start()
    assert [sources(fed, state, 1, c) for c in range(4)] == [[]] * 4
    state = fed.round(state, 1)
    seen: dict[int, set[int]] = {c: set() for c in range(4)}
    for round_ in range(2, 12):
        for c in range(4):
            got = sources(fed, state, round_, c)
            assert len(got) == len(set(got)) == 2 and c not in got
            assert got == sources(fed, state, round_, c)
            seen[c] |= set(got)
    assert all(seen[c] == {0, 1, 2, 3} - {c} for c in seen)
    every = world.federation(FedFomo, Setup(opts={"M": 9}))
    assert sorted(sources(every, every.round(every.start(), 1), 2, 1)) == [0, 2, 3]


def test_newcomers_start_from_the_mean_and_receive_as_many(world: CheckWorld) -> None:
    fed = world.federation(FedFomo)
    state = fed.start()
    fed.plan = type(fed.plan)(**(vars(fed.plan) | {"frac": 0.5, "first_round_all": False}))
    state = fed.round(state, 1)
    (new, *_), (old, *_) = (
        [c for c in range(4) if (c in state.versions) is known] for known in (False, True)
    )
    assert len(state.versions) == 2
    assert len(sources(fed, state, 2, new)) == len(sources(fed, state, 2, old)) == 1
    down = fed.downloads(state, 2, [new])[new]
    assert all(torch.equal(down[n], state.server["w"][n]) for n in fed.groups.shared)


def test_stacked_equals_one_by_one() -> None:
    unequal = {"epochs": 2, "sizes": (7, 3), "batch": 2, "momentum": 0.9, "val": 2}
    ends = [dict(leaves(drive("FedFomo", 3, chunk=chunk, **unequal)[1])) for chunk in (1, 2)]
    assert {n: v.tolist() for n, v in ends[0].items()} == {
        n: v.tolist() for n, v in ends[1].items()
    }
