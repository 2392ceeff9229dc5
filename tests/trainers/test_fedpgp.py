"""FedPGP's loss against its definition: two scores per class, the first one right."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedvlm.federation.discovery import load_trainer
from tests.trainers.small_world import batch, method, model, tree


@pytest.mark.parametrize("anchor", ["literal", "template"])
def test_contrast_is_a_cross_entropy_of_two_scores(anchor: str) -> None:
    trainer = method("FedPGP", N_CTX=2, RANK=1, NUM_PROMPT=2, TEMP=0.3, MU=0.7, ANCHOR=anchor)
    assert load_trainer("FedPGP").options["ANCHOR"].neutral == "template"
    p, b = tree(trainer), batch()
    loss, parts = trainer.loss(model(), p, b)
    own = model().text(p["text.sigma"] + p["text.U"] @ p["text.V"])
    general, zero = model().text(p["text.sigma"]), model().anchor(anchor, 2)
    two = torch.stack([(zero * general).sum(-1), (general * own).sum(-1)], -1) / 0.3
    right = torch.zeros(two.shape[:-1], dtype=torch.int64).flatten()
    want = 0.7 * F.cross_entropy(two.flatten(0, -2), right, reduction="none").view(2, -1).mean(1)
    assert torch.allclose(parts["cont_loss"], want, atol=1e-12)
    each = [model().logits(b.x["features"], own[:, n]) for n in range(2)]
    logits = trainer.predict(model(), p, b.x)
    assert torch.allclose(logits, (each[0] + each[1]) / 2, atol=1e-9)  # logits are averaged
    assert torch.allclose(loss, parts["cls_loss"] + want, atol=1e-12)
