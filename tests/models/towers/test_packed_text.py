"""The packed text path against the plain one, for every kind of tower."""

from __future__ import annotations

import pytest
import torch

from fedvlm.core.errors import FedvlmError
from fedvlm.models.vlmodel import VLModel
from tests.models.toys import (
    CONFIGS,
    NAMES,
    context,
    loss_and_grad,
    loss_and_grads,
    relative,
    toy,
)

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
        assert (len(packed._prompts[5, True, None, ""].layouts) > 1) is bool(rows)
        assert packed.counters["text_tokens"] < plain.counters["text_tokens"]
    one = VLModel(backbone, NAMES[2:3], packed=False)  # each class has its own context, in order
    torch.testing.assert_close(packed.text_by_class(ctx)[:, 2], one.text(ctx[:, 2])[:, 0])


@pytest.mark.parametrize("kind", [*PACKABLE, "siglip"])
@pytest.mark.parametrize("rows", [0, 24])
def test_contexts_around_the_name_packed_equal_plain(kind: str, rows: int) -> None:
    backbone = toy(kind, dtype=torch.float64)
    plain, packed = VLModel(backbone, NAMES, packed=False), VLModel(backbone, NAMES)
    tower = packed._text_path.tower()
    if rows and tower is not None:
        tower.max_rows = rows
    both = [context(backbone, 2, 1, n_ctx=2), context(backbone, 2, 1, n_ctx=3, seed=7)]
    (got, got_grads), (want, want_grads) = (  # leading axes are free
        loss_and_grads(both, model.text_around(*both, "of the kind")) for model in (packed, plain)
    )
    assert relative(got, want) < 1e-12
    assert all(relative(a, b) < 1e-9 for a, b in zip(got_grads, want_grads, strict=True))
    if tower is not None:
        (prompts,) = packed._prompts.values()
        assert (len(prompts.layouts) > 1) is bool(rows)
        assert packed.counters["text_tokens"] < plain.counters["text_tokens"]


def test_contexts_around_the_name_of_different_clients_are_refused() -> None:
    model = VLModel(toy(), NAMES)
    with pytest.raises(FedvlmError, match="all axes except the number of vectors must be equal"):
        model.text_around(context(model.backbone, 2), context(model.backbone, 3), "in")


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
    assert len(packed._prompts[5, False, None, ""].layouts) > 1
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
    assert "differ from the reference" in model.notes[0]


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


# ---- contexts in later blocks, and classes that clients choose ---------------------------------
@pytest.mark.parametrize("kind", [*PACKABLE, "siglip"])
@pytest.mark.parametrize("rows", [0, 16])
def test_deep_contexts_packed_equal_plain(kind: str, rows: int) -> None:
    backbone = toy(kind, dtype=torch.float64)
    plain, packed = VLModel(backbone, NAMES, packed=False), VLModel(backbone, NAMES)
    if rows and (tower := packed._text_path.tower()):
        tower.max_rows = rows
    ctx = context(backbone, 2)
    later = {1: context(backbone, 2, seed=4), 2: context(backbone, seed=5)}  # one for all clients
    leaves = (ctx, *later.values())
    (got, got_grads), (want, want_grads) = (
        loss_and_grads(leaves, model.text(ctx, deep=later)) for model in (packed, plain)
    )
    assert relative(got, want) < 1e-12
    assert all(relative(a, b) < 1e-9 for a, b in zip(got_grads, want_grads, strict=True))
    assert relative(packed.text(ctx, deep=later), packed.text(ctx)) > 1e-3
    words = "a b c d e f g h"  # the context stands for the first tokens, the others stay
    same, kept = (model.text(ctx, deep=later, words=words) for model in (packed, plain))
    assert relative(same, kept) < 1e-12 and relative(kept, plain.text(ctx, deep=later)) > 1e-3
    wide = ctx.unsqueeze(-3).expand(-1, len(NAMES), -1, -1)
    by_class = packed.text_by_class(wide, {b: v.unsqueeze(-3) for b, v in later.items()})
    assert relative(by_class, packed.text(ctx, deep=later)) < 1e-12


