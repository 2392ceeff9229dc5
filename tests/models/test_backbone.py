"""Frozen towers: equal to open_clip's, digests, precision."""

from __future__ import annotations

import copy
import hashlib
import math

import pytest
import torch

from fedvlm.models.backbone import digest_of
from fedvlm.models.vlmodel import VLModel
from tests.models.toys import CONFIGS, NAMES, relative, toy


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_towers_are_frozen_and_equal_open_clip(kind: str) -> None:
    plain, fast = toy(kind, plain=True), toy(kind)
    pixels = torch.randn(3, 3, plain.image_size, plain.image_size)
    expected = plain.model.encode_image(pixels)
    assert torch.equal(plain.encode_image(pixels), expected)
    assert relative(fast.encode_image(pixels), expected) < 1e-5
    assert expected.shape == (3, plain.embed_dim)
    for backbone in (plain, fast):
        assert not any(p.requires_grad for p in backbone.model.parameters())
        assert not any(m.training for m in backbone.model.modules())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_digest_and_precision(kind: str, dtype: torch.dtype) -> None:
    backbone = toy(kind, dtype=dtype)
    assert backbone.digest == toy(kind).digest == backbone.verify_frozen()
    pixels = torch.randn(2, 3, backbone.image_size, backbone.image_size)
    out = backbone.encode_image(pixels)
    assert out.dtype is backbone.feature_dtype
    near = toy(kind, dtype=torch.float64).encode_image(pixels)
    allowed = {torch.bfloat16: 3e-2, torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    assert relative(out.double(), near) < allowed
    assert backbone.verify_frozen() == backbone.digest
    with torch.no_grad():
        next(backbone.model.parameters()).view(-1)[0] += 1e-3
    assert backbone.verify_frozen() != backbone.digest


def test_digest_sees_batchnorm_statistics_and_architecture() -> None:
    backbone = toy("resnet")
    before = backbone.verify_frozen()
    backbone.model.visual.bn1.running_mean[0] += 1e-3
    assert backbone.verify_frozen() != before
    vit = toy(plain=True)
    other = copy.deepcopy(vit.arch)
    other["text_cfg"]["heads"] = 2
    assert digest_of(vit.model, other) != vit.digest


def plain_digest(name: str, value: torch.Tensor) -> str:
    """``digest_of`` a model of one buffer, written out: no parts, no shortcut."""
    numbers = value
    if value.is_floating_point():
        single = value.float()
        numbers = single if torch.equal(single.to(value.dtype), value) else value.double()
    said = b"{}" + f"{name} {tuple(value.shape)}".encode()
    return hashlib.sha256(said + numbers.contiguous().numpy().tobytes()).hexdigest()


def last(value: torch.Tensor, number: float) -> torch.Tensor:
    value.view(-1)[-1] = number
    return value


MANY = torch.arange(70_000) % 1000 / 1024  # more than are compared at a time
NUMBERS = {
    "fits": MANY.double(), "fits not": last(MANY.double(), 0.1), "bf16": MANY.bfloat16(),
    "nan": last(MANY.clone(), math.nan), "nan of 64": last(MANY.double(), math.nan),
    "turned": MANY.view(7, -1).T,
    "inf": torch.tensor([[math.inf, -math.inf]]), "int": torch.arange(5), "bool": MANY > 0.5,
    "none": torch.zeros(0, 3, dtype=torch.float64), "one": torch.tensor(0.1, dtype=torch.float64),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_a_digest_is_the_plain_one(name: str) -> None:
    model = torch.nn.Module()
    model.register_buffer("numbers", NUMBERS[name])
    assert digest_of(model, {}) == plain_digest("numbers", NUMBERS[name])


def test_bf16_backbone_serves_prompts() -> None:
    low, exact = toy(dtype=torch.bfloat16), toy()
    ctx = torch.randn(1, 3, exact.text_width)
    t_low = VLModel(low, NAMES).text(ctx)
    t_plain = VLModel(low, NAMES, packed=False).text(ctx)
    assert t_low.dtype is torch.float32 and VLModel(low, NAMES).notes == []
    for got in (t_low, t_plain):
        assert (got * VLModel(exact, NAMES).text(ctx)).sum(-1).min() > 0.999
