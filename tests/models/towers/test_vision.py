"""Patch features are what open_clip's tower pools, projected; and every way to them is the same."""

from __future__ import annotations

import pytest
import torch

from fedvlm.check.world import RESNET, CheckWorld
from fedvlm.core.errors import ConfigError, FedvlmError


def test_patches_are_normed_and_projected_rows_of_the_last_block() -> None:
    w = CheckWorld()
    model, visual = w.model(), w.backbone.model.visual
    rows = visual._embeds(w.pixels)
    for block in visual.transformer.resblocks:
        rows = block(rows)
    pooled, tokens = visual._pool(rows)
    pixels = w.pixels.unflatten(0, (3, -1))
    found = model.patches({"pixels": pixels})
    assert found.shape == (3, len(w.pixels) // 3, 4, model.embed_dim) and not found.requires_grad
    assert torch.allclose(found.flatten(0, 1), tokens @ visual.proj, 0, 1e-12)
    assert torch.allclose(model.image({"pixels": pixels}).flatten(0, 1), pooled @ visual.proj)
    for block in (0, 1, 2):
        tokens = model.vision.enter(w.pixels, block).unflatten(0, (3, -1))
        assert torch.allclose(model.patches({f"tokens.{block}": tokens}), found, 0, 1e-12)
    assert model.patches({"patches": found, "pixels": 0 * pixels}).equal(found)


def test_image_takes_features_then_tokens_then_pixels() -> None:
    w = CheckWorld()
    model = w.model()
    pixels = w.pixels[None]
    tokens = model.vision.enter(w.pixels, 1)[None]
    want = model.image({"pixels": pixels})
    assert torch.allclose(model.image({"tokens.1": tokens, "pixels": 0 * pixels}), want, 0, 1e-12)
    x = {"features": want, "tokens.1": 0 * tokens, "pixels": 0 * pixels}
    assert model.image(x).equal(want)
    with pytest.raises(FedvlmError, match="needs pixels or tokens to start from; .*patches"):
        model.image({"patches": want})


def test_a_tower_without_patches_is_told() -> None:
    w = CheckWorld(vision=RESNET)
    with pytest.raises(ConfigError, match="ViT image tower"):
        w.model().patches({"pixels": w.pixels[None]})
