"""FedDDA: the gate over three views (contexts around names: ``tests/models/towers``)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.trainers.small_world import batch, method, model, tree


def test_gate_mixes_the_feature_and_both_adapters() -> None:
    trainer = method("FedDDA")
    p, b = tree(trainer), batch()
    got = trainer.image_features(model(), p, b.x)[1, 2]
    z = b.x["features"][1, 2]
    views = [z] + [
        F.relu(p[f"image.{n}_adapter.fc2.weight"][1]
               @ F.relu(p[f"image.{n}_adapter.fc1.weight"][1] @ z))
        for n in ("personal", "shared")
    ]
    share = (p["gate.weight"][1] @ z).softmax(-1)
    want = sum(s * v for s, v in zip(share, views, strict=True))
    assert torch.allclose(got, want, atol=1e-12)
