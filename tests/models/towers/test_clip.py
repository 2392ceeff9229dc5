"""The plain CLIP is open_clip's, bit for bit, on the same weights."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError
from fedvlm.core.transform import TransformSpec
from fedvlm.models.backbone import Backbone, digest_of
from fedvlm.models.features.encode import encode_padded
from fedvlm.models.load.openclip import build_model
from fedvlm.models.load.tiny import TINY_DIR, TinyTokenizer
from fedvlm.models.towers.clip import Clip, is_block, is_image_tower, is_quick_gelu
from fedvlm.models.vlmodel import VLModel

NAMES = ("red circle", "blue cross", "a rather long class name", "x")


def arch() -> dict[str, Any]:
    config: dict[str, Any] = json.loads((TINY_DIR / "open_clip_config.json").read_text("utf-8"))
    return config["model_cfg"]  # type: ignore[no-any-return]


@cache
def weights(dtype: torch.dtype) -> dict[str, Tensor]:
    """Random weights in the tiny's shapes, away from neutral starts, with digits of their type."""
    gen = torch.Generator().manual_seed(5)
    state = build_model(arch())[0].state_dict()
    noise = {n: torch.randn(v.shape, generator=gen, dtype=torch.float64) for n, v in state.items()}
    return {n: (v.double() + 0.05 * noise[n]).to(dtype) for n, v in state.items()}


def pair(dtype: torch.dtype, plain: bool) -> tuple[Backbone, Backbone]:
    """Return our backbone and open_clip's."""
    backbones = []
    for model in (Clip(arch()), build_model(arch())[0]):
        model.to(dtype if dtype is torch.float64 else torch.float32)
        model.load_state_dict(weights(torch.float64 if dtype is torch.float64 else torch.float32))
        backbones.append(Backbone(
            model, TinyTokenizer(48), name="tiny", weights="", arch=arch(), dtype=dtype,
            spec=TransformSpec(32, (0.45,) * 3, (0.28,) * 3), plain=plain,
        ))  # fmt: skip
    return backbones[0], backbones[1]


def test_names_and_digest_are_open_clips() -> None:
    torch.manual_seed(3)
    ours, theirs = Clip(arch()), build_model(arch())[0]
    assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(3))
    assert set(ours.state_dict()) == set(theirs.state_dict())
    assert {n for n, _ in ours.named_buffers()} == {n for n, _ in theirs.named_buffers()}
    for model in (ours, theirs):
        model.load_state_dict(weights(torch.float32))
    assert digest_of(ours, arch()) == digest_of(theirs, arch())


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_features_are_open_clips_bit_for_bit(dtype: torch.dtype, plain: bool) -> None:
    ours, theirs = pair(dtype, plain)
    assert (ours.digest, ours.numerics) == (theirs.digest, theirs.numerics)
    gen = torch.Generator().manual_seed(6)
    for count in (1, 5, 16):
        pixels = torch.randn(count, 3, 32, 32, generator=gen)
        assert torch.equal(encode_padded(ours, pixels, 16), encode_padded(theirs, pixels, 16))
        ids = torch.randint(0, 4096, (count, 48), generator=gen)
        texts = [b.encode_embeddings(b.embed_tokens(ids), b.eot(ids)) for b in (ours, theirs)]
        assert torch.equal(*texts)
    assert ours.verify_frozen() == ours.digest


@pytest.mark.parametrize("packed", [False, True])
def test_prompts_and_their_gradients_are_open_clips(packed: bool) -> None:
    found = []
    for backbone in pair(torch.float32, plain=False):
        model = VLModel(backbone, NAMES, packed=packed)
        gen = torch.Generator().manual_seed(7)
        ctx = (0.1 * torch.randn(2, 4, 128, generator=gen)).requires_grad_()
        text = model.text(ctx)
        (slope,) = torch.autograd.grad((text * torch.randn(text.shape, generator=gen)).sum(), ctx)
        assert not model.notes
        found.append((text.detach(), slope, model.anchor("template", 0)))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_tokens_between_blocks_are_open_clips() -> None:
    ours, theirs = (VLModel(b, NAMES).vision for b in pair(torch.float32, plain=False))
    pixels = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(8))
    assert torch.equal(ours.enter(pixels, 3), theirs.enter(pixels, 3))


def test_kinds_are_told_apart() -> None:
    quick, _ = build_model(arch() | {"quick_gelu": True})
    custom, _ = build_model(arch() | {"text_cfg": arch()["text_cfg"] | {"block_type": "custom"}})
    ours = Clip(arch())
    for model in (ours, quick):
        assert is_image_tower(model.visual) and is_block(model.transformer.resblocks[0])
        assert is_quick_gelu(model.transformer.resblocks[0].mlp.gelu) is (model is quick)
    assert not is_block(custom.transformer.resblocks[0]) and not is_image_tower(ours)


@pytest.mark.parametrize(
    "change",
    [{"quick_gelu": True}, {"text_cfg": {"width": 8}}, {"vision_cfg": {"timm_model_name": "vit"}}],
)
def test_other_architectures_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="load it with open_clip"):
        Clip(arch() | change)
