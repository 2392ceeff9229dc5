"""The average of LoRA's products: by hand, in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from fedvlm.federation.aggregation.lora import product_svd
from fedvlm.federation.aggregation.updates import weighted_sum
from tests.models.adapted import SITE, A, B, client
from tests.models.toys import products


def stacked(trees: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the factors of several clients, ``[K, ...]``."""
    return {n: torch.stack([t[n] for t in trees]) for n in (A, B)}


def average(trees: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    return product_svd(stacked(trees), weights)


def test_mean_of_products_minus_product_of_means() -> None:
    one, two = client(0), client(1)
    mean = {n: weighted_sum(v, [1, 1]) for n, v in stacked([one, two]).items()}
    exact = (products(one)[SITE] + products(two)[SITE]) / 2
    gap = (one[B] - two[B]) @ (one[A] - two[A]) / 4
    assert torch.allclose(exact - products(mean)[SITE], gap, 0, 1e-15)
    assert float(gap.norm() / exact.norm()) > 0.3  # not a rounding matter


def test_one_common_a_has_no_gap() -> None:
    one, two = client(0), client(1)
    two[A] = one[A]
    mean = average([one, two], [3, 1])
    exact = 0.75 * products(one)[SITE] + 0.25 * products(two)[SITE]
    assert torch.allclose(products(mean)[SITE], exact, 0, 1e-15)
    assert torch.equal(mean[A], one[A])


def test_product_svd_is_the_best_approximation() -> None:
    trees, weights = [client(i) for i in range(3)], [1, 2, 5]
    exact = sum(w / 8 * products(t)[SITE] for t, w in zip(trees, weights, strict=True))
    mean = average(trees, weights)
    u, s, vh = torch.linalg.svd(exact)
    assert mean[A].shape == (2, 5) and mean[B].shape == (6, 2)
    assert torch.allclose(products(mean)[SITE], u[:, :2] * s[:2] @ vh[:2], 0, 1e-12)
    assert float((products(mean)[SITE] - exact).norm()) == pytest.approx(
        float(s[2:].norm()), rel=1e-10
    )
    trees = [client(i, rank=5) for i in range(3)]  # nothing is cut
    exact = sum(w / 8 * products(t)[SITE] for t, w in zip(trees, weights, strict=True))
    assert torch.allclose(products(average(trees, weights))[SITE], exact, 0, 1e-12)


def test_product_svd_keeps_equal_clients_as_they_are() -> None:
    one, two = client(0), client(1)
    mean = average([one, one], [1, 3])
    assert torch.equal(mean[A], one[A]) and torch.allclose(mean[B], one[B], 0, 1e-15)
    # equal products in other factors, and clients near each other: near the mean of their factors
    turn = torch.tensor([[1.0, 0.3], [0.0, 0.5]], dtype=torch.float64)
    turned = {A: turn @ one[A], B: one[B] @ turn.inverse()}
    both = average([one, turned], [1, 1])
    assert torch.allclose(products(both)[SITE], products(one)[SITE], 0, 1e-12)
    assert torch.allclose(both[A], (one[A] + turned[A]) / 2, 0, 1e-12)
    near = {k: one[k] + 1e-3 * two[k] for k in one}
    both = average([one, near], [1, 1])
    for name, value in stacked([one, near]).items():
        assert float((both[name] - value.mean(0)).abs().max()) < 1e-4


def test_product_svd_leaves_dead_components_alive() -> None:
    fresh = [client(i) | {B: torch.zeros(6, 2, dtype=torch.float64)} for i in range(2)]
    mean = average(fresh, [1, 1])
    assert float(mean[B].abs().max()) < 1e-14
    assert torch.allclose(mean[A], (fresh[0][A] + fresh[1][A]) / 2, 0, 1e-12)
    half = [t | {B: t[B] * torch.tensor([1.0, 0.0], dtype=torch.float64)}
            for t in (client(0), client(0), client(0))]
    half[1] = half[1] | {A: half[1][A] + torch.tensor([[0.0], [0.1]])}  # only a dead row differs
    mean = average(half, [1, 1, 1])
    assert torch.allclose(products(mean)[SITE], products(half[0])[SITE], 0, 1e-12)
    assert torch.linalg.matrix_rank(mean[A]) == 2


def test_product_svd_where_factors_cancel_out() -> None:
    one = client(0)
    mean = average([one, {A: -one[A], B: -one[B]}], [1, 1])
    assert torch.allclose(products(mean)[SITE], products(one)[SITE], 0, 1e-12)
    assert float(mean[A].norm()) < 2 and float(mean[B].norm()) < 10 * float(one[B].norm())
