"""CoCoOp: an image at a time it is a prompt of its own."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.trainers.small_world import batch, method, model, tree


def test_every_image_has_its_own_context() -> None:
    trainer = method("CoCoOp", CTX_INIT="", N_CTX=2)
    p, b = tree(trainer), batch()
    got = trainer.predict(model(), p, b.x)
    for k, i in ((0, 0), (1, 2)):
        z = F.normalize(b.x["features"][k, i], dim=-1)
        one = {n.removeprefix("text.net."): v[k] for n, v in p.items()}
        hidden = F.relu(one["fc1.weight"] @ z + one["fc1.bias"])
        ctx = one["text.ctx"] + one["fc2.weight"] @ hidden + one["fc2.bias"]
        want = model().scale * model().text(ctx) @ z
        assert torch.allclose(got[k, i], want, atol=1e-9)
    assert trainer.prompt_sets(32) == 32
