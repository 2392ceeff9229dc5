"""Aggregation rules: closed forms and invariances."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedvlm.core.errors import ConfigError, DivergedError, FedvlmError
from fedvlm.core.trees import in_double
from fedvlm.federation.aggregation.updates import (
    Updates,
    cosines,
    join_updates,
    similarity_aware,
    weighted_apart,
    weighted_mean,
    weighted_sum,
)
from fedvlm.federation.groups import resolve_groups


def ups(*vectors: tuple[float, ...], weights: tuple[float, ...] | None = None) -> Updates:
    weights = weights or (1.0,) * len(vectors)
    rows = torch.tensor(vectors, dtype=torch.float64)
    return Updates(tuple(range(len(rows))), {"w": rows}, torch.tensor(weights).double())


OLD = {"w": torch.tensor([1.0, 0.0], dtype=torch.float64)}


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [(1.0, (1.462117157, 0.537882843)), (0.1, (1.999909204, 9.0796e-5)), (1e9, (1.0, 1.0))],
)
def test_similarity_aware_closed_form(temperature: float, expected: tuple[float, float]) -> None:
    tree, used = similarity_aware(ups((2.0, 0.0), (0.0, 2.0)), OLD, temperature)
    assert tree["w"].tolist() == pytest.approx(expected, abs=1e-8)
    assert sum(used["w"]) == pytest.approx(1.0)
    e = math.exp(1 / temperature)
    assert used["w"][0] == pytest.approx(e / (1 + e))


def test_similarity_aware_weights_by_samples_and_is_per_tensor() -> None:
    one, other = [1.0, 0.0], [0.0, 1.0]
    sent = {"a": torch.tensor([one, other]), "b": torch.tensor([other, one])}
    updates = Updates((0, 1), sent, torch.tensor([3.0, 1.0]).double())
    old = {"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([1.0, 0.0])}
    _, used = similarity_aware(updates, old, 1.0)
    e = math.e
    assert used["a"][0] == pytest.approx(3 * e / (3 * e + 1))
    assert used["b"][0] == pytest.approx(3 / (3 + e))


def test_similarity_aware_survives_zero_and_opposite_vectors() -> None:
    tree, used = similarity_aware(ups((0.0, 0.0), (-1.0, 0.0)), OLD, 1.0)
    assert used["w"][0] == pytest.approx(1 / (1 + math.exp(-1)))
    assert torch.isfinite(tree["w"]).all()


def test_similarity_aware_of_a_cold_temperature_and_a_client_without_samples() -> None:
    """The softmax is all at the client that weighs nothing: the others share what there is."""
    sent, weights = ups((1.0, 0.0), (-1.0, 0.0), (-1.0, 0.0), weights=(0, 1, 3)), (0.0, 0.25, 0.75)
    assert similarity_aware(sent, OLD, 1e-3)[1]["w"] == pytest.approx(weights)
    with pytest.raises(FedvlmError, match="no update has a weight above zero"):
        similarity_aware(ups((1.0, 0.0), weights=(0.0,)), OLD)


def test_identical_clients_are_a_fixed_point() -> None:
    same = ups((1.5, -2.0), (1.5, -2.0), (1.5, -2.0), weights=(1, 5, 9))
    assert torch.allclose(weighted_mean(same)["w"], same.params["w"][0], atol=1e-15)
    assert torch.allclose(similarity_aware(same, OLD)[0]["w"], same.params["w"][0], atol=1e-15)


@given(
    st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3), st.integers(1, 99)), min_size=2,
             max_size=6),
    st.randoms(use_true_random=False), st.integers(2, 50),
)
@settings(max_examples=40, deadline=None)
def test_order_and_common_factor_of_weights_change_nothing(rows: list, random: object,
                                                           factor: int) -> None:
    table = torch.tensor(rows, dtype=torch.float64)
    parts = [Updates((i,), {"w": row[None, :2]}, row[2:]) for i, row in enumerate(table)]
    shuffled = list(parts)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    updates = join_updates(parts)
    assert torch.equal(weighted_mean(updates)["w"], weighted_mean(join_updates(shuffled))["w"])
    scaled = replace(updates, weight=updates.weight * factor)
    assert torch.allclose(weighted_mean(updates)["w"], weighted_mean(scaled)["w"], rtol=1e-12)


def test_float64_accumulation_over_many_clients() -> None:
    value = torch.tensor([0.1], dtype=torch.float32)
    assert torch.equal(weighted_sum([value] * 10_000, [1.0] * 10_000), value)


def test_non_finite_aggregate_names_the_tensor() -> None:
    with pytest.raises(DivergedError, match="aggregate of 'w'"):
        weighted_mean(ups((math.inf, 0.0), (1.0, 1.0)))


def test_groups_must_cover_every_tensor_exactly_once() -> None:
    names = ["text.sigma", "text.U", "image.fusion.query.bias"]
    rules = [(r"text\.sigma", "shared"), (r"text\.U|image\..*", "personal")]
    groups = resolve_groups(names, rules, "T")
    assert groups.shared == ("text.sigma",)
    assert groups.personal == ("text.U", "image.fusion.query.bias")
    with pytest.raises(ConfigError) as caught:
        resolve_groups(
            names, [(r"text\..*", "shared"), (r"text\.U", "personal"), ("head", "frozen")], "T"
        )
    message = str(caught.value)
    assert "'text.U' matches rules of several groups" in message
    assert "'image.fusion.query.bias' matches no rule" in message
    assert "'head' -> frozen matches no trainable" in message


def test_float64_happens_on_the_cpu_for_devices_without_it(monkeypatch: Any) -> None:
    """Stands in for Apple's mps: ``double`` works only on what ``cpu`` returned."""

    class Apple:
        type = "mps"

    moved: set[int] = set()
    double, cpu = Tensor.double, Tensor.cpu

    def to_cpu(self: Tensor) -> Tensor:
        out = cpu(self).clone()
        moved.add(out.data_ptr())
        return out

    def checked(self: Tensor) -> Tensor:
        assert self.data_ptr() in moved, "Cannot convert a MPS Tensor to float64"
        return double(self)

    source = torch.ones(2)
    monkeypatch.setattr(Tensor, "cpu", to_cpu)
    monkeypatch.setattr(Tensor, "double", checked)
    monkeypatch.setattr(Tensor, "device", Apple())
    assert in_double(source).dtype is torch.float64


