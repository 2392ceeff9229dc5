"""timm's transformers, read: their features, tokens and patches are timm's own, block by block."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError
from fedvlm.models.backbone import Backbone
from fedvlm.models.towers.adapters import TreeEdits
from fedvlm.models.towers.blocks import NoEdits
from fedvlm.models.towers.trunk_blocks import _joined
from fedvlm.models.towers.vision import PATCHES, VisionTower
from fedvlm.models.vlmodel import VLModel
from tests.models.trunks import READ, REFUSED, SIDE, WIDTH, WITH_TEXT, alone, paired

GAP = {torch.float64: 1e-10, torch.float32: 1e-5}


@cache
def tower(kind: str, dtype: torch.dtype = torch.float64) -> VisionTower:
    return VisionTower((paired if kind in WITH_TEXT else alone)(kind, dtype=dtype))


def images(dtype: torch.dtype = torch.float64) -> Tensor:
    gen = torch.Generator().manual_seed(1)
    return torch.randn(2, 3, SIDE, SIDE, generator=gen, dtype=torch.float64).to(dtype)


def theirs(backbone: Backbone, pixels: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
    """What timm's own modules return: features, what leaves each block, each patch pooled alone."""
    visual: Any = backbone.model.visual
    trunk, rows = visual.trunk, []
    hooks = [b.register_forward_hook(lambda _, __, out: rows.append(out)) for b in trunk.blocks]
    with torch.no_grad():
        features = visual(pixels)
        for hook in hooks:
            hook.remove()
        last = trunk.norm(rows[-1])[:, trunk.num_prefix_tokens :]
        if trunk.attn_pool is not None:
            last = torch.stack([trunk.attn_pool(row[:, None]) for row in last.unbind(1)], 1)
        return features, rows, visual.head(trunk.head(trunk.fc_norm(last)))


@pytest.mark.parametrize(("kind", "dtype"), [
    *((kind, torch.float64) for kind in READ),
    *((kind, torch.float32) for kind in ("siglip", "pe", "dinov3plus", "eva02")),
], ids=str)
def test_every_stream_is_timm_s_own(kind: str, dtype: torch.dtype) -> None:
    ours, x, gap = tower(kind, dtype), images(dtype), GAP[dtype]
    want, rows, patches = theirs(ours.backbone, x)
    tokens = ours.compute(x, "tokens.0")
    with torch.no_grad():
        features, taps = ours.leave(tokens[None], 0, NoEdits(), (0, 1))
        later, _ = ours.leave(ours.compute(x, "tokens.1")[None], 1, NoEdits())
        found = ours.compute(x, PATCHES)
    assert tokens.shape[1:] == ours.shape("tokens.0") == (ours.tokens, ours.width)
    assert found.shape[1:] == ours.shape(PATCHES) == (ours.tokens - ours.prefix, want.shape[1])
    for value, other in (
        (features[0], want), (later[0], want), (taps[0][0], rows[0]), (taps[1][0], rows[1]),
        (found, patches), (ours.backbone.encode_image(x), want),
    ):
        assert torch.allclose(value, other, 0, gap * max(1.0, float(other.abs().max())))
    assert ours.backbone.verify_frozen() == ours.backbone.digest


def test_what_stands_before_the_patches() -> None:
    facts = {k: (t.tokens, t.prefix, t.class_token) for k in READ for t in [tower(k)]}
    assert facts["siglip"] == facts["gap"] == (16, 0, False)
    assert facts["pe"] == facts["eva02"] == facts["mixed"] == (17, 1, True)
    assert facts["dinov2"] == facts["dinov3"] == (21, 5, True)


@pytest.mark.parametrize("kind", ["dinov3", "pe", "mixed"])
def test_rows_of_a_client_have_no_rotary_position(kind: str) -> None:
    ours, x, n = tower(kind), images(), 3
    trunk, first = ours.backbone.model.visual.trunk, ours.prefix
    prompt = torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    edits = TreeEdits("image", {"image.prompt.0": prompt[None]})
    with torch.no_grad():
        tokens = ours.enter(x)
        tap = ours.leave(tokens[None], 0, edits, (0,))[1][0][0]
        # timm turns all rows but the first ones: there, the client's rows stand among these.
        rope = trunk.rope.get_embed(*([[SIDE // 8] * 2] if kind == "dinov3" else []))
        block, rope = trunk.blocks[0], rope[0] if kind == "mixed" else rope
        block.attn.num_prefix_tokens += n
        try:
            rows = prompt.expand(len(x), -1, -1)
            want = block(torch.cat([tokens[:, :first], rows, tokens[:, first:]], 1), rope=rope)
        finally:
            block.attn.num_prefix_tokens -= n
    want = torch.cat([want[:, :first], want[:, first + n :], want[:, first : first + n]], 1)
    assert torch.allclose(tap, want, 0, 1e-12)


def test_two_layers_become_one_without_a_copy() -> None:
    a, b = torch.nn.Linear(3, 4), torch.nn.Linear(3, 5)
    for layer in (a, b):
        layer.requires_grad_(False)
    want = torch.cat([a.weight, b.weight])
    whole = _joined([a, b])
    assert whole.equal(want) and whole.data_ptr() == a.weight.data_ptr()
    again = _joined([a, b])
    assert again.equal(want) and again.data_ptr() == whole.data_ptr()
    assert _joined([b, a]).equal(torch.cat([want[4:], want[:4]]))


@pytest.mark.parametrize(("kind", "why"), list(zip(
    REFUSED, ("EvaBlockPostNorm", "RmsNorm", "ParallelScalingBlock"), strict=True
)))
def test_a_trunk_that_is_not_computed_is_refused_and_its_features_are_there(
    kind: str, why: str
) -> None:
    model = VLModel(alone(kind), ["a"])
    assert model.image({"pixels": images(torch.float32)[None]}).shape == (1, 2, WIDTH)
    with pytest.raises(ConfigError, match=f"need a ViT image tower; {kind} has none.*{why}"):
        _ = model.vision


@pytest.mark.parametrize("kind", ["eva01", "siglip"])
def test_bf16(kind: str) -> None:  # EVA keeps its attention's biases beside the layer
    low, x = tower(kind, torch.bfloat16), images(torch.float32)
    want, got = tower(kind, torch.float32).backbone.encode_image(x), low.backbone.encode_image(x)
    assert 0 < float((want - got).norm() / want.norm()) < 0.02
    with torch.no_grad():
        assert torch.allclose(low.leave(low.enter(x)[None], 0, NoEdits())[0][0], got, 0, 1e-5)
