"""Adapters inside the towers: the frozen model at the start, exact per client, cached below."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.models.adapt import peft
from fedvlm.models.adapt.peft import PeftSpec
from fedvlm.models.towers import text
from fedvlm.models.towers.adapters import adapter_tree, lora_linear, mix_peft, parse_targets
from fedvlm.models.towers.blocks import FrozenBlock, NoEdits
from fedvlm.models.vlmodel import VLModel
from tests.models.adapted import SITE, A, B, K, client, pixels, spec_of, start
from tests.models.toys import NAMES, products, toy


@pytest.mark.parametrize("kind", ["vit", "gelu", "custom", "siglip"])
@pytest.mark.parametrize("visual", ["lora", "adapter"])
def test_untrained_adapters_are_the_frozen_towers(kind: str, visual: str) -> None:
    model = VLModel(toy(kind, dtype=torch.float64), NAMES, templates=("a {}.", "one {}, grey."))
    spec = spec_of(visual, "lora")
    p = start(spec, model)
    x = {"pixels": pixels()}
    assert torch.allclose(peft.image_features(spec, model, p, x), model.image(x), 0, 1e-12)
    anchor = model.anchor("template", 0).expand(K, -1, -1)
    assert torch.allclose(peft.text_features(spec, model, p), anchor, 0, 1e-12)


@pytest.mark.parametrize("visual", ["lora", "adapter"])
def test_the_fast_layers_carry_the_same_update(visual: str) -> None:
    """float32 layers are stored folded (QuickGELU as SiLU): an update must be folded too."""
    spec = spec_of(visual, "lora")
    exact = VLModel(toy(dtype=torch.float64), NAMES)
    fast = VLModel(toy(), NAMES)
    p = start(spec, exact, 0.3)
    q = {n: v.float() for n, v in p.items()}
    for side in (
        lambda m, t: peft.image_features(spec, m, t, {"pixels": pixels()}),
        lambda m, t: peft.text_features(spec, m, t),
    ):
        want = side(exact, p)
        assert float((side(fast, q) - want).norm() / want.norm()) < 1e-5


def test_bfloat16_backbone_takes_adapters() -> None:
    spec = spec_of("lora", "lora")
    exact, low = VLModel(toy(), NAMES), VLModel(toy(dtype=torch.bfloat16), NAMES)
    p = {n: v.float() for n, v in start(spec, exact, 0.1).items()}
    want = F.normalize(peft.image_features(spec, exact, p, {"pixels": pixels()}), dim=-1)
    got = F.normalize(peft.image_features(spec, low, p, {"pixels": pixels()}), dim=-1)
    assert float((got - want).abs().max()) < 5e-2
    assert float((peft.text_features(spec, low, p) - peft.text_features(spec, exact, p))
                 .abs().max()) < 5e-2


@pytest.mark.parametrize("visual", ["lora", "adapter"])
def test_clients_are_separate_and_every_tensor_learns(visual: str) -> None:
    model = VLModel(toy(dtype=torch.float64), NAMES)
    spec = spec_of(visual, "lora")
    p = {n: v.requires_grad_() for n, v in start(spec, model, 0.2).items()}
    x = pixels()
    z, t = peft.image_features(spec, model, p, {"pixels": x}), peft.text_features(spec, model, p)
    for i in range(K):
        one = {n: v[i : i + 1] for n, v in p.items()}
        alone = peft.image_features(spec, model, one, {"pixels": x[i : i + 1]})
        assert torch.allclose(alone[0], z[i], 0, 1e-12)
        assert torch.allclose(peft.text_features(spec, model, one)[0], t[i], 0, 1e-12)
    grads = torch.autograd.grad(model.logits(z, t)[1].square().sum(), list(p.values()))
    for grad in grads:
        assert float(grad[1].norm()) > 0 and not grad[0].any() and not grad[2].any()


@pytest.mark.parametrize("kind", ["vit", "gelu", "custom", "siglip"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_trained_norms_are_those_of_a_tower_with_other_norms(
    kind: str, dtype: torch.dtype
) -> None:
    """Client by client: a tower whose LayerNorms have these weights and biases, and no others."""
    spec = spec_of("none", ln=True)
    model = VLModel(toy(kind, dtype=dtype), NAMES)
    untouched = start(spec, model)
    p, x = start(spec, model, 0.2), pixels().to(dtype)
    assert len(p) == 2 * 2 * len(model.vision.blocks)
    with torch.no_grad():
        plain = peft.image_features(spec, model, untouched, {"pixels": x})
        frozen = model.vision.leave(model.vision.enter(x.flatten(0, 1)).unflatten(0, x.shape[:2]),
                                    0, NoEdits())[0]
    assert torch.equal(plain, frozen)  # bit for bit
    found = peft.image_features(spec, model, p, {"pixels": x})
    for k in range(K):
        other = toy(kind, dtype=dtype)
        with torch.no_grad():
            for b, block in enumerate(other.model.visual.transformer.resblocks):
                for place, norm in ((1, block.ln_1), (2, block.ln_2)):
                    norm.weight += p[f"image.ln.{b}.{place}.weight"][k]
                    norm.bias += p[f"image.ln.{b}.{place}.bias"][k]
            want = other.encode_image(x[k])
        assert float((found[k] - want).norm() / want.norm()) < (1e-12 if dtype.itemsize > 4
                                                                else 1e-5)
        assert float((plain[k] - want).norm() / want.norm()) > 1e-2


def test_norms_of_clients_are_separate_and_learn_beside_other_parts() -> None:
    model = VLModel(toy(dtype=torch.float64), NAMES)
    for visual in ("none", "feature", "lora", "adapter"):
        spec = spec_of(visual, ln=True)
        p = {n: v.requires_grad_() for n, v in start(spec, model, 0.2).items()}
        z = peft.image_features(spec, model, p, {"pixels": pixels()})
        grads = torch.autograd.grad(z[1].square().sum(), list(p.values()))
        for name, grad in zip(p, grads, strict=True):
            assert float(grad[1].norm()) > 0 and not grad[0].any() and not grad[2].any(), name
        lone = spec_of(visual, ln=True, blocks=1)
        assert peft.first_changed_block(lone, model) == 1
        names = [n for n in peft.build_tensors(lone, model, torch.Generator()) if ".ln." in n]
        assert not [n for n in names if n.startswith("image.ln.0.")]


def test_gradients_are_those_of_central_differences() -> None:
    model = VLModel(toy(dtype=torch.float64), NAMES)
    for visual in ("lora", "adapter"):
        spec = spec_of(visual)
        p = start(spec, model, 0.2, 1)
        gen = torch.Generator().manual_seed(7)
        way = {n: torch.randn(v.shape, generator=gen, dtype=v.dtype) for n, v in p.items()}
        size = torch.cat([v.flatten() for v in way.values()]).norm()
        way = {n: v / size for n, v in way.items()}
        x = {"pixels": pixels(1)}
        step = torch.zeros((), dtype=torch.float64, requires_grad=True)

        def value(
            s: Tensor | float, spec: PeftSpec = spec, p: Any = p, way: Any = way, x: Any = x
        ) -> Tensor:
            moved = {n: v + s * way[n] for n, v in p.items()}
            return peft.image_features(spec, model, moved, x).square().sum()

        (slope,) = torch.autograd.grad(value(step), step)
        rough = (value(1e-4) - value(-1e-4)) / 2e-4
        assert float(slope) == pytest.approx(float(rough), rel=1e-6)


@pytest.mark.parametrize("visual", ["lora", "adapter"])
@pytest.mark.parametrize("blocks", [1, 2])
def test_cached_activations_give_the_same_features_and_gradients(visual: str, blocks: int) -> None:
    model = VLModel(toy(dtype=torch.float64), NAMES)
    spec = spec_of(visual, blocks=blocks)
    first = peft.first_changed_block(spec, model)
    assert first == 2 - blocks
    p = {n: v.requires_grad_() for n, v in start(spec, model, 0.2).items()}
    assert all(int(n.split(".")[2]) >= first for n in p)
    x = pixels()
    with torch.no_grad():
        kept = model.vision.enter(x.flatten(0, 1), first).unflatten(0, x.shape[:2])
    found = []
    for batch in ({"pixels": x}, {f"tokens.{first}": kept}):
        z = peft.image_features(spec, model, p, batch)
        found.append([z, *torch.autograd.grad(z.square().sum(), list(p.values()))])
        with torch.no_grad():  # in smaller pieces, without a graph
            assert torch.allclose(peft.image_features(spec, model, p, batch), z, 0, 1e-12)
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, 1e-10, 1e-12)
    assert torch.allclose(
        model.image({f"tokens.{first}": kept}), model.image({"pixels": x}), 0, 1e-12
    )


def test_taps_are_the_blocks_outputs() -> None:
    model = VLModel(toy(dtype=torch.float64), NAMES)
    spec = spec_of("adapter")
    x = pixels(1)
    z, taps = peft.image_taps(spec, model, start(spec, model, 0.0, 1), {"pixels": x}, (0, 1))
    want = model.backbone.model.visual.forward_intermediates(
        x[0], output_fmt="NLC", output_extra_tokens=True
    )
    assert torch.allclose(z[0], want["image_features"], 0, 1e-12)
    for i in (0, 1):
        assert torch.allclose(taps[i][0, :, 1:], want["image_intermediates"][i], 0, 1e-12)
        assert torch.allclose(taps[i][0, :, :1], want["image_intermediates_prefix"][i], 0, 1e-12)


def test_the_gradient_reaches_pixels() -> None:
    model = VLModel(toy(dtype=torch.float64), NAMES)
    spec = spec_of("adapter")
    x = pixels(1).requires_grad_()
    out = peft.image_features(spec, model, start(spec, model, 0.1, 1), {"pixels": x})
    (grad,) = torch.autograd.grad(out.square().sum(), x)
    assert float(grad.abs().max()) > 0


def test_new_classes_keep_a_client_s_text_tower() -> None:
    model = VLModel(toy(dtype=torch.float64), NAMES)
    spec = spec_of("none", "lora", blocks=1)
    p = start(spec, model, 0.3)
    other = model.with_classes(["x", "red_fox"])
    want = peft.text_features(spec, model, p)[:, 4:6]
    assert torch.allclose(peft.text_features(spec, other, p), want, 0, 1e-12)


def test_second_derivatives_of_the_fast_layers() -> None:
    """oneDNN's product has no derivative of its own: left bare, it loses terms without a word."""
    spec = spec_of("lora", "lora")
    p = start(spec, VLModel(toy(dtype=torch.float64), NAMES), 0.3)
    found = []
    for dtype in (torch.float64, torch.float32):
        model = VLModel(toy(dtype=dtype), NAMES, packed=False)
        x = {"pixels": pixels().to(dtype)}
        q = {n: v.to(dtype).requires_grad_() for n, v in p.items()}
        with sdpa_kernel(SDPBackend.MATH):
            z, t = peft.image_features(spec, model, q, x), peft.text_features(spec, model, q)
            loss = model.logits(z, t).square().mean()
            grads = torch.autograd.grad(loss, list(q.values()), create_graph=True)
            size = sum(g.square().sum() for g in grads)
            second = torch.autograd.grad(size, list(q.values()))
        found.append(torch.cat([h.flatten().double() for h in second]))
    assert float((found[0] - found[1]).norm() / found[0].norm()) < 1e-3


