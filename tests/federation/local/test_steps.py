"""The plan of a fit's batches against a loop that makes one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedvlm.core import rng
from fedvlm.core.errors import FedvlmError
from fedvlm.federation.batches import IndexSplit, SplitBatcher, step_slices
from fedvlm.models.features.sources import FeatureSource, JoinedSource
from tests.federation.toys import ToySource

VIEWS = 3
NONE = np.zeros(0, np.int64)


def batcher(sizes: Sequence[int], batch: int, cached: bool) -> SplitBatcher:
    edges = np.cumsum([0, *sizes])
    n = int(edges[-1])
    splits = [IndexSplit(np.arange(a, b), NONE, NONE)
              for a, b in zip(edges[:-1], edges[1:], strict=True)]
    labels = torch.arange(n) % 7
    source: Any = ToySource({"features": torch.arange(n).double()}, labels)
    if cached:
        table = torch.arange(VIEWS)[:, None] * 1000.0 + torch.arange(n).double()
        shuffled = torch.randperm(n, generator=rng.stream(0, "test"))
        source = FeatureSource.of(table[:, shuffled], shuffled, labels)
    return SplitBatcher(
        source, splits, batch, 1, VIEWS, 2, torch.device("cpu"), torch.float64
    )


def looped(b: SplitBatcher, clients: list[int], round_: int, epochs: int, per_step: int) -> Any:
    """Yield (samples, labels, weights, views) of every batch, as one would write it down."""
    cuts = [step_slices(n, b.batch_size, per_step) for n in b.sizes(clients)]
    for t in range(max(epochs * len(c) for c in cuts)):
        active = sum(epochs * len(c) > t for c in cuts)
        for j in range(per_step):
            picks, views = [], []
            for k in range(active):
                epoch = t // len(cuts[k])
                train = torch.tensor(b.splits[clients[k]].train)
                draw = rng.stream(1, "batches/w", round_, clients[k], epoch)
                start, stop = cuts[k][t % len(cuts[k])][j]
                picks.append(train[torch.randperm(len(train), generator=draw)][start:stop])
                views.append(((round_ - 1) * 2 + epoch) % VIEWS)
            width = max(map(len, picks))
            index = torch.stack([
                torch.cat([p, p[:1].expand(width - len(p))]) for p in picks
            ])
            weight = torch.stack([(torch.arange(width) < len(p)).double() for p in picks])
            yield index, weight, torch.tensor(views), [len(p) for p in picks]


@given(
    st.lists(st.integers(1, 11), min_size=1, max_size=4), st.integers(1, 5), st.integers(1, 3),
    st.integers(1, 2), st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_planned_batches_are_those_of_the_loop(
    sizes: list[int], batch: int, epochs: int, per_step: int, cached: bool
) -> None:
    b = batcher(sorted(sizes, reverse=True), batch, cached)
    clients = sorted(range(len(sizes)), key=lambda c: -len(
        step_slices(b.sizes([c])[0], batch, per_step)))
    found = [part for step in b.steps(clients, 2, epochs, per_step, "w") for part in step.batches]
    expected = list(looped(b, clients, 2, epochs, per_step)) if any(
        step_slices(n, batch, per_step) for n in sizes) else []
    assert len(found) == len(expected)
    for ours, (index, weight, views, counts) in zip(found, expected, strict=True):
        x: Tensor = ours.x["features"]
        assert torch.equal(x, index + 1000.0 * views[:, None] * cached)
        assert torch.equal(ours.y, index % 7) and torch.equal(ours.w, weight)
        assert list(ours.counts) == counts and ours.samples == sum(counts)
        assert x.is_contiguous() and ours.y.is_contiguous() and ours.w.is_contiguous()


def test_streams_side_by_side_are_planned_like_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows come to the device with the plan, and no batch looks for its samples."""
    b = batcher([7, 4, 3], 2, True)
    n = len(b.source.labels)
    back = torch.arange(n).flip(0)  # rows of their own
    table = FeatureSource.of(
        -torch.arange(VIEWS)[:, None] * 1000.0 - back.double(), back, b.source.labels, "tokens.0")
    first: Any = b.source
    both = replace(b, source=JoinedSource((first, table)))
    monkeypatch.setattr(FeatureSource, "fetch", None)
    steps = (list(one.steps([0, 1, 2], 2, 2, 1, "w")) for one in (b, both))
    for one, two in zip(*steps, strict=True):
        for x, y in zip(one.batches, two.batches, strict=True):
            assert torch.equal(x.y, y.y) and torch.equal(x.w, y.w)
            assert torch.equal(y.x["features"], x.x["features"])
            assert torch.equal(y.x["tokens.0"], -x.x["features"])


def test_a_sample_that_is_not_cached_is_told_before_the_first_step() -> None:
    labels = torch.zeros(4, dtype=torch.int64)
    source = FeatureSource.of(torch.zeros(1, 3, 2), torch.tensor([0, 1, 2]), labels)
    split = IndexSplit(np.arange(4), NONE, NONE)
    b = SplitBatcher(source, [split], 1, 1, 1, 1, torch.device("cpu"), torch.float32)
    with pytest.raises(FedvlmError, match="sample 3 has no cached features"):
        next(iter(b.steps([0], 1, 1, 1, "w")))


def test_a_part_of_a_batch_has_its_own_counts() -> None:
    (step,) = batcher([4, 2], 4, True).steps([0, 1], 1, 1, 1, "w")
    (b,) = step.batches
    assert b.counts == (4, 2)
    assert b.part(2, 1, 3).counts == (2, 1) and b.part(2, 3).counts == (1, 0)
    assert b.part(1, 2, 9).counts == (2,) and b.part(1).y.shape == (1, 4)
    assert torch.equal(b.part(2, 1, 3).x["features"], b.x["features"][:, 1:3])


def test_tables_stay_where_they_are_on_a_cpu() -> None:
    source = batcher([3], 2, True).source
    assert isinstance(source, FeatureSource) and source.on(torch.device("cpu")) is source
