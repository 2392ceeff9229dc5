"""Fusion gates and the adaptation split, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.core.trees import cast, expand, numel
from fedvlm.federation.batches import stratify
from fedvlm.federation.toolbox.adaptation import GateFit
from fedvlm.models.adapt.gates import KINDS, build_gate, confidence, mix_logits, share, spread

GATES = [k for k in KINDS if k != "concat_mlp"]
F64 = torch.float64


def made(kind: str, classes: int, k: int = 1, seed: int = 0) -> dict[str, Tensor]:
    tree = build_gate(kind, classes, torch.Generator().manual_seed(seed))
    return expand(cast(tree, F64, "cpu"), k)


def logits(*shape: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


@pytest.mark.parametrize("kind", GATES)
def test_starts_at_the_average(kind: str) -> None:
    z_g, z_s = logits(2, 5, 4), logits(2, 5, 4, seed=1)
    p = made(kind, 4, 2)
    assert bool((share(kind, p, z_g, z_s) == 0.5).all())
    assert torch.allclose(mix_logits(kind, p, z_g, z_s), (z_g + z_s) / 2, rtol=0, atol=1e-15)


@pytest.mark.parametrize("kind", GATES)
def test_equal_logits_stay_whatever_the_parameters(kind: str) -> None:
    z = logits(1, 6, 4)
    noise = torch.Generator().manual_seed(5)
    p = {n: torch.randn(v.shape, generator=noise, dtype=F64) for n, v in made(kind, 4).items()}
    assert torch.equal(mix_logits(kind, p, z, z), z)
    other = logits(1, 6, 4, seed=2)
    alpha = share(kind, p, z, other)
    assert float(alpha.min()) > 0 and float(alpha.max()) < 1


def test_the_stated_gradient() -> None:
    """z_G = (2, 0), z_S = (0, 1), y = 0, alpha 0.5: the gate must move towards G."""
    z_g, z_s = torch.tensor([[[2.0, 0.0]]], dtype=F64), torch.tensor([[[0.0, 1.0]]], dtype=F64)
    before = torch.zeros(1, dtype=F64, requires_grad=True)
    alpha = torch.sigmoid(before)
    alpha.retain_grad()
    z = alpha * z_g + (1 - alpha) * z_s
    assert z.flatten().tolist() == [1.0, 0.5]
    assert float(z.detach().softmax(-1)[0, 0, 0]) == pytest.approx(0.6224594, abs=1e-7)
    loss = F.cross_entropy(z[0], torch.tensor([0]))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0.4740770, abs=5e-8)
    assert float(alpha.grad) == pytest.approx(-1.1326220, abs=5e-8)
    assert float(before.grad) == pytest.approx(-0.2831555, abs=5e-8)
    # and through the gate itself: the scalar bias b2 is that pre-sigmoid number
    p = made("conf_gate", 2)
    leaf = p["gate.b2"].clone().requires_grad_()
    y, w = torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1, dtype=F64)
    ours = GateFit("conf_gate").loss(p | {"gate.b2": leaf}, z_g, z_s, y, w).sum()
    (slope,) = torch.autograd.grad(ours, leaf)
    assert float(ours.detach()) == pytest.approx(0.4740770, abs=5e-8)
    assert float(slope) == pytest.approx(-0.2831555, abs=5e-8)


@pytest.mark.parametrize(
    ("kind", "hidden", "count"),
    [("conf_gate", 0, 165), ("gate_mlp", 0, 9732), ("gate_scalar", 0, 6465),
     ("gate_mlp", 64, 19364), ("gate_scalar", 64, 12929), ("classwise", 0, 100), ("average", 0, 0),
     ("concat_mlp", 0, 9732)],
)
def test_parameter_counts(kind: str, hidden: int, count: int) -> None:
    assert numel(build_gate(kind, 100, torch.Generator(), hidden)) == count
    if kind == "conf_gate":
        assert numel(build_gate(kind, 7, torch.Generator(), hidden)) == 65 + 7


def test_confidence() -> None:
    z = torch.tensor([[0.0, 0.0], [float(torch.tensor(3.0).log()), 0.0]], dtype=F64)
    ln2 = float(torch.tensor(2.0, dtype=F64).log())
    assert confidence(z)[0].tolist() == pytest.approx([0.5, 0.0, ln2])
    assert confidence(z)[1].tolist() == pytest.approx([0.75, 0.5, 0.5623351], abs=1e-6)


def test_spread_ignores_padding() -> None:
    z = torch.tensor([[[1.0, 3.0], [99.0, 99.0]], [[0.0, 4.0], [4.0, 0.0]]], dtype=F64)
    w = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=F64)
    assert spread(z, w).tolist() == [1.0, 2.0]
    assert bool((spread(torch.zeros_like(z), w) > 0).all())


# ---- training on the adaptation set ----------------------------------------------------------
def experts(n: int, seed: int, classes: int = 10) -> tuple[Tensor, Tensor, Tensor]:
    """Two models, each good on half of the classes: logits ``[1, n, C]`` and labels ``[1, n]``."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=draw)
    first = (y < classes // 2).double()

    def one(skill: Tensor) -> Tensor:
        noise = torch.randn(n, classes, generator=draw, dtype=F64)
        return noise + F.one_hot(y, classes) * (0.6 + 2.4 * skill)[:, None]

    return one(first)[None], one(1 - first)[None], y[None]


def accuracy(z: Tensor, y: Tensor) -> float:
    return float((z.argmax(-1) == y).double().mean())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_training_does_not_raise_the_loss(kind: str, seed: int) -> None:
    z_g, z_s, y = experts(50, seed)
    w, how = torch.ones(y.shape, dtype=F64), GateFit(kind)
    p = made(kind, 10)
    after = how(p, z_g, z_s, y, w)
    assert float(how.loss(after, z_g, z_s, y, w)) <= float(how.loss(p, z_g, z_s, y, w)) + 1e-12


@pytest.mark.parametrize("kind", ["conf_gate", "classwise"])
@pytest.mark.parametrize("seed", range(5))
def test_fused_beats_both_experts_and_the_average(kind: str, seed: int) -> None:
    z_g, z_s, y = experts(100, seed)
    p = GateFit(kind)(made(kind, 10), z_g, z_s, y, torch.ones(y.shape, dtype=F64))
    t_g, t_s, t_y = experts(4000, seed + 100)
    fused = accuracy(mix_logits(kind, p, t_g, t_s), t_y)
    assert fused >= max(accuracy(t_g, t_y), accuracy(t_s, t_y))
    assert fused > accuracy((t_g + t_s) / 2, t_y)


def test_clients_do_not_mix_and_one_without_samples_stays_at_the_average() -> None:
    z_g, z_s, y = (torch.cat([a, b, b]) for a, b in zip(experts(30, 1), experts(30, 2),
                                                         strict=True))
    w = torch.ones(y.shape, dtype=F64)
    w[2] = 0
    together = GateFit()(made("conf_gate", 10, 3), z_g, z_s, y, w)
    alone = GateFit()(made("conf_gate", 10), z_g[1:2], z_s[1:2], y[1:2], w[1:2])
    for name, value in alone.items():
        assert torch.allclose(together[name][1], value[0], atol=1e-12)
    assert bool((share("conf_gate", together, z_g, z_s)[2] == 0.5).all())


def test_no_gradient_reaches_the_models() -> None:
    z_g, z_s, y = experts(20, 0)
    z_g.requires_grad_()
    p = GateFit(steps=3)(made("conf_gate", 10), z_g, z_s, y, torch.ones(y.shape, dtype=F64))
    assert z_g.grad is None and not any(v.requires_grad for v in p.values())


# ---- the split -------------------------------------------------------------------------------
def test_split_of_sixteen_shots() -> None:
    labels = torch.arange(5).repeat(16)
    fit, ada = stratify(labels, 0.2, 1)
    assert sorted([*fit.tolist(), *ada.tolist()]) == list(range(80))
    assert labels[ada].bincount().tolist() == [3] * 5
    assert labels[fit].bincount().tolist() == [13] * 5


@pytest.mark.parametrize("ratio", [0.01, 0.2, 0.5, 0.99])
def test_classes_with_two_are_on_both_sides(ratio: float) -> None:
    labels = torch.tensor([4, 4, 7, 9, 9, 9])
    fit, ada = stratify(labels, ratio, 1)
    assert not set(fit.tolist()) & set(ada.tolist())
    assert set(labels[fit].tolist()) == {4, 7, 9} and set(labels[ada].tolist()) == {4, 9}


def test_split_is_a_function_of_labels_and_seed() -> None:
    labels = torch.arange(3).repeat(10)
    state = torch.get_rng_state()
    one, same, other = (stratify(labels, 0.3, seed)[1] for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)
    assert stratify(labels, 0.0, 1)[1].numel() == 0


# ---- another modality ------------------------------------------------------------------------
def test_split_and_fusion_on_a_tiny_bert() -> None:
    """Token ids instead of images: LoRA on one BERT, a smaller one of the client's own, a gate."""
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        large = peft.get_peft_model(
            bert(transformers, 16),
            peft.LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=["classifier"]),
        )
        small = bert(transformers, 8)
        ids, y = sentences(160, 0)
        fit, ada = stratify(y, 0.2, 1)
        assert not set(fit.tolist()) & set(ada.tolist()) and len(ada) == 32
        for model in (large, small):
            optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2)
            for _ in range(40):
                optimiser.zero_grad()
                F.cross_entropy(model(ids[fit]).logits, y[fit]).backward()
                optimiser.step()
            model.eval()
        weights = {n: p.detach().clone() for m in (large, small) for n, p in m.named_parameters()}

        def both(x: Tensor) -> list[Tensor]:
            with torch.no_grad():
                return [m(x).logits.double()[None] for m in (large, small)]

        z_g, z_s = both(ids[ada])
        ones, how = torch.ones(1, len(ada), dtype=F64), GateFit()
        scale = [float(spread(z, ones)) for z in (z_g, z_s)]
        z_g, z_s, start = z_g / scale[0], z_s / scale[1], made("conf_gate", 4)
        p = how(start, z_g, z_s, y[ada][None], ones)
        before, after = (float(how.loss(q, z_g, z_s, y[ada][None], ones)) for q in (start, p))
        assert after < before
        test_ids, test_y = sentences(200, 1)
        t_g, t_s = (z / s for z, s in zip(both(test_ids), scale, strict=True))
    fused = accuracy(mix_logits("conf_gate", p, t_g, t_s), test_y[None])
    assert fused >= min(accuracy(t_g, test_y[None]), accuracy(t_s, test_y[None])) and fused > 0.5
    now = {n: v for m in (large, small) for n, v in m.named_parameters()}
    assert all(torch.equal(now[n], v) for n, v in weights.items())


def bert(transformers: Any, width: int) -> Any:
    return transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=32, hidden_size=width, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=2 * width, max_position_embeddings=8, num_labels=4,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    ))


def sentences(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Six tokens, half of them of the class's own eight."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 4
    own = 8 * y[:, None] + torch.randint(8, (n, 6), generator=draw)
    noise = torch.randint(32, (n, 6), generator=draw)
    return torch.where(torch.rand(n, 6, generator=draw) < 0.5, own, noise), y