def test_texts_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    model = VLModel(toy(dtype=torch.float64), NAMES, templates=("a {}.", "one {}, grey."))
    spec = spec_of("none", "lora")
    p = {n: v.requires_grad_() for n, v in start(spec, model, 0.3).items()}
    found = []
    for limit in (1 << 40, 1):
        monkeypatch.setattr(text, "MAX_BYTES", limit)
        t = peft.text_features(spec, model, p)
        found.append([t, *torch.autograd.grad(t.sin().sum(), list(p.values()))])
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, 1e-10, 1e-12)


@pytest.mark.parametrize(
    ("width", "hidden", "blocks", "count"),
    [(768, 32, 12, 1_235_712), (768, 16, 12, 645_504), (768, 64, 12, 2_416_128),
     (192, 32, 12, 309_504)],
)  # fmt: skip
def test_adapter_counts(width: int, hidden: int, blocks: int, count: int) -> None:
    one = torch.empty(width, width, device="meta")
    made = [
        FrozenBlock(i, 1, {"o": (one, None)}, (F.relu,) * 2, (F.relu,) * 2, F.relu, 1.0)
        for i in range(blocks)
    ]
    tree = adapter_tree("image", made, hidden, torch.Generator())
    assert sum(v.numel() for v in tree.values()) == count
    assert len(tree) == 12 * blocks


