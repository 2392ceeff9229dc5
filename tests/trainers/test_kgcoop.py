"""KgCoOp: the distance to the template's text features, as published and as written."""

from __future__ import annotations

import torch

from tests.trainers.small_world import batch, method, model, tree


def test_guide_is_one_minus_cosine_or_the_squared_distance() -> None:
    trainers = [method("KgCoOp", W=3.0, VARIANT=v) for v in ("published", "fixed")]
    p, b = tree(trainers[0]), batch()
    (one, parts), (two, fixed) = (t.loss(model(), p, b) for t in trainers)
    text, zero = model().text(p["text.ctx"]), model().anchor("template", 0)
    assert torch.allclose(
        fixed["guide_loss"], 3 * (text - zero).square().sum(-1).mean(-1), atol=1e-12
    )
    assert torch.allclose(parts["guide_loss"], fixed["guide_loss"] / 2, atol=1e-12)
    assert torch.allclose(two - one, parts["guide_loss"], atol=1e-12)
    assert p["text.ctx"].shape[1] == len("aphotoofa")  # the world's tokens are letters
