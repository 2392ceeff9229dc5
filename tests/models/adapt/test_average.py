"""Averaging and mixing LoRA: products by hand, in float64."""

from __future__ import annotations

import pytest
import torch

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.models.adapt.average import average_peft, product_svd
from tests.models.adapted import SITE, A, B, client
from tests.models.toys import products


def test_mean_of_products_minus_product_of_means() -> None:
    one, two = client(0), client(1)
    mean = average_peft([one, two], [1, 1])
    exact = (products(one)[SITE] + products(two)[SITE]) / 2
    gap = (one[B] - two[B]) @ (one[A] - two[A]) / 4
    assert torch.allclose(exact - products(mean)[SITE], gap, 0, 1e-15)
    assert float(gap.norm() / exact.norm()) > 0.3  # not a rounding matter


def test_freeze_a_has_no_gap() -> None:
    one, two = client(0), client(1)
    two[A] = one[A]
    mean = average_peft([one, two], [3, 1], "freeze_a")
    exact = 0.75 * products(one)[SITE] + 0.25 * products(two)[SITE]
    assert torch.allclose(products(mean)[SITE], exact, 0, 1e-15)
    assert torch.equal(mean[A], one[A])
    with pytest.raises(FedvlmError, match="one common A"):
        average_peft([one, client(1)], [1, 1], "freeze_a")


def test_product_svd_is_the_best_approximation() -> None:
    trees, weights = [client(i) for i in range(3)], [1, 2, 5]
    exact = sum(w / 8 * products(t)[SITE] for t, w in zip(trees, weights, strict=True))
    mean = average_peft(trees, weights, "product_svd")
    u, s, vh = torch.linalg.svd(exact)
    assert mean[A].shape == (2, 5) and mean[B].shape == (6, 2)
    assert torch.allclose(products(mean)[SITE], u[:, :2] * s[:2] @ vh[:2], 0, 1e-12)
    assert float((products(mean)[SITE] - exact).norm()) == pytest.approx(
        float(s[2:].norm()), rel=1e-10
    )
    pairs = [(t[A], t[B]) for t in trees]
    a, b = product_svd(pairs, [w / 8 for w in weights], rank=5)
    assert torch.allclose(b @ a, exact, 0, 1e-12)
    plain = average_peft(trees, weights)["head.weight"]
    assert torch.equal(mean["head.weight"], plain)


def test_product_svd_keeps_equal_clients_as_they_are() -> None:
    one, two = client(0), client(1)
    mean = average_peft([one, one], [1, 3], "product_svd")
    assert torch.equal(mean[A], one[A]) and torch.allclose(mean[B], one[B], 0, 1e-15)
    # equal products in other factors, and clients near each other: near the mean of their factors
    turn = torch.tensor([[1.0, 0.3], [0.0, 0.5]], dtype=torch.float64)
    turned = {A: turn @ one[A], B: one[B] @ turn.inverse()}
    both = average_peft([{k: one[k] for k in (A, B)}, turned], [1, 1], "product_svd")
    assert torch.allclose(products(both)[SITE], products(one)[SITE], 0, 1e-12)
    assert torch.allclose(both[A], (one[A] + turned[A]) / 2, 0, 1e-12)
    near = {k: one[k] + 1e-3 * two[k] for k in one}
    both, plain = (average_peft([one, near], [1, 1], r) for r in ("product_svd", "factors"))
    assert all(float((both[k] - plain[k]).abs().max()) < 1e-4 for k in one)


def test_product_svd_leaves_dead_components_alive() -> None:
    fresh = [client(i) | {B: torch.zeros(6, 2, dtype=torch.float64)} for i in range(2)]
    mean = average_peft(fresh, [1, 1], "product_svd")
    assert float(mean[B].abs().max()) < 1e-14
    assert torch.allclose(mean[A], (fresh[0][A] + fresh[1][A]) / 2, 0, 1e-12)
    half = [t | {B: t[B] * torch.tensor([1.0, 0.0], dtype=torch.float64)}
            for t in (client(0), client(0), client(0))]
    half[1] = half[1] | {A: half[1][A] + torch.tensor([[0.0], [0.1]])}  # only a dead row differs
    mean = average_peft(half, [1, 1, 1], "product_svd")
    assert torch.allclose(products(mean)[SITE], products(half[0])[SITE], 0, 1e-12)
    assert torch.linalg.matrix_rank(mean[A]) == 2


def test_product_svd_where_factors_cancel_out() -> None:
    one = client(0)
    other = {A: -one[A], B: -one[B]}
    mean = average_peft([{k: one[k] for k in (A, B)}, other], [1, 1], "product_svd")
    assert torch.allclose(products(mean)[SITE], products(one)[SITE], 0, 1e-12)
    assert float(mean[A].norm()) < 2 and float(mean[B].norm()) < 10 * float(one[B].norm())


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="unknown PEFT.LORA_AVG 'mean'"):
        average_peft([client(0)], [1], "mean")
    with pytest.raises(FedvlmError, match="above zero"):
        average_peft([client(0)], [0])