def test_refusals() -> None:
    model = VLModel(toy(), NAMES)
    gen = torch.Generator()
    with pytest.raises(ConfigError, match="has 2 blocks"):
        peft.build_tensors(spec_of(blocks=3), model, gen)
    with pytest.raises(ConfigError, match="RANK 99 is above 48"):
        peft.build_tensors(spec_of(rank=99), model, gen)
    with pytest.raises(ConfigError, match="ViT image tower.*ModifiedResNet.*PEFT.VISUAL feature"):
        peft.build_tensors(spec_of(), VLModel(toy("resnet"), NAMES), gen)
    with pytest.raises(ConfigError, match="text tower of cosine"):
        peft.build_tensors(spec_of("none", "lora"), VLModel(toy("cosine"), NAMES), gen)
    with pytest.raises(ConfigError, match="unknown layer in PEFT.TARGETS: 'out'"):
        parse_targets("q,out")
    with pytest.raises(ConfigError, match="names no layer"):
        parse_targets(" , ")
    assert parse_targets("q, MLP,fc") == ("q", "fc", "proj")
    p = start(spec_of(), model, 0.0, 1)
    with pytest.raises(FedvlmError, match="pixels or tokens to start from; the batch has"):
        peft.image_features(spec_of(), model, p, {"features": torch.zeros(1, 2, 24)})


