"""Patch features are what open_clip's tower pools, projected; and every way to them is the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedvlm.check.world import RESNET, CheckWorld, Setup
from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.federation.discovery import load_trainer
from fedvlm.models.towers.blocks import NoEdits
from fedvlm.models.vlmodel import VLModel
from tests.models.toys import toy
from tests.models.trunks import paired


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
    model = VLModel(paired("convnext"), ("x",))
    side = model.backbone.image_size
    with pytest.raises(ConfigError, match="ViT image tower"):
        model.patches({"pixels": torch.zeros(1, 1, 3, side, side)})


def attention_of(pool: Any, rows: torch.Tensor) -> torch.Tensor:
    """torch's own attention with every row [T, n, w] as a query, as PLOT changes open_clip's."""
    bias = torch.cat([p.bias for p in (pool.q_proj, pool.k_proj, pool.v_proj)])
    return F.multi_head_attention_forward(
        rows, rows, rows, rows.shape[-1], pool.num_heads, None, bias, None, None, False, 0.0,
        pool.c_proj.weight, pool.c_proj.bias, training=False, need_weights=False,
        use_separate_proj_weight=True, q_proj_weight=pool.q_proj.weight,
        k_proj_weight=pool.k_proj.weight, v_proj_weight=pool.v_proj.weight,
    )[0]


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_patches_of_clips_resnet_are_its_pool_at_every_position(
    dtype: torch.dtype, near: float
) -> None:
    backbone = toy("resnet", dtype=dtype)
    model, visual = VLModel(backbone, ("x",)), backbone.model.visual
    pixels = torch.randn(6, 3, 64, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    grids: list[torch.Tensor] = []  # of the last stage
    hook = visual.layer4.register_forward_hook(lambda _, __, out: grids.append(out))
    with torch.no_grad():
        whole = visual(pixels)
        hook.remove()
        cells = grids[0].flatten(2).permute(2, 0, 1)
        rows = torch.cat([cells.mean(0, keepdim=True), cells])
        rows = rows + visual.attnpool.positional_embedding[:, None]
        want = attention_of(visual.attnpool, rows).transpose(0, 1)
    assert torch.allclose(want[:, 0], whole, 0, near)
    x = {"pixels": pixels.unflatten(0, (2, 3))}
    found = model.patches(x)
    assert found.shape == (2, 3, 4, backbone.embed_dim) and not found.requires_grad
    assert torch.allclose(found.flatten(0, 1), want[:, 1:], 0, near)
    assert model.vision.shape("patches") == (4, backbone.embed_dim)
    shell, entered = model.vision.shell, model.vision.enter(pixels)
    assert torch.allclose(shell.pool(entered), whole, 0, near)
    alone = visual.attnpool.c_proj(visual.attnpool.v_proj(entered))
    assert torch.allclose(model.vision.project(entered), alone, 0, near)
    for ask in (lambda: model.vision.blocks, lambda: model.vision.shape("tokens.0"),
                lambda: model.patches(x, NoEdits()), lambda: model.vision.enter(pixels, 1)):
        with pytest.raises(ConfigError, match="ViT image tower; resnet has none .*ModifiedResNet"):
            ask()


def test_a_method_of_patches_trains_on_clips_resnet() -> None:
    """In a step from the cache of patches as from pixels: numbers and gradients alike."""
    w = CheckWorld(["TRAINER.FEDOTP.N_CTX", "2"], dict(RESNET, image_size=64))
    kind = load_trainer("FedOTP")
    cached, direct = (w.record(kind, Setup(splits=w.splits[:2], rounds=1, pixels=p))
                      for p in (False, True))
    ours, start = cached.states[-1].server["w"], cached.fed.p0
    assert any(not torch.allclose(v, start[n]) for n, v in ours.items())
    for name, value in ours.items():
        assert torch.allclose(value, direct.states[-1].server["w"][name], 0, 1e-9)
