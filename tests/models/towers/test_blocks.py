"""Edits before, inside and behind the image tower's blocks, and the page that shows them."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError
from fedvlm.models.adapt import peft
from fedvlm.models.adapt.attention import attention_tree
from fedvlm.models.towers.adapters import TreeEdits, prompt_tree
from fedvlm.models.towers.blocks import Edits, NoEdits
from fedvlm.models.vlmodel import VLModel
from tests.models.adapted import K, pixels
from tests.models.toys import NAMES, context, toy

ROOT = Path(__file__).resolve().parents[3]
ROWS = 2


def prompts(model: VLModel, first: int = 0, stop: int = 2) -> dict[str, Tensor]:
    gen = torch.Generator().manual_seed(3)
    trees = [prompt_tree(model.vision.blocks[first:stop], ROWS, gen, 0.3) for _ in range(K)]
    return {n: torch.stack([t[n] for t in trees]).to(model.dtype) for n in trees[0]}


def by_hand(model: VLModel, p: dict[str, Tensor], x: Tensor, k: int) -> Tensor:
    """VPT on the backbone's own blocks: features [B, d] of one client's pixels [B, 3, H, W]."""
    visual = model.backbone.model.visual
    rows, own = visual._embeds(x), model.vision.tokens
    for number, block in enumerate(visual.transformer.resblocks):
        prompt = p.get(f"image.prompt.{number}")
        if prompt is not None:
            wide = prompt[k].expand(len(rows), -1, -1)
            rows = torch.cat([rows[:, :1], wide, rows[:, -(own - 1):]], 1)  # behind the class token
        rows = block(rows)
    return visual._pool(torch.cat([rows[:, :1], rows[:, -(own - 1):]], 1))[0] @ visual.proj


@pytest.mark.parametrize("kind", ["vit", "gelu"])
@pytest.mark.parametrize(("first", "stop"), [(0, 1), (0, 2), (1, 2)])
def test_visual_prompts_are_rows_behind_the_class_token(kind: str, first: int, stop: int) -> None:
    model, x = VLModel(toy(kind, dtype=torch.float64), NAMES), pixels()
    p = {n: v.requires_grad_() for n, v in prompts(model, first, stop).items()}
    assert list(p) == [f"image.prompt.{b}" for b in range(first, stop)]
    z, taps = model.adapted_image({"pixels": x}, TreeEdits("image", p), taps=(1,))
    for k in range(K):
        assert torch.allclose(z[k], by_hand(model, p, x[k], k), 0, 1e-12)
    assert taps[1].shape[2] == model.vision.tokens + ROWS
    grads = torch.autograd.grad(z[1].square().sum(), list(p.values()))
    assert all(bool(g[1].any()) and not g[0].any() and not g[2].any() for g in grads)
    tokens = model.vision.enter(x.flatten(0, 1), first).unflatten(0, x.shape[:2])
    cached = {f"tokens.{first}": tokens}
    assert torch.allclose(model.adapted_image(cached, TreeEdits("image", p))[0], z, 0, 1e-12)
    own = model.vision.tokens
    patches = model.patches(cached, TreeEdits("image", p))
    assert patches.requires_grad
    assert torch.allclose(patches, model.vision.project(taps[1][:, :, 1:own]), 0, 1e-12)
    assert {peft.role_of(n) for n in p} == {peft.CONTEXT}


def test_attention_is_what_torch_says_of_the_last_block() -> None:
    """The class token's row, mean of the heads; prompts that entered below are rows, too."""
    model, x = VLModel(toy("vit", dtype=torch.float64), NAMES), pixels()
    p, own = prompts(model, 0, 2), model.vision.tokens
    visual = model.backbone.model.visual
    with torch.no_grad():
        found = model.attention({"pixels": x}, TreeEdits("image", p))
        rows = visual._embeds(x[1])
        for number, block in enumerate(visual.transformer.resblocks):
            rows = torch.cat([rows[:, :own], p[f"image.prompt.{number}"][1].expand(2, -1, -1)], 1)
            h = block.ln_1(rows)
            told = block.attn(h, h, h, need_weights=True)[1][:, 0]
            rows = block(rows)
        assert torch.allclose(found[1], told, atol=1e-12)
        assert found.shape == (K, 2, own + ROWS)
        plain = model.attention({"pixels": x}, NoEdits())
        assert torch.allclose(plain.sum(-1), torch.ones(K, 2).double())
        short = VLModel(model.backbone, NAMES, image_chunk=1).attention({"pixels": x}, NoEdits())
        assert torch.allclose(short, plain, atol=1e-12)


def test_a_tower_without_a_class_token_has_no_attention_to_draw() -> None:
    model = VLModel(toy("vit", dtype=torch.float64), NAMES)
    model.vision.shell.one_row = False
    with pytest.raises(ConfigError, match="reads out no class token"):
        model.attention({"pixels": pixels()}, NoEdits())