def test_a_deep_context_is_the_first_one_where_nothing_moved_it() -> None:
    """Block by block: what is put in place of the first context is what the next block reads."""
    backbone = toy(dtype=torch.float64)
    model = VLModel(backbone, NAMES[:1])
    ctx = context(backbone, 1)
    tower, emb = backbone.text_tower, []
    prompts = model._prompts_of(ctx, False).prompts
    ids = backbone.embed_tokens(prompts.ids)
    x = torch.cat([ids[:, :1], ctx, ids[:, 1 + ctx.shape[1]:]], 1) + tower.positional_embedding
    for block in tower.transformer.resblocks:
        emb.append(x[:, 1 : 1 + ctx.shape[1]])
        x = block(x, attn_mask=tower.attn_mask)
    same = model.text(ctx, deep={1: emb[1], 2: emb[2]})
    assert relative(same, model.text(ctx)) < 1e-12


def test_deep_contexts_that_do_not_fit_are_refused() -> None:
    model = VLModel(toy(), NAMES)
    ctx = context(model.backbone, 2)
    for deep in ({0: ctx}, {3: ctx}, {1: ctx[:, 1:]}, {1: ctx[None]}):
        with pytest.raises(FedvlmError, match="replace contexts"):
            model.text(ctx, deep=deep)


CHOICE = torch.tensor([[1, 0, 1, 0, 0, 1], [0, 0, 0, 1, 1, 0], [0] * 6]).bool()


@pytest.mark.parametrize(
    ("kind", "rows"), [("vit", 0), ("vit", 16), ("vit", 40), ("custom", 0), ("siglip", 0)]
)
def test_chosen_classes_have_the_features_of_all(kind: str, rows: int) -> None:
    """Also in pieces (40), and where one client's classes are too many for a sequence (16)."""
    backbone = toy(kind, dtype=torch.float64)
    model = VLModel(backbone, NAMES)
    if rows and (tower := model._text_path.tower()):
        tower.max_rows = rows
    ctx, later = context(backbone, 3, 2), {2: context(backbone, 3, 1, seed=4)}
    for deep in (None, later):
        (got, got_grad), (want, want_grad) = (
            loss_and_grad(model, ctx, lambda c, mask=mask, deep=deep:
                          model.text(c, mask, deep) * CHOICE[:, None, :, None])
            for mask in (CHOICE, None)
        )
        assert relative(got, want) < 1e-12 and relative(got_grad, want_grad) < 1e-9
    assert not model.text(ctx, CHOICE)[~CHOICE.unsqueeze(1).expand(-1, 2, -1)].any()
    before = model.counters["text_tokens"]
    model.text(ctx, CHOICE)
    alone = model.counters["text_tokens"] - before
    model.text(ctx)
    full = model.counters["text_tokens"] - before - alone
    assert alone == full if (kind, rows) == ("vit", 16) else alone <= full
    if kind == "vit" and not rows:  # prefix and own tokens of 3, 2 and 0 classes, for two sets each
        ends = [int(e) + 1 - 6 for e in model._prompts_of(ctx[0], False).prompts.ends]
        assert alone == 2 * (3 * 6 + sum(ends[c] for row in CHOICE for c in row.nonzero()))


def test_logits_of_other_classes_take_no_part() -> None:
    backbone = toy(dtype=torch.float64)
    model = VLModel(backbone, NAMES)
    ctx = context(backbone, 3)
    z = torch.randn(3, 4, model.embed_dim, generator=torch.Generator().manual_seed(0)).double()
    logits = model.logits(z, model.text(ctx, CHOICE), CHOICE)
    assert torch.equal(torch.isfinite(logits), CHOICE.unsqueeze(1).expand_as(logits))
    losses = -logits[:2].log_softmax(-1)[[0, 1], :, [2, 4]].mean(-1)
    (grad,) = torch.autograd.grad(losses.sum(), ctx)
    for k, held in enumerate(CHOICE[:2]):
        own = VLModel(backbone, [n for n, h in zip(NAMES, held, strict=True) if h])
        leaf = ctx[k : k + 1].detach().requires_grad_()
        of = own.logits(z[k : k + 1], own.text(leaf))
        torch.testing.assert_close(logits[k][:, held], of[0])
        label = [2, 4][k] - int((~held[: [2, 4][k]]).sum())
        (slope,) = torch.autograd.grad(-of.log_softmax(-1)[0, :, label].mean(), leaf)
        torch.testing.assert_close(grad[k], slope[0])


def test_a_mask_that_does_not_fit_is_refused() -> None:
    model = VLModel(toy(), NAMES)
    ctx = context(model.backbone, 3)
    for mask in (CHOICE[:2], CHOICE[:, :5], CHOICE.double()):
        with pytest.raises(FedvlmError, match="expected bool .clients, classes."):
            model.text(ctx, mask)
