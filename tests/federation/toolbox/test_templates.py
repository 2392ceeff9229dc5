"""The template's texts are everybody's, and cost no pass."""

from __future__ import annotations

import pytest
import torch

from fedvlm.federation.toolbox.templates import TemplateTrainer
from tests.trainers.small_world import method, model


@pytest.mark.parametrize(
    "name", ["CLIP-Adapter", "FedCLIP", "Tip-Adapter", "Tip-Adapter-F", "VPT"]
)
def test_each_client_has_the_templates_texts(name: str) -> None:
    # FedCLIP as released has words of its own; fixed has the template's
    trainer = method(name, VARIANT="fixed") if name == "FedCLIP" else method(name)
    assert isinstance(trainer, TemplateTrainer) and trainer.prompt_sets(32) == 0
    anchor = model().anchor("template", 0)
    for p, k in (({}, 1), ({"a": torch.zeros(3, 2)}, 3)):
        text = trainer.text_features(model(), p)
        assert text.shape == (k, *anchor.shape) and bool((text == anchor).all())
