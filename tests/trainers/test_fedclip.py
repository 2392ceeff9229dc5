"""FedCLIP's in-batch loss is CLIP's, client by client, padding out of both directions."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.trainers.small_world import batch, method, model, tree


def test_loss_is_clips_on_the_samples_that_are_there() -> None:
    trainer = method("FedCLIP", VARIANT="fixed")
    p, b = tree(trainer), batch()
    got = trainer.loss(model(), p, b)
    for k in range(2):
        n = int(b.w[k].sum())
        w1, b1, w2, b2 = (p[f"image.adapter.fc{i}.{v}"][k] for i in (1, 2)
                          for v in ("weight", "bias"))
        z = b.x["features"][k, :n]
        x = F.softmax(torch.tanh(z @ w1.T + b1) @ w2.T + b2, -1) * z
        t = model().anchor("template", 0)[b.y[k, :n]]
        s = model().scale * F.normalize(x, dim=-1) @ t.T
        right = torch.arange(n)
        want = (F.cross_entropy(s, right) + F.cross_entropy(s.T, right)) / 2
        assert torch.allclose(got[k], want, atol=1e-12)