def test_stacked_lora_equals_one_by_one() -> None:
    gen = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(s, generator=gen, dtype=torch.float64)
                       for s in ((3, 2, 4, 6), (5, 6), (5,)))
    a, b = (torch.randn(s, generator=gen, dtype=torch.float64) for s in ((3, 2, 6), (3, 5, 2)))
    a.requires_grad_()
    out = lora_linear(x, weight, bias, a, b, 0.5)
    (grad,) = torch.autograd.grad(out.square().sum(), a)
    for k in range(3):
        leaf = a[k].detach().requires_grad_()
        single = x[k] @ (weight + 0.5 * b[k] @ leaf).T + bias
        torch.testing.assert_close(out[k], single)
        torch.testing.assert_close(grad[k], torch.autograd.grad(single.square().sum(), leaf)[0])


def test_mixing_is_exact_for_products_and_collapses_at_the_ends() -> None:
    gen = torch.Generator().manual_seed(0)
    v, w = (
        {n: torch.stack([client(s + i)[n] for i in range(4)]) for n in (A, B, "head.weight")}
        for s in (0, 10)
    )
    alpha = torch.rand(4, generator=gen, dtype=torch.float64)
    mixed, share = mix_peft(alpha, v, w), alpha[:, None, None]
    assert mixed[A].shape[1] == 4 and mixed[B].shape[2] == 4
    want = share * products(v)[SITE] + (1 - share) * products(w)[SITE]
    assert torch.allclose(products(mixed)[SITE], want, 0, 1e-12)
    linear = share * v["head.weight"] + (1 - share) * w["head.weight"]
    assert torch.allclose(mixed["head.weight"], linear, 0, 1e-15)
    for end, tree in ((1.0, v), (0.0, w)):
        alone = mix_peft(torch.full_like(alpha, end), v, w)
        assert torch.equal(products(alone)[SITE], products(tree)[SITE])
        assert torch.equal(alone["head.weight"], tree["head.weight"])


def test_the_towers_run_the_mix_and_alpha_has_its_gradient() -> None:
    model = VLModel(toy(dtype=torch.float64), NAMES)
    spec = spec_of("lora", "lora")
    v, w = start(spec, model, 0.3), {n: -t for n, t in start(spec, model, 0.2).items()}
    x = {"pixels": pixels()}

    def value(alpha: Tensor) -> Tensor:
        p = mix_peft(alpha, v, w)
        z, t = peft.image_features(spec, model, p, x), peft.text_features(spec, model, p)
        return model.logits(z, t)

    ones = torch.ones(3, dtype=torch.float64)
    for end, tree in ((1.0, v), (0.0, w)):
        z, t = (peft.image_features(spec, model, tree, x), peft.text_features(spec, model, tree))
        assert torch.allclose(value(end * ones), model.logits(z, t), 0, 1e-12)
    alpha = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(value(alpha).square().sum(), alpha)
    with torch.no_grad():
        up, down = (value(alpha + h).square().sum((1, 2)) for h in (1e-5, -1e-5))
    assert torch.allclose(slope, (up - down) / 2e-5, 1e-6)
