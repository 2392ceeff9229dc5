"""FedOTP: the plan's margins, and the iteration as the paper writes it."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor

from tests.trainers.small_world import batch, method, model, tree


def transport(score: Tensor, eps: float, gamma: float, iterations: int) -> Tensor:
    module = sys.modules[type(method("FedOTP")).__module__]
    plan: Tensor = module.transport(score, eps, gamma, iterations)
    return plan


@pytest.mark.parametrize(("eps", "gamma"), [(0.1, 0.8), (0.01, 0.5), (1.0, 1.0)])
def test_columns_are_filled_and_rows_are_not_overfull(eps: float, gamma: float) -> None:
    score = torch.rand(3, 7, 2, generator=torch.Generator().manual_seed(1)).double() * 2 - 1
    plan = transport(score, eps, gamma, 200)
    assert torch.allclose(plan.sum(-2), torch.full((3, 2), gamma / 2).double(), atol=1e-12)
    assert float(plan.sum(-1).max()) <= 1 / 7 + 1e-3
    kernel, u, v = torch.exp((score - 1) / eps), torch.ones(3, 7, 1), torch.ones(3, 2, 1)
    for _ in range(20):  # as written, not in log space
        u = ((1 / 7) / (kernel @ v.double())).clamp(max=1)
        v = (gamma / 2) / (kernel.mT @ u)
    assert torch.allclose(transport(score, eps, gamma, 20), u * kernel * v.mT, atol=1e-12)


def test_patches_and_both_contexts_make_the_logits() -> None:
    trainer = method("FedOTP", N_CTX=2, ITERS=5)
    p, b = tree(trainer), batch(names=("pixels",))
    logits = trainer.classify(model(), p, trainer.texts(model(), p))(b.x)
    f = torch.nn.functional.normalize(model().patches(b.x)[1, 2], dim=-1)
    for c in range(2):
        t = torch.stack([model().text(p[f"text.ctx.{n}"])[1, c] for n in ("global", "local")], 1)
        want = model().scale * (transport(f @ t, 0.1, 0.8, 5) * (f @ t)).sum()
        assert torch.allclose(logits[1, 2, c], want, atol=1e-9)
