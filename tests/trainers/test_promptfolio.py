"""PromptFolio: a straight line between two classifiers; without training the shared one alone."""

from __future__ import annotations

import torch

from fedvlm.models.adapt.contexts import GLOBAL, LOCAL, TRAINED
from tests.trainers.small_world import batch, method, model, tree


def test_logits_lie_between_those_of_both_contexts() -> None:
    trainer = method("PromptFolio", N_CTX=2, FRAC=0.3)
    p, b = tree(trainer), batch()
    ends = [model().logits(b.x["features"], model().text(p[n])) for n in (GLOBAL, LOCAL)]
    on = p | {TRAINED: torch.tensor([1.0, 0.0]).double()}
    got = trainer.predict(model(), on, b.x)
    assert torch.allclose(got[0], 0.7 * ends[0][0] + 0.3 * ends[1][0], atol=1e-9)
    assert torch.allclose(got[1], ends[0][1], atol=1e-9)  # never trained: the shared context
    assert torch.allclose(trainer.predict(model(), p, b.x), ends[0], atol=1e-9)  # the global model
    loss = trainer.loss(model(), p, b)
    picked = torch.nn.functional.cross_entropy(0.7 * ends[0][0] + 0.3 * ends[1][0], b.y[0])
    assert torch.allclose(loss[0], picked, atol=1e-9)  # in training the own one always counts
