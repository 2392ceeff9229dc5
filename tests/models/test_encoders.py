"""Text towers that are not CLIP's: features as open_clip's own, padding, prompts, LoRA."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError
from fedvlm.models.adapt import peft
from fedvlm.models.adapt.peft import PeftSpec
from fedvlm.models.backbone import Backbone
from fedvlm.models.towers.adapters import TreeEdits
from fedvlm.models.towers.blocks import NoEdits
from fedvlm.models.towers.prompts import encode_texts
from fedvlm.models.vlmodel import VLModel
from tests.models.encoders import KINDS, coca, encoder
from tests.models.toys import NAMES, context, loss_and_grad, relative

TEXTS = ("a photo of a cat.", "one", "a very long line of words about some animal in a house")
ALL = (*KINDS, "coca")


def backbone(kind: str, **place: Any) -> Backbone:
    return coca(**place) if kind == "coca" else encoder(kind, **place)


def theirs(tower: Backbone, ids: Tensor) -> Tensor:
    """open_clip's own text features."""
    with torch.no_grad():
        out = tower.text_tower(ids)
    return out[0] if isinstance(out, tuple) else out


@pytest.mark.parametrize("kind", ALL)
def test_features_are_open_clips_own(kind: str) -> None:
    tower = backbone(kind)
    ids = tower.tokenize(TEXTS)
    ours = encode_texts(tower, TEXTS)
    assert ours.shape == (3, tower.embed_dim) and float(ours.std()) > 1e-3
    assert relative(ours, theirs(tower, ids)) < 1e-10
    single = backbone(kind, dtype=torch.float32)
    assert relative(encode_texts(single, TEXTS).double(), ours) < 1e-5
    assert tower.verify_frozen() == tower.digest


def test_images_through_coca() -> None:
    tower, pixels = coca(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        want = tower.model.visual(pixels)[0]
    assert torch.equal(tower.encode_image(pixels), want)
    model = VLModel(tower, NAMES)
    inside = model.adapted_image({"pixels": pixels[None]}, NoEdits())[0]
    assert relative(inside[0], want) < 1e-10


@pytest.mark.parametrize("kind", ALL)
def test_texts_of_unlike_lengths_as_one_by_one(kind: str) -> None:
    tower = backbone(kind)
    together = encode_texts(tower, TEXTS)
    alone = torch.cat([encode_texts(tower, [text]) for text in TEXTS])
    assert relative(together, alone) < 1e-10
    assert relative(together[:1], together[1:2]) > 1e-2


@pytest.mark.parametrize("kind", ALL)
def test_prompts_stand_behind_the_first_token(kind: str) -> None:
    """Contexts that are the embeddings of words give the words' own features."""
    tower = backbone(kind)
    model = VLModel(tower, NAMES)
    words = "a photo of"
    ids = tower.tokenize([words])
    start = tower.tokenize(["x", "y"])
    first = int((start[0] == start[1]).int().argmin())
    ctx = tower.embed_tokens(ids)[0, first : first + 3].detach()
    want = encode_texts(tower, [f"{words} {name.replace('_', ' ')}." for name in NAMES])
    got = model.text(ctx)
    assert relative(got, torch.nn.functional.normalize(want, dim=-1)) < 1e-10
    assert "slower" in model.notes[0]  # never packed


@pytest.mark.parametrize("kind", ALL)
def test_gradients_of_prompts(kind: str) -> None:
    tower = backbone(kind)
    model = VLModel(tower, NAMES[:3])
    ctx = context(tower, n_ctx=3)
    loss, grad = loss_and_grad(model, ctx)
    direction = torch.randn(ctx.shape, generator=torch.Generator().manual_seed(5)).to(ctx)
    step = 1e-4  # T5 takes its norms in float32
    ahead, behind = (
        loss_and_grad(model, (ctx + s * step * direction).detach().requires_grad_())[0]
        for s in (1, -1)
    )
    assert float((grad * direction).sum()) == pytest.approx(
        float((ahead - behind) / (2 * step)), rel=2e-3)
    assert (grad.abs().amax(1) > 0).all() and bool(loss.isfinite())


@pytest.mark.parametrize("kind", ALL)
def test_deep_prompts_replace_the_first_ones(kind: str) -> None:
    tower = backbone(kind)
    model = VLModel(tower, NAMES[:3])
    ctx, later = context(tower, n_ctx=3), context(tower, n_ctx=3, seed=7)
    deep = model.text(ctx, deep={1: later})
    assert relative(deep, model.text(ctx)) > 1e-4
    (grad,) = torch.autograd.grad(deep.square().sum() + deep[..., 0].sum(), later)
    assert (grad.abs().amax(1) > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_lora_is_the_merged_tower(kind: str) -> None:
    """Two clients at once, each as an encoder whose weights hold its product."""
    tower = encoder(kind)
    model = VLModel(tower, NAMES[:4])
    spec = PeftSpec("lora", "none", "text", rank=2, alpha=4.0, targets=("q", "k", "v", "o"))
    tree = peft.build_tensors(spec, model, torch.Generator().manual_seed(0))
    assert len(tree) == 16  # A and B of four layers in two blocks
    p = {n: v.double().expand(2, *v.shape).clone() for n, v in tree.items()}
    anchor = model.anchor("template", 0)
    assert relative(peft.text_features(spec, model, p)[1], anchor) < 1e-10
    gen = torch.Generator().manual_seed(3)
    p = {n: v + 0.1 * torch.randn(v.shape, generator=gen).double() for n, v in p.items()}
    p = {n: v.requires_grad_() for n, v in p.items()}
    both = peft.text_features(spec, model, p)
    assert relative(both[0], anchor) > 1e-4
    grads = torch.autograd.grad(both.square().sum() + both[..., 0].sum(), list(p.values()))
    assert all(bool(g.any()) for g in grads)
    merged = encoder(kind)
    with torch.no_grad():
        for layer in merged.encoder_layers():  # type: ignore[attr-defined]
            for site in spec.targets:
                name = f"text.lora.{layer.index}.{site}"
                layer.linears[site].weight += spec.scale * p[f"{name}.B"][1] @ p[f"{name}.A"][1]
    assert relative(both[1], VLModel(merged, NAMES[:4]).anchor("template", 0)) < 1e-10
    assert tower.verify_frozen() == tower.digest
    assert relative(VLModel(tower, NAMES[:4]).anchor("template", 0), anchor) == 0.0


def test_layers_that_lora_does_not_find() -> None:
    spec = PeftSpec("lora", "none", "text", rank=2, targets=("fc",))
    with pytest.raises(ConfigError, match="no such layer; choose from q, k, v, o, proj"):
        peft.build_tensors(spec, VLModel(encoder("mt5"), NAMES), torch.Generator())
    with pytest.raises(ConfigError, match="set PEFT.TEXT prompt or none"):
        peft.build_tensors(spec, VLModel(coca(), NAMES), torch.Generator())


def test_edits_end_with_the_pass() -> None:
    tower = encoder("bert")
    with pytest.raises(RuntimeError), tower.edited(TreeEdits("text", {}), 2):  # type: ignore[attr-defined]
        raise RuntimeError
    assert all("forward" not in m.__dict__ for m in tower.model.modules())


def test_the_context_length_is_what_the_encoder_has_places_for() -> None:
    assert encoder("roberta").context_length == 24
    tower: Any = encoder("roberta")
    tower.tokenizer.context_length = 77
    tower._read_facts()
    assert tower.context_length == 38  # 40 places, of which two stand for padding
