"""CLIP-Adapter between zero-shot CLIP and its own bottleneck."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.trainers.small_world import batch, method, model, tree


def test_ratio_leads_from_zero_shot_to_the_adapter() -> None:
    b = batch()
    p = tree(method("CLIP-Adapter"))
    zero = method("CLIP-Adapter", RATIO=0.0).predict(model(), p, b.x)
    text = model().anchor("template", 0)
    assert torch.allclose(zero, model().logits(b.x["features"], text), atol=1e-9)
    z = b.x["features"][1]
    w1, w2 = (p[f"image.adapter.fc{i}.weight"][1] for i in (1, 2))
    mixed = 0.3 * F.relu(F.relu(z @ w1.T) @ w2.T) + 0.7 * z
    got = method("CLIP-Adapter", RATIO=0.3).predict(model(), p, b.x)[1]
    assert torch.allclose(got, model().logits(mixed, text), atol=1e-9)
