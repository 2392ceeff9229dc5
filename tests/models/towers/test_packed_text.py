"""The packed text path against the plain one, for every kind of tower."""

from __future__ import annotations

import pytest
import torch

from fedvlm.core.errors import FedvlmError
from fedvlm.models.vlmodel import VLModel
from tests.models.toys import CONFIGS, NAMES, context, loss_and_grad, relative, toy

PACKABLE = ("vit", "gelu", "resnet", "custom")


@pytest.mark.parametrize("kind", PACKABLE)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_packed_equals_plain(kind: str, dtype: torch.dtype) -> None:
    backbone = toy(kind, dtype=dtype)
    plain, packed = VLModel(backbone, NAMES, packed=False), VLModel(backbone, NAMES)
    ctx = context(backbone, 2)
    expected, expected_grad = loss_and_grad(plain, ctx)
    got, got_grad = loss_and_grad(packed, ctx)
    exact = dtype is torch.float64
    assert relative(packed.text(ctx), plain.text(ctx)) < (1e-12 if exact else 1e-5)
    assert relative(got, expected) < (1e-9 if exact else 1e-5)
    assert relative(got_grad, expected_grad) < (1e-9 if exact else 1e-4)
    assert packed.notes == [] and packed.counters["text_tokens"] < plain.counters["text_tokens"]


@pytest.mark.parametrize("packed", [True, False])
def test_leading_axes_equal_one_by_one(packed: bool) -> None:
    backbone = toy(dtype=torch.float64)
    model = VLModel(backbone, NAMES, packed=packed)
    ctx = context(backbone, 3, 2)
    out = model.text(ctx)
    assert out.shape == (3, 2, len(NAMES), backbone.embed_dim)
    for client in range(3):
        for part in range(2):
            torch.testing.assert_close(out[client, part], model.text(ctx[client, part]))


@pytest.mark.parametrize("kind", PACKABLE)
def test_equal_rows_by_class_equal_the_shared_context(kind: str) -> None:
    backbone = toy(kind, dtype=torch.float64)
    shared = context(backbone, 2)
    rows = shared.detach().unsqueeze(-3).repeat(1, len(NAMES), 1, 1).requires_grad_()
    for packed in (False, True):
        model = VLModel(backbone, NAMES, packed=packed)
        expected, grad = loss_and_grad(model, shared)
        got, by_class = loss_and_grad(model, rows, model.text_by_class)
        assert relative(model.text_by_class(rows), model.text(shared)) < 1e-12
        assert relative(got, expected) < 1e-12
        assert relative(by_class.sum(-3), grad) < 1e-9  # the shared one has all of their gradients


@pytest.mark.parametrize("kind", [*PACKABLE, "siglip"])
@pytest.mark.parametrize("rows", [0, 16])
def test_contexts_by_class_packed_equal_plain(kind: str, rows: int) -> None:
    """Also in several groups of classes, each piece computed twice (``rows``: the bound)."""
    backbone = toy(kind, dtype=torch.float64)
    plain, packed = VLModel(backbone, NAMES, packed=False), VLModel(backbone, NAMES)
    tower = packed._text_path.tower()
    if rows and tower is not None:
        tower.max_rows = rows
    ctx = context(backbone, 2, len(NAMES))
    expected, expected_grad = loss_and_grad(plain, ctx, plain.text_by_class)
    got, got_grad = loss_and_grad(packed, ctx, packed.text_by_class)
    assert relative(got, expected) < 1e-12 and relative(got_grad, expected_grad) < 1e-9
    if tower is not None:
        assert (len(packed._prompts[5, True].layouts) > 1) is bool(rows)
        assert packed.counters["text_tokens"] < plain.counters["text_tokens"]
    one = VLModel(backbone, NAMES[2:3], packed=False)  # each class has its own context, in order
    torch.testing.assert_close(packed.text_by_class(ctx)[:, 2], one.text(ctx[:, 2])[:, 0])


def test_contexts_of_other_classes_are_refused() -> None:
    model = VLModel(toy(), NAMES)
    with pytest.raises(FedvlmError, match="2 class-specific contexts for 6 classes"):
        model.text_by_class(context(model.backbone, 1, 2))


def test_bounded_memory_gives_the_same_result() -> None:
    backbone = toy(dtype=torch.float64)
    plain, packed = VLModel(backbone, NAMES, packed=False), VLModel(backbone, NAMES)
    tower = packed._text_path.tower()
    assert tower is not None
    tower.max_rows = 16  # several class groups, one prompt set at a time, recomputed
    ctx = context(backbone, 3)
    loss, grad = loss_and_grad(packed, ctx)
    expected, expected_grad = loss_and_grad(plain, ctx)
    assert len(packed._prompts[5, False].layouts) > 1
    assert relative(loss, expected) < 1e-12 and relative(grad, expected_grad) < 1e-12


@pytest.mark.parametrize(("kind", "why"), [("siglip", "not causal"), ("cosine", "standard")])
def test_other_towers_take_the_plain_path_and_say_so(kind: str, why: str) -> None:
    model = VLModel(toy(kind), NAMES)
    ctx = context(model.backbone, 2)
    _, grad = loss_and_grad(model, ctx)
    assert grad.abs().min() > 0
    assert len(model.notes) == 1 and why in model.notes[0]
    assert torch.equal(model.text(ctx), VLModel(model.backbone, NAMES, packed=False).text(ctx))


def test_a_wrong_packed_tower_is_refused() -> None:
    backbone = toy()
    model = VLModel(backbone, NAMES)
    # A tower that lies about its mask: attention is not causal although a mask exists.
    backbone.text_tower.attn_mask.zero_()
    model.text(context(backbone, 1))
    assert "differ from plain" in model.notes[0]


def test_bf16_is_near() -> None:
    backbone = toy()
    exact, low = VLModel(backbone, NAMES), VLModel(backbone, NAMES, bf16_text=True)
    ctx = context(backbone, 1)
    t_exact, t_low = exact.text(ctx), low.text(ctx)
    assert t_low.dtype is torch.float32 and not torch.equal(t_exact, t_low)
    assert (t_exact * t_low).sum(-1).min() > 0.999
    assert relative(loss_and_grad(low, ctx)[1], loss_and_grad(exact, ctx)[1]) < 0.1


def test_nothing_depends_on_known_sizes() -> None:
    text = CONFIGS["vit"]["text_cfg"]
    assert text["context_length"] not in (77, 64) and text["width"] != 512
    model = VLModel(toy("resnet"), NAMES)
    assert model.embed_dim != model.text_width  # RN50-like
    z = model.image({"pixels": torch.randn(1, 2, 3, 64, 64)})
    assert model.logits(z, model.text(context(model.backbone, 1))).shape == (1, 2, len(NAMES))
