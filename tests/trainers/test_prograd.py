"""ProGrad: what goes against the guide is taken out, nothing else; the guide is KL's gradient."""

from __future__ import annotations

import sys

import torch

from fedvlm.federation.batches import Batch
from tests.trainers.small_world import batch, method, model, tree


def test_only_the_conflicting_part_goes() -> None:
    align = sys.modules[type(method("ProGrad")).__module__].align
    guide = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 0.0]])
    own = torch.tensor([[-3.0, 5.0], [3.0, 5.0], [1.0, 1.0]])
    assert align(own, guide, 1.0).tolist() == [[0.0, 5.0], [3.0, 5.0], [1.0, 1.0]]
    assert align(own, guide, 0.5).tolist() == [[-1.5, 5.0], [3.0, 5.0], [1.0, 1.0]]


def test_guide_is_zero_at_zero_shot_and_clients_do_not_mix() -> None:
    trainer = method("ProGrad", N_CTX=2, TEMP=2.0)
    p, b = tree(trainer), batch()
    both = trainer.guide(model(), p, b)
    for k in range(2):
        n = int(b.w[k].sum())
        one = Batch({"features": b.x["features"][k : k + 1, :n]}, b.y[k : k + 1, :n],
                    b.w[k : k + 1, :n])
        alone = trainer.guide(model(), {"text.ctx": p["text.ctx"][k : k + 1]}, one)
        assert torch.allclose(alone[0], both[k], atol=1e-12) and float(alone) > 0
        z = one.x["features"]
        log_p, log_q = (
            (model().logits(z, t) / 2).log_softmax(-1)
            for t in (model().text(p["text.ctx"])[k], model().anchor("template", 0))
        )
        kl = torch.nn.functional.kl_div(log_p[0], log_q[0], reduction="batchmean", log_target=True)
        assert torch.allclose(alone[0], 4 * kl, atol=1e-12)
