"""VLModel: images, anchors, logits, class lists, counters."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedvlm.core.errors import ConfigError
from fedvlm.models.vlmodel import VLModel
from tests.models.toys import NAMES, context, relative, toy


def test_image_features_and_pixels() -> None:
    backbone = toy()
    model = VLModel(backbone, NAMES, image_chunk=4)
    pixels = torch.randn(2, 5, 3, 32, 32)
    out = model.image({"pixels": pixels})
    assert out.shape == (2, 5, backbone.embed_dim) and not out.requires_grad
    assert relative(out[1], backbone.encode_image(pixels[1])) < 1e-5
    assert model.counters["image_forwards"] == 10
    assert torch.equal(model.image({"features": out, "pixels": pixels}), out)
    assert model.counters["image_forwards"] == 10


def test_logits_are_scaled_cosines() -> None:
    model = VLModel(toy(), NAMES)
    t = model.text(context(model.backbone, 2)).detach()
    z = torch.randn(2, 3, model.embed_dim)
    logits = model.logits(z, t)
    cosines = F.cosine_similarity(z.unsqueeze(2), t.unsqueeze(1), dim=-1)
    torch.testing.assert_close(logits, model.scale * cosines)
    assert model.scale == pytest.approx(float(model.backbone.model.logit_scale.exp()))


def test_template_anchor_is_the_normalised_mean() -> None:
    templates = ("a photo of a {}.", "{} in the wild")
    model = VLModel(toy(dtype=torch.float64), NAMES, templates=templates)
    means = []
    for name in NAMES:
        texts = [t.replace("{}", name.replace("_", " ")) for t in templates]
        features = model.backbone.model.encode_text(model.backbone.tokenize(texts))
        means.append(F.normalize(F.normalize(features, dim=-1).mean(0), dim=-1))
    torch.testing.assert_close(model.anchor("template", 16), torch.stack(means))


def test_anchors_are_computed_once() -> None:
    model = VLModel(toy(), NAMES)
    first = model.anchor("literal", 3)
    assert model.constants["text_passes"] == 1 and not model.counters  # of no round
    assert model.anchor("literal", 3) is first and model.constants["text_passes"] == 1
    assert not torch.equal(model.anchor("literal", 4), first)
    assert model.anchor("template", 3) is model.anchor("template", 4)
    with pytest.raises(ConfigError, match="did you mean 'literal'"):
        model.anchor("litteral", 3)


def test_class_lists_share_towers_and_counters() -> None:
    model = VLModel(toy(), NAMES)
    other = model.with_classes(NAMES[:2])
    assert model.with_classes(list(NAMES[:2])) is other and other.with_classes(NAMES) is model
    assert other.backbone is model.backbone
    ctx = context(model.backbone, 1)
    out = other.text(ctx)
    assert model.counters is other.counters and model.counters["text_passes"] == 1
    torch.testing.assert_close(out, model.text(ctx)[:, :2])


def test_bad_arguments() -> None:
    backbone = toy()
    for kwargs in ({"classnames": ()}, {"classnames": NAMES, "templates": ("no braces",)}):
        with pytest.raises(ConfigError):
            VLModel(backbone, **kwargs)


def test_what_is_made_once_belongs_to_one_class_list() -> None:
    model, calls = VLModel(toy(), NAMES), list[str]()

    def make() -> object:
        calls.append("made")
        return object()

    assert model.once("a", make) is model.once("a", make) is not model.once("b", make)
    assert model.with_classes(["hen"]).once("a", make) is not model.once("a", make)
    assert len(calls) == 3


@pytest.mark.parametrize("name", ["weight", "running_mean"])
def test_a_module_that_was_taken_in_is_frozen_with_the_backbone(name: str) -> None:
    model = VLModel(toy(dtype=torch.float64), NAMES)
    before = model.verify_frozen()
    assert before == model.backbone.digest
    norm = model.with_classes(["hen"]).freeze(nn.BatchNorm1d(3))
    assert norm.weight.dtype == torch.float64 and not norm.training
    assert not any(p.requires_grad for p in norm.parameters())
    assert model.verify_frozen() == before
    getattr(norm, name).data[1] += 1e-3
    assert model.verify_frozen() != before
    getattr(norm, name).data[1] -= 1e-3
    model.backbone.model.logit_scale.data += 1e-3
    assert model.verify_frozen() not in (before, "")
