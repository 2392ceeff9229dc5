"""FedDDA: contexts around the names, and the gate over three views."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fedvlm.check.world import BASE
from fedvlm.models.adapt.contexts import around_names, word_context
from fedvlm.models.towers.prompts import encode_texts
from tests.trainers.small_world import batch, method, model, tree


def test_contexts_that_are_words_give_the_text_of_those_words() -> None:
    front, back = (word_context(model(), w)[None].double() for w in ("my own", "ink"))
    got = around_names(model(), front, back, "in")
    texts = [f"my own {name} in ink." for name in BASE]
    want = F.normalize(encode_texts(model().backbone, texts), dim=-1)
    assert torch.allclose(got[0], want, atol=1e-12)


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