# ---- rows beside each other ---------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_leaves_in_one_row_have_the_bits_of_leaf_by_leaf(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = torch.Generator().manual_seed(4)
    shapes = {"a": (37, 5), "b": (), "c": (11,), "d": (1, 513)}
    tree = {n: torch.randn(9, *s, generator=draw).to(dtype) for n, s in shapes.items()}
    tree["half"] = torch.randn(9, 3, generator=draw).to(torch.bfloat16)
    weight = torch.rand(9, generator=draw).double()
    updates = Updates(tuple(range(9)), tree, weight)
    own = {n: torch.rand(9, generator=draw).double().tolist() for n in tree}
    plain, apart = weighted_mean(updates), weighted_apart(tree, own)
    monkeypatch.setattr("fedvlm.federation.aggregation.updates.PIECE", 1000)
    pieces = weighted_apart(tree, own)
    assert list(plain) == list(apart) == list(tree)
    for name, rows in tree.items():
        assert torch.equal(plain[name], weighted_sum(rows, weight.tolist())), name
        assert torch.equal(apart[name], weighted_sum(rows, own[name])), name
        assert torch.equal(apart[name], pieces[name])


def test_cosines_of_all_clients_are_those_of_each() -> None:
    draw = torch.Generator().manual_seed(5)
    tree = {"a": torch.randn(6, 7, 3, generator=draw), "b": torch.randn(6, generator=draw)}
    old = {"a": torch.randn(7, 3, generator=draw), "b": torch.zeros(())}
    updates = Updates(tuple(range(6)), tree, torch.ones(6), received={
        n: torch.randn(v.shape, generator=draw) for n, v in tree.items()
    })
    for previous in (old, None):
        found = cosines(updates, previous)
        for name, rows in tree.items():
            for k, row in enumerate(rows):
                home = updates.received[name][k] if previous is None else previous[name]
                x, y = row.double().flatten(), home.double().flatten()
                norm = float(x.norm() * y.norm())
                want = float(x @ y) / norm if norm else 0.0
                assert found[name][k] == pytest.approx(want, rel=1e-13, abs=1e-15)
