"""Batches lose no sample and are a function of the seed; sources hand out the right one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvlm.core.errors import FedvlmError
from fedvlm.federation.batches import Batch, SplitBatcher, step_slices
from fedvlm.federation.trainer import cross_entropy
from fedvlm.models.features.sources import FeatureSource, PixelSource
from tests.federation.toys import ToySource, ToySplit


@given(st.integers(0, 200), st.integers(1, 40), st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_slices_use_every_sample_once(n: int, batch: int, per_step: int) -> None:
    steps = step_slices(n, batch, per_step)
    used = [i for step in steps for start, stop in step for i in range(start, stop)]
    assert all(len(step) == per_step for step in steps)
    assert all(0 < stop - start <= batch for step in steps for start, stop in step)
    assert bool(steps) == (n > 0)
    if n >= per_step:
        assert len(used) == len(set(used))
        assert len(used) > n - per_step
    if per_step == 1:
        assert used == list(range(n))


def batcher(sizes: list[int], seed: int = 1, views: int = 1, batch: int = 4) -> SplitBatcher:
    edges = np.cumsum([0, *sizes])
    total = int(edges[-1])
    source = ToySource({"i": torch.arange(total)}, torch.arange(total))
    splits = [ToySplit(np.arange(a, b)) for a, b in zip(edges[:-1], edges[1:], strict=True)]
    return SplitBatcher(source, splits, batch, seed, views, 2, torch.device("cpu"), torch.float64)


def test_padding_is_weighted_zero_and_every_epoch_sees_all_samples() -> None:
    seen: dict[int, list[int]] = {0: [], 1: []}
    for step in batcher([10, 3]).steps([0, 1], 1, 2, 1, "w"):
        (b,) = step.batches
        assert b.x["i"].shape == b.y.shape == b.w.shape
        for k in range(step.active):
            seen[k] += b.y[k][b.w[k] > 0].tolist()
        assert step.samples == int(b.w.sum())
    assert sorted(seen[0]) == sorted(list(range(10)) * 2)
    assert sorted(seen[1]) == sorted([10, 11, 12] * 2)


def test_padding_is_out_of_the_loss() -> None:
    z = torch.tensor([[[2.0, 0.0], [0.0, 1.0], [9.0, 0.0]]])
    y, w = torch.tensor([[0, 0, 1]]), torch.tensor([[1.0, 1.0, 0.0]])
    alone = cross_entropy(z[:, :2], Batch({}, y[:, :2], w[:, :2]))
    assert torch.equal(cross_entropy(z, Batch({}, y, w)), alone)


def test_views_go_on_from_round_to_round() -> None:
    class Views(ToySource):
        def fetch(self, indices: torch.Tensor, view: int) -> dict[str, torch.Tensor]:
            return {"view": torch.full((len(indices),), view)}

    source = Views({}, torch.zeros(2, dtype=torch.int64))
    three = replace(batcher([2], views=3), source=source)
    steps = [step for round_ in (1, 2) for step in three.steps([0], round_, 2, 1, "w")]
    seen = [int(step.batches[0].x["view"][0, 0]) for step in steps]
    assert seen == [0, 1, 2, 0]  # two epochs a round


def test_a_client_sees_the_same_batches_alone_and_in_company() -> None:
    def sequence(clients: list[int], who: int) -> list[list[int]]:
        k = clients.index(who)
        return [s.batches[0].y[k][s.batches[0].w[k] > 0].tolist()
                for s in batcher([10, 7, 3]).steps(clients, 4, 2, 1, "w") if s.active > k]

    assert sequence([1], 1) == sequence([0, 1, 2], 1)


def test_shuffles_depend_on_seed_round_and_tag() -> None:
    def first(seed: int, round_: int, tag: str) -> list[int]:
        return next(iter(batcher([40], seed).steps([0], round_, 1, 1, tag))).batches[0].y.tolist()

    base = first(1, 1, "w")
    assert base == first(1, 1, "w")
    assert all(base != other for other in (first(2, 1, "w"), first(1, 2, "w"), first(1, 1, "v")))


def test_global_generators_are_untouched() -> None:
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    list(batcher([5, 2]).steps([0, 1], 1, 1, 1, "w"))
    assert torch.equal(torch_state, torch.get_rng_state())
    assert (numpy_state == np.random.get_state()[1]).all()


def test_feature_source_maps_samples_to_rows_and_views() -> None:
    labels = torch.arange(6)
    used = torch.tensor([4, 1, 3])
    table = torch.stack([used.float()[:, None] * 10 + v for v in range(2)])
    source = FeatureSource.of(table, used, labels)
    assert source.fetch(torch.tensor([3, 4, 3]), 1)["features"].flatten().tolist() == [31, 41, 31]


def test_pixel_source_decodes_each_image_once() -> None:
    seen: list[tuple[int, int]] = []

    def load(i: int, view: int) -> torch.Tensor:
        seen.append((i, view))
        return torch.full((3, 2, 2), float(i))

    out = PixelSource(load, torch.arange(9)).fetch(torch.tensor([5, 2, 5]), 7)["pixels"]
    assert out[:, 0, 0, 0].tolist() == [5, 2, 5]
    assert sorted(seen) == [(2, 7), (5, 7)]


@given(st.integers(1, 200), st.integers(2, 40), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_steps_of_several_batches_drop_no_sample(n: int, batch: int, per_step: int) -> None:
    steps = step_slices(n, batch, per_step)
    used = Counter(i for step in steps for start, stop in step for i in range(start, stop))
    assert set(used) == set(range(n))
    assert n < per_step or set(used.values()) == {1}
    assert all(0 < stop - start <= batch for step in steps for start, stop in step)


# ---- what a loss or an edit closes over ---------------------------------------------------------
def test_cut_keeps_the_rows_of_clients_at_work() -> None:
    """Ten and three samples by four: the second client has one step, the first three."""
    tree = {"p": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "one": torch.tensor([5.0, 6.0])}
    cuts = [s.batches[0].cut(tree) for s in batcher([10, 3]).steps([0, 1], 1, 1, 1, "w")]
    assert [len(c["one"]) for c in cuts] == [2, 1, 1]
    assert cuts[0]["p"].tolist() == tree["p"].tolist()
    assert cuts[2]["p"].tolist() == [[1.0, 2.0]] and cuts[2]["one"].tolist() == [5.0]
    assert cuts[2]["p"].data_ptr() == tree["p"].data_ptr()  # a view
    (b,) = next(iter(batcher([10]).steps([0], 1, 1, 1, "w"))).batches
    assert b.cut(torch.tensor([7.0, 8.0])).tolist() == [7.0]


def test_cut_takes_named_rows_where_the_order_is_another() -> None:
    b = Batch({}, torch.zeros(2, 1), torch.ones(2, 1), rows=torch.tensor([2, 0]))
    whole = torch.tensor([[10.0], [11.0], [12.0]])
    assert b.cut(whole).tolist() == [[12.0], [10.0]]
    assert b.cut({"a": whole, "b": whole[:, 0]})["b"].tolist() == [12.0, 10.0]
    last = Batch({}, torch.zeros(1, 1), torch.ones(1, 1), rows=torch.tensor([2]))
    assert last.cut({"a": whole})["a"].tolist() == [[12.0]]


def test_a_sample_without_cached_features_is_refused() -> None:
    source = FeatureSource.of(torch.zeros(1, 2, 3), torch.tensor([0, 2]), torch.zeros(4).long())
    with pytest.raises(FedvlmError, match="sample 1 has no cached features"):
        source.fetch(torch.tensor([0, 1]), 0)


def test_parts_of_a_client_divide_no_group() -> None:
    labels = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 1])
    groups = np.array([7, 7, 3, 3, 5, 5, 2, 2, 9, 9])
    source = ToySource({"i": torch.arange(10)}, labels)
    made = SplitBatcher(source, [ToySplit(np.arange(10))], 4, 1, 1, 1, torch.device("cpu"),
                        torch.float64, groups=groups)
    parts = {part: set(made.subset([0], part, 0.34)._part(0, "train").tolist())
             for part in ("fit", "held")}
    assert parts["fit"] | parts["held"] == set(range(10))
    assert not parts["fit"] & parts["held"]
    for number in set(groups.tolist()):
        mine = set(np.flatnonzero(groups == number).tolist())
        assert mine <= parts["fit"] or mine <= parts["held"]
    assert len(parts["held"]) == 4  # one group of each class
