"""LoRA's rules against dense matrices, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedvlm.core import rng
from fedvlm.federation.aggregation.lora import (
    fair,
    fold_factors,
    fresh,
    norm_weights,
    product_norms,
    product_svd,
    residual,
)
from fedvlm.federation.aggregation.updates import weighted_sum
from fedvlm.models.towers.adapters import (
    DELTA,
    TreeEdits,
    by_client,
    lora_linear,
    plain_lora,
    whole_lora,
)
from tests.models.adapted import SITE, A, B, client
from tests.models.toys import products

SHARE = [0.5, 0.3, 0.2]
CHANGE = SITE.replace(".lora.", DELTA)
TREES = [{n: client(i)[n] for n in (A, B)} for i in range(3)]
STACKED = {n: torch.stack([t[n] for t in TREES]) for n in (A, B)}
MEAN = {n: weighted_sum(v, SHARE) for n, v in STACKED.items()}
EXACT = sum(p * products(t)[SITE] for p, t in zip(SHARE, TREES, strict=True))


def near(one: Tensor, other: Tensor) -> None:
    assert torch.allclose(one, other, 0, 1e-12)


@pytest.mark.parametrize("ridge", [0.01, 3.0])
def test_fair_is_the_ridge_regression_onto_the_mean_product(ridge: float) -> None:
    moved = fair(STACKED, SHARE, MEAN, ridge)[B] - MEAN[B]
    # by torch's least squares over [A, sqrt(lambda) I]
    wide = torch.cat([MEAN[A], ridge**0.5 * torch.eye(2, dtype=torch.float64)], 1)
    aim = torch.cat([EXACT - MEAN[B] @ MEAN[A], torch.zeros(6, 2, dtype=torch.float64)], 1)
    near(moved.mT, torch.linalg.lstsq(wide.mT, aim.mT).solution)
    assert float((EXACT - (MEAN[B] + moved) @ MEAN[A]).norm()) < float(
        (EXACT - MEAN[B] @ MEAN[A]).norm())


def test_residual_and_stack_lose_nothing() -> None:
    old = {CHANGE: client(9)[B] @ client(9)[A]}
    near(residual(STACKED, SHARE, old, MEAN)[CHANGE] + MEAN[B] @ MEAN[A], old[CHANGE] + EXACT)
    near(fold_factors(STACKED, SHARE, old)[CHANGE], old[CHANGE] + EXACT)
    again = fresh(MEAN, rng.stream(1, "lora.stack", 3))
    assert not again[B].any() and float(again[A].abs().max()) <= 5**-0.5
    assert not torch.equal(again[A], fresh(MEAN, rng.stream(1, "lora.stack", 4))[A])


def test_norms_are_those_of_the_products() -> None:
    near(product_norms(STACKED), torch.stack([products(t)[SITE].norm() for t in TREES]))
    assert norm_weights(STACKED, [4, 0, 1])[1] == 0
    zero = STACKED | {B: torch.zeros_like(STACKED[B])}
    assert norm_weights(zero, [4, 0, 1]) == [4, 0, 1]


def test_ordered_products_are_best_at_every_rank() -> None:
    trees = [client(i, rank=4) for i in range(3)]
    exact = sum(p * products(t)[SITE] for p, t in zip(SHARE, trees, strict=True))
    best = product_svd({n: torch.stack([t[n] for t in trees]) for n in (A, B)}, SHARE, ordered=True)
    a, b = best[A], best[B]
    u, s, vh = torch.linalg.svd(exact)
    for rank in (1, 2, 4):
        near(b[:, :rank] @ a[:rank], u[:, :rank] * s[:rank] @ vh[:rank])


def test_a_dense_change_and_a_second_lora_are_applied_and_leave_as_plain_lora() -> None:
    private = {n.replace(".lora.", ".private.lora."): v for n, v in client(4, rank=1).items()
               if n in (A, B)}
    tree = TREES[0] | private | {CHANGE: EXACT}
    weight, x = client(7)[B] @ client(8)[A], torch.randn(3, 4, 2, 5, dtype=torch.float64)
    layer = weight + 2 * (products(TREES[0])[SITE] + EXACT + products(client(4, rank=1))[SITE])
    plain = plain_lora(tree)
    assert set(plain) == {A, B}
    for p in (whole_lora(tree), plain):
        stack = {n: v.expand(3, *v.shape) for n, v in p.items()}
        out = TreeEdits("image", stack, 2.0).linear(0, "q", x, weight, None, 1.0)
        near(out, x @ layer.mT)
    near(lora_linear(x, weight, None, *(plain[n].expand(3, -1, -1) for n in (A, B)), 2.0),
         x @ layer.mT)
    each = torch.stack([products(t)[SITE] for t in TREES])
    near(by_client(x, each), torch.stack([x[k] @ each[k].mT for k in range(3)]))
