"""Averaging and mixing LoRA: the oracles of personalized_fl.md 2.3 and 5.5."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.models.adapt import peft
from fedvlm.models.adapt.average import average_peft, product_svd
from fedvlm.models.towers.adapters import mix_peft
from fedvlm.models.vlmodel import VLModel
from tests.models.test_peft_tower import pixels, spec_of, start
from tests.models.toys import NAMES, products, toy

A, B = "image.lora.0.q.A", "image.lora.0.q.B"
SITE = "image.lora.0.q"


def client(seed: int, rank: int = 2, out: int = 6, into: int = 5) -> dict[str, Tensor]:
    gen = torch.Generator().manual_seed(seed)
    shapes = {A: (rank, into), B: (out, rank), "head.weight": (3, 4)}
    return {n: torch.randn(s, generator=gen, dtype=torch.float64) for n, s in shapes.items()}


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
    with pytest.raises(ConfigError, match="LORA_AVG has no 'mean'"):
        average_peft([client(0)], [1], "mean")
    with pytest.raises(FedvlmError, match="above zero"):
        average_peft([client(0)], [0])


def test_mixing_is_exact_for_products_and_collapses_at_the_ends() -> None:
    gen = torch.Generator().manual_seed(0)
    v, w = (
        {n: torch.stack([client(s + i)[n] for i in range(4)]) for n in (A, B, "head.weight")}
        for s in (0, 10)
    )
    alpha = torch.rand(4, generator=gen, dtype=torch.float64)
    mixed, share = mix_peft(alpha, v, w), alpha[:, None, None]
    assert mixed[A].shape[1] == 4 and mixed[B].shape[2] == 4
    want = share * products(v)[SITE] + (1 - share) * products(w)[SITE]
    assert torch.allclose(products(mixed)[SITE], want, 0, 1e-12)
    linear = share * v["head.weight"] + (1 - share) * w["head.weight"]
    assert torch.allclose(mixed["head.weight"], linear, 0, 1e-15)
    for end, tree in ((1.0, v), (0.0, w)):
        alone = mix_peft(torch.full_like(alpha, end), v, w)
        assert torch.equal(products(alone)[SITE], products(tree)[SITE])
        assert torch.equal(alone["head.weight"], tree["head.weight"])


def test_the_towers_run_the_mix_and_alpha_has_its_gradient() -> None:
    model = VLModel(toy(dtype=torch.float64), NAMES)
    spec = spec_of("lora", "lora")
    v, w = start(spec, model, 0.3), {n: -t for n, t in start(spec, model, 0.2).items()}
    x = {"pixels": pixels()}

    def value(alpha: Tensor) -> Tensor:
        p = mix_peft(alpha, v, w)
        z, t = peft.image_features(spec, model, p, x), peft.text_features(spec, model, p)
        return model.logits(z, t)

    ones = torch.ones(3, dtype=torch.float64)
    for end, tree in ((1.0, v), (0.0, w)):
        z, t = (peft.image_features(spec, model, tree, x), peft.text_features(spec, model, tree))
        assert torch.allclose(value(end * ones), model.logits(z, t), 0, 1e-12)
    alpha = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(value(alpha).square().sum(), alpha)
    with torch.no_grad():
        up, down = (value(alpha + h).square().sum((1, 2)) for h in (1e-5, -1e-5))
    assert torch.allclose(slope, (up - down) / 2e-5, 1e-6)
