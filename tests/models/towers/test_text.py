"""Edited text towers: packed equals one sequence a text, in values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.models.adapt import peft
from fedvlm.models.towers import text
from fedvlm.models.towers.adapters import TreeEdits, adapter_tree, ln_tree
from fedvlm.models.towers.text import PackedTexts, text_blocks
from fedvlm.models.vlmodel import VLModel
from tests.models.adapted import K, spec_of, start
from tests.models.toys import NAMES, relative, toy

ONE = ("a photo of a {}.",)
SEVERAL = ("a {}.", "{} in the wild.", "itap of a {}, today.")


def both(
    kind: str, dtype: torch.dtype, templates: tuple[str, ...], names: tuple[str, ...] = NAMES
) -> list[VLModel]:
    backbone = toy(kind, dtype=dtype)
    return [VLModel(backbone, names, templates=templates, packed=p) for p in (False, True)]


def answers(
    model: VLModel, p: dict[str, Tensor], encode: Callable[[VLModel, Any], Tensor]
) -> list[Tensor]:
    leaves = {n: v.detach().requires_grad_() for n, v in p.items()}
    out = encode(model, leaves)
    gen = torch.Generator().manual_seed(9)
    goal = torch.randn(out.shape, generator=gen, dtype=torch.float64).to(out)
    return [out, *torch.autograd.grad((out * goal).sum(), list(leaves.values()))]


@pytest.mark.parametrize("kind", ["vit", "gelu", "custom"])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("blocks", [0, 1])
def test_lora_packed_equals_plain(
    kind: str, dtype: torch.dtype, most: float, blocks: int
) -> None:
    templates = ONE if blocks else SEVERAL
    models, spec = both(kind, dtype, templates), spec_of("none", "lora", blocks=blocks)
    p = {n: v.to(dtype) for n, v in start(spec, models[0], 0.3).items()}
    plain, packed = (answers(m, p, lambda m, q: peft.text_features(spec, m, q)) for m in models)
    assert isinstance(models[1]._texts.texts, PackedTexts)
    assert relative(packed[0], plain[0]) < most
    for ours, theirs in zip(packed[1:], plain[1:], strict=True):
        assert relative(ours, theirs) < 20 * most
    assert models[1].counters["text_tokens"] < models[0].counters["text_tokens"]


def test_adapters_and_norms_packed_equal_plain() -> None:
    models = both("vit", torch.float64, ONE)
    blocks, gen = text_blocks(models[0].backbone), torch.Generator().manual_seed(0)
    tree = adapter_tree("text", blocks, 5, gen) | ln_tree("text", blocks)
    p = {
        n: v.double() + 0.2 * torch.randn(K, *v.shape, generator=gen, dtype=torch.float64)
        for n, v in tree.items()
    }
    plain, packed = (
        answers(m, p, lambda m, q: m.adapted_text(TreeEdits("text", q), K)) for m in models
    )
    for ours, theirs in zip(packed, plain, strict=True):
        assert relative(ours, theirs) < 1e-11


def test_in_pieces_and_kept_whole_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of("none", "lora")
    found = []
    for limit in (1 << 40, 16 * K * 32 * 4 * 3 * 20):  # 20 rows: some classes, one template
        monkeypatch.setattr(text, "MAX_BYTES", limit)
        model = both("vit", torch.float64, SEVERAL)[1]
        p = start(spec, model, 0.3)
        found.append(answers(model, p, lambda m, q: peft.text_features(spec, m, q)))
        pieces, fit = model._texts.texts.pieces(K, 0)
        assert fit is (limit == 1 << 40) and (len(pieces) > len(SEVERAL)) is not fit
    for ours, theirs in zip(*found, strict=True):
        assert relative(ours, theirs) < 1e-12


@pytest.mark.parametrize("names", [("x",), ("x", "x"), ("x", "x ray")])
def test_texts_that_begin_alike_keep_their_ends(names: tuple[str, ...]) -> None:
    models, spec = both("vit", torch.float64, ONE, names), spec_of("none", "lora")
    p = start(spec, models[0], 0.3)
    plain, packed = (peft.text_features(spec, m, p) for m in models)
    assert relative(packed, plain) < 1e-12


def test_what_lies_below_the_first_edit_runs_once() -> None:
    model, spec = both("vit", torch.float64, ONE)[1], spec_of("none", "lora", blocks=1)
    p = start(spec, model, 0.3)
    peft.text_features(spec, model, p)
    (entered,) = model._texts.texts._entered.values()
    assert entered.shape[0] == 1 and not entered.requires_grad
    before = entered.clone()
    peft.text_features(spec, model, p)
    assert model._texts.texts._entered == {(id(model._texts.texts.whole[0]), 2): entered}
    assert torch.equal(entered, before)
