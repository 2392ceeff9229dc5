"""The pretend device itself: it tells what CUDA would refuse, wait for, or not repeat."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from fedvlm.core.trees import to_device
from fedvlm.federation.batches import IndexSplit, SplitBatcher
from fedvlm.federation.local.balance import Balance
from fedvlm.models.features.sources import FeatureSource
from tests.device.card import pretend_card
from tests.device.tensor import OnDevice, leaves_of, map_leaves


def test_numbers_gradients_and_modules_follow() -> None:
    weight = torch.randn(4, 3)
    x = torch.randn(5, 4)
    with pretend_card() as tally:
        w = weight.to("cuda").requires_grad_(True)
        (x.to("cuda") @ w).square().sum().backward()
        assert isinstance(w.grad, OnDevice) and w.device == torch.device("cuda:0")
        there = w.grad.cpu()
        net = nn.Linear(4, 3).to("cuda").to(torch.bfloat16)
        net.weight.data = torch.ones(3, 4, device="cuda")
        assert net.weight.cpu().sum() == 12
    assert torch.allclose(there, 2 * x.mT @ (x @ weight)) and not tally.mixed
    assert tally.flops["job"] and tally.kernels["job"]


@pytest.mark.parametrize("tree", [
    3, None, [], (), {}, [1, (2, [None, torch.float32]), "x"], ((1, [2, 3]), {"b": [4], "a": (5,)}),
], ids=repr)
def test_what_an_operation_takes_and_gives_is_walked_as_pytorch_does(tree: object) -> None:
    assert leaves_of(tree) == tree_leaves(tree)
    changed = map_leaves(lambda x: (x, "seen"), tree)
    assert repr(changed) == repr(tree_map(lambda x: (x, "seen"), tree))


def test_what_is_counted() -> None:
    with pretend_card(cards=2) as tally:
        x = torch.zeros(3, device="cuda")
        x[x > 0]
        float(x.sum())
        x[[0, 1]]
        torch.where(torch.ones(3, dtype=torch.bool), x, x)
        x + torch.zeros(3, device="cuda:1")
        x.cumsum(0)
    assert sum(tally.reads.values()) == 2 and sum(tally.blocking.values()) == 1
    assert sum(tally.mixed.values()) == 2 and sum(tally.unsure.values()) == 1


def test_operations_without_a_fixed_order() -> None:
    """One floating tensor is enough, whichever it is."""
    with pretend_card() as tally:
        x = torch.ones(1, 2, 4, 4, device="cuda", requires_grad=True)
        which = torch.zeros(4, dtype=torch.int64, device="cuda")
        which.bincount()
        assert not tally.unsure
        which.bincount(torch.ones(4, device="cuda"))
        F.adaptive_max_pool2d(x, 2).sum().backward()
        F.max_pool3d(x, 2).sum().backward()
        F.interpolate(x[0], 8, mode="linear").sum().backward()
        F.interpolate(x[None], 8, mode="trilinear").sum().backward()
    assert sorted(key.split(" | ")[1] for key in tally.unsure) == [
        "adaptive_max_pool2d_backward", "bincount", "max_pool3d_with_indices_backward",
        "upsample_linear1d_backward", "upsample_trilinear3d_backward"]


def test_only_pinned_memory_is_copied_without_waiting() -> None:
    host = torch.arange(6.0).view(2, 3)
    with pretend_card() as tally:
        host.to("cuda", non_blocking=True)
        torch.zeros(2, 3, device="cuda").copy_(host, non_blocking=True)
        host.mT.pin_memory().to("cuda", non_blocking=True)  # CUDA would first lay it out, pageable
        assert sum(tally.pageable.values()) == sum(tally.blocking.values()) == 3
        there = to_device(host.mT, torch.device("cuda"))
        assert torch.equal(there.cpu(), host.mT)
    assert sum(tally.blocking.values()) == 3 and sum(tally.copies.values()) == 1
    assert to_device(host, torch.device("cpu")) is host


@pytest.mark.parametrize("copied", [0, 1])
def test_what_a_batch_copies(copied: int) -> None:
    """Nothing where features lie on the device, else itself; groups and class weights never."""
    labels, groups = torch.arange(12) % 5 % 3, np.arange(12) // 2
    host = FeatureSource.of(torch.randn(1, 12, 4), torch.arange(12), labels)
    none = np.zeros(0, np.int64)
    splits = [IndexSplit(np.arange(*at), none, none) for at in ((0, 7), (7, 12))]

    def costs(source: FeatureSource, device: torch.device) -> Iterator[tuple[Tensor, ...]]:
        batcher = SplitBatcher(
            source, splits, 2, 1, 1, 1, device, torch.float32, groups=groups, grouped=True,
            balance=Balance("balanced", labels.numpy(), splits, 3))
        for step in batcher.steps((0, 1), 1, 1, 1, "w"):
            (batch,) = step.batches
            cost = batch.costs(torch.float32)
            assert cost is not None and batch.groups is not None
            yield cost, batch.groups, batch.x["features"]

    plain = list(costs(host, torch.device("cpu")))
    with pretend_card() as tally:
        device = torch.device("cuda")
        steps = costs(host if copied else host.on(device), device)
        found = [next(steps)]
        with tally.within("later"):
            found += list(steps)
        assert not tally.reads and not tally.during(tally.blocking, "later")
        assert sum(tally.during(tally.copies, "later").values()) == copied * (len(found) - 1)
        for a, b in zip(found, plain, strict=True):
            assert all(torch.equal(x.cpu(), y) for x, y in zip(a, b, strict=True))


def test_the_machine_is_as_before() -> None:
    made, there = torch.zeros, torch.cuda.is_available()
    with pretend_card():
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
        with pytest.raises(TypeError, match="numpy"):
            torch.zeros(1, device="cuda").numpy()
    assert torch.zeros is made and torch.cuda.is_available() == there