def test_prompts_of_single_images_are_cut_with_the_batch() -> None:
    model, x = VLModel(toy(dtype=torch.float64), NAMES, image_chunk=K), pixels()
    p = prompts(model)
    each = {n: v.unsqueeze(1).repeat(1, x.shape[1], 1, 1) for n, v in p.items()}
    each["image.prompt.1"][:, 1] *= -1
    whole = model.adapted_image({"pixels": x}, TreeEdits("image", each))[0]
    with torch.no_grad():  # image by image
        parts = model.adapted_image({"pixels": x}, TreeEdits("image", each))[0]
        same = model.adapted_image({"pixels": x}, TreeEdits("image", p))[0]
    assert torch.allclose(parts, whole, 0, 1e-12)
    assert torch.allclose(whole[:, 0], same[:, 0], 0, 1e-12)
    assert not torch.allclose(whole[:, 1], same[:, 1], 0, 1e-3)


@dataclass
class Watch(Edits):
    """Tells what it is asked; the class token's row is doubled behind the last block."""

    seen: list[tuple[str, int, int, int]] = field(default_factory=list)

    def enter(self, block: int, x: Tensor, own: int) -> Tensor:
        self.seen.append(("enter", block, x.shape[2], own))
        return torch.cat([x, x[:, :, :1]], 2) if block == 0 else x

    def leave(self, block: int, x: Tensor, own: int) -> Tensor:
        self.seen.append(("leave", block, x.shape[2], own))
        return x


def test_hooks_are_called_around_every_block_with_all_rows() -> None:
    model, watch = VLModel(toy(dtype=torch.float64), NAMES), Watch()
    n, x = model.vision.tokens, {"pixels": pixels()}
    model.adapted_image(x, watch)
    rows = [("enter", 0, n, n), ("leave", 0, n + 1, n), ("enter", 1, n + 1, n),
            ("leave", 1, n + 1, n)]
    assert watch.seen == rows
    assert torch.equal(model.adapted_image(x, NoEdits())[0], model.adapted_image(
        x, TreeEdits("image", {"text.lora.0.q.A": torch.zeros(K, 1, 1)}))[0])


def test_the_examples_of_the_page_run() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    codes = re.findall(r"^```py\n(.*?)^```$", page, flags=re.M | re.S)
    names: dict[str, Any] = {}
    for code in codes:
        exec(code, names)
    model, gen = VLModel(toy(dtype=torch.float64), NAMES), torch.Generator().manual_seed(0)
    x, k = {"pixels": pixels()}, K

    def draw(*shape: int) -> Tensor:
        return torch.randn(k, *shape, generator=gen, dtype=torch.float64)

    d, w, b = model.embed_dim, model.vision.width, x["pixels"].shape[1]
    frozen = model.image(x)
    assert names["best_patch"](model, {"image.query": draw(d)}, x).shape == (k, b, d)
    assert not torch.allclose(names["prompted"](model, prompts(model), x), frozen)
    features, tap, patches = names["scaled"](
        model, {"image.scale.1.fc": 1 + draw(4 * w), "image.shift.1": draw(w)}, x
    )
    assert tap.shape == (k, b, model.vision.tokens, w) and not torch.allclose(features, frozen)
    assert not torch.allclose(patches, model.patches(x))
    assert torch.allclose(names["scaled"](model, {}, x)[0], frozen, 0, 1e-12)
    ctx = context(model.backbone, k).detach()
    deep = names["deep_text"](model, {"text.ctx": ctx, "text.prompt.1": ctx + 1})
    around = names["surrounded"](model, {"text.ctx": ctx, "text.back": ctx[:, :1]})
    assert deep.shape == around.shape == (k, len(NAMES), d)
    own = torch.eye(k, len(NAMES)).bool()
    logits = names["own_logits"](model, {"text.ctx": ctx}, x, own)
    assert torch.equal(torch.isfinite(logits), own.unsqueeze(1).expand_as(logits))
    gate = {n: v.expand(k, *v.shape).double() for n, v in attention_tree("gate", d, gen).items()}
    assert names["gated"](model, gate, x, draw(5, d)).shape == (k, b, d)


def test_no_method_reaches_into_the_backbones_modules() -> None:
    inner = {"visual", "text_tower", "resblocks", "transformer", "_transformer", "ln_post",
             "text_projection", "positional_embedding", "token_embedding"}
    for file in (ROOT / "trainers").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).split(".")[-1] != "spec":
                assert node.attr not in inner, (
                    f"{file.name}: {ast.unparse(node)}; see 'Inside the towers' in CONTRIBUTING.md"
                )
