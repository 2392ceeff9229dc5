"""FedTV against closed forms; its golden figures are in test_golden.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.check.world import BASE, EMBED, RESNET, CheckWorld, Setup
from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import Tree, cast, expand, numel, pick
from fedvlm.federation.aggregation.updates import Updates
from fedvlm.federation.batches import Batch
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.groups import resolve_groups
from fedvlm.federation.server import Held
from fedvlm.federation.trainer import Trainer
from fedvlm.models.adapt.contexts import low_rank_prompt, orthogonality, personal_prompt
from fedvlm.models.adapt.visual import OUTPUTS, apply_gate, fuse, fusion_weights, gate_adapter

FedTV = load_trainer("FedTV")
PUBLISHED = {"ADAPTER": "softmax", "ORTHO": "norm", "ANCHOR": "literal", "SAA_TEMP": 1.0,
             "KEY_BIAS": "yes", "SCORES": "plain"}
FIXED = {"ADAPTER": "residual", "ORTHO": "squared", "ANCHOR": "template", "SAA_TEMP": 0.1,
         "KEY_BIAS": "no", "SCORES": "scaled"}


@pytest.fixture(scope="module")
def world() -> CheckWorld:
    return CheckWorld()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def fedtv(world: CheckWorld, **own: Any) -> Any:
    return FedTV(world.config(FedTV, own))


def start(trainer: Trainer, model: Any, k: int = 1) -> Tree:
    """Initial tensors [K, ...] in float64, moved off the degenerate start."""
    tree = cast(trainer.trainables(model, generator(1)), torch.float64, "cpu")
    noise = {n: 0.1 * normal(k, *v.shape, seed=i) for i, (n, v) in enumerate(tree.items())}
    return {n: v + noise[n] for n, v in expand(tree, k).items()}


def batch_of(world: CheckWorld, rows: Sequence[int], k: int = 1) -> Batch:
    index = torch.tensor(rows).reshape(k, -1)
    return Batch({"features": world.features[index]}, world.labels[index],
                 torch.ones(index.shape, dtype=torch.float64))


# ---- text side ---------------------------------------------------------------------------------
def test_prompt_is_sigma_plus_low_rank() -> None:
    tree = {n: v[None].double() for n, v in low_rank_prompt(2, 5, 7, 3, generator()).items()}
    prompt = personal_prompt(tree)
    assert prompt.shape == (1, 2, 5, 7)
    for n in range(2):
        u, s, v = (tree[f"text.{x}"][0, n] for x in "USV")
        wanted = tree["text.sigma"][0, n] + u @ torch.diag(s) @ v
        assert torch.allclose(prompt[0, n], wanted, atol=1e-14)
        assert torch.allclose(u.T @ u, torch.eye(3, dtype=torch.float64), atol=1e-6)
        assert torch.allclose(v @ v.T, torch.eye(3, dtype=torch.float64), atol=1e-6)
    spread = low_rank_prompt(1, 64, 64, 8, generator())
    assert float(spread["text.sigma"].std()) == pytest.approx(0.02, rel=0.05)


def test_contexts_by_class_equal_the_shared_one_where_they_are_equal(world: CheckWorld) -> None:
    """CSC: sigma [N, C, n, w]; a class's own sigma moves that class's text alone."""
    plain, own, model = fedtv(world), fedtv(world, CSC=True), world.model()
    tree = start(plain, model)
    classes = len(model.classnames)
    wide = tree | {"text.sigma": tree["text.sigma"].unsqueeze(2).expand(
        -1, -1, classes, -1, -1).clone()}
    drawn = own.trainables(model, generator(1))["text.sigma"]
    assert drawn.shape == wide["text.sigma"].shape[1:]
    assert not torch.equal(drawn[:, 0], drawn[:, 1])
    one, same = (t.text_features(model, x) for t, x in ((plain, tree), (own, wide)))
    assert torch.allclose(one, same, atol=1e-9)
    batch = batch_of(world, [0, 1, 2, 3])
    assert torch.allclose(plain.loss(model, tree, batch)[0],
                          own.loss(model, wide, batch)[0], atol=1e-9)
    wide["text.sigma"][:, :, 0] *= -2  # a constant would not pass the LayerNorm
    moved = own.text_features(model, wide)
    assert not torch.allclose(moved[:, 0], same[:, 0])
    assert torch.allclose(moved[:, 1:], same[:, 1:], atol=1e-9)
    assert plain.open_vocabulary
    assert not own.open_vocabulary


def test_orthogonality_closed_form() -> None:
    """U'U = 4 I for client 0, I for client 1; V orthonormal: sqrt(sum 9) = 3 sqrt(r)."""
    r = 3
    q = torch.linalg.qr(normal(6, r)).Q
    p = {"text.U": torch.stack([2 * q, q])[:, None], "text.V": torch.stack([q.T, q.T])[:, None]}
    assert orthogonality(p, squared=False).tolist() == pytest.approx([3 * math.sqrt(r), 0.0])
    assert orthogonality(p, squared=True).tolist() == pytest.approx([9.0 * r, 0.0])
    both = {n: torch.cat([v, v], 1) for n, v in p.items()}  # two prompt sets: the sum
    assert float(orthogonality(both, squared=True)[0]) == pytest.approx(18.0 * r)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_orthogonality_is_flat_at_its_minimum(dtype: torch.dtype) -> None:
    tree = low_rank_prompt(1, 16, 512, 8, generator())
    u, v = (torch.linalg.qr(x.to(dtype))[0] for x in (tree["text.U"][0], tree["text.V"][0].T))
    p = {"text.U": u[None, None].requires_grad_(), "text.V": v.T[None, None].requires_grad_()}
    value = orthogonality(p, squared=False).sum()
    assert float(value.detach()) == 0.0
    for grad in torch.autograd.grad(value, list(p.values())):
        assert float(grad.abs().max()) == 0.0
    off = {n: (x.detach() * 1.001).requires_grad_() for n, x in p.items()}
    slope = torch.autograd.grad(orthogonality(off, squared=False).sum(), off["text.U"])[0]
    assert float(slope.norm()) == pytest.approx(2.0, rel=2e-2)  # un-squared: constant near by


def test_several_prompt_sets_are_averaged(world: CheckWorld) -> None:
    trainer, model = fedtv(world, NUM_PROMPT=3), world.model()
    p = start(trainer, model, 2)
    b = batch_of(world, range(8), 2)
    logits = trainer.predict(model, p, b.x)
    assert logits.shape == (2, 4, len(BASE))
    each = torch.stack([model.text(personal_prompt(p)[:, n]) for n in range(3)])
    assert torch.allclose(trainer.text_features(model, p), F.normalize(each.mean(0), dim=-1))
    value, parts = trainer.loss(model, p, b)
    assert value.shape == (2,)
    assert torch.allclose(value, parts["cls_loss"] + parts["cont_loss"] + parts["reg_loss"])


def test_contrastive_loss_is_a_two_way_cross_entropy(world: CheckWorld) -> None:
    """Positive: cos(anchor, T of sigma); negative: cos(anchor, T of P); temperature 0.5."""
    trainer, model = fedtv(world, TEMP=0.5), world.model()
    p = start(trainer, model)
    _, parts = trainer.loss(model, p, batch_of(world, range(4)))
    anchor = model.anchor("literal", 16)
    own = model.text(personal_prompt(p))[0, 0]
    general = model.text(p["text.sigma"])[0, 0]
    pair = torch.stack([(anchor * general).sum(-1), (anchor * own).sum(-1)], 1) / 0.5
    wanted = F.cross_entropy(pair, torch.zeros(len(BASE), dtype=torch.int64))
    assert float(parts["cont_loss"][0]) == pytest.approx(float(wanted), rel=1e-12)
    assert float(wanted) != pytest.approx(math.log(2), abs=1e-6)  # not the trivial value


def test_loss_weights_and_anchor(world: CheckWorld) -> None:
    model = world.model()
    p = start(fedtv(world), model)
    b = batch_of(world, range(4))

    def parts(**own: Any) -> dict[str, float]:
        return {n: float(v[0]) for n, v in fedtv(world, **own).loss(model, p, b)[1].items()}

    one, other = parts(), parts(ORTHO_WEIGHT=0.3, CON_WEIGHT=2.0)
    assert other["reg_loss"] == pytest.approx(3 * one["reg_loss"])
    assert other["cont_loss"] == pytest.approx(2 * one["cont_loss"])
    assert other["cls_loss"] == one["cls_loss"]
    template = parts(ANCHOR="template")["cont_loss"]
    assert abs(template - one["cont_loss"]) > 1e-6
    gap = model.anchor("literal", 16) - model.anchor("template", 16)
    assert float(gap.abs().max()) > 1e-3


# ---- image side --------------------------------------------------------------------------------
@pytest.mark.parametrize("output", OUTPUTS)
def test_adapter_outputs(output: str) -> None:
    p = {"a.fc1.weight": normal(1, 5, 5, seed=1), "a.fc2.weight": normal(1, 5, 5, seed=2)}
    x = normal(1, 3, 5, seed=3)
    h = (p["a.fc1.weight"][0] @ x[0].T).clamp_min(0)
    h = (p["a.fc2.weight"][0] @ h).T
    wanted = {
        "softmax": h.exp() / h.exp().sum(1, keepdim=True) * x[0],
        "sigmoid": x[0] / (1 + (-h).exp()),
        "residual": x[0] + h,
    }
    assert torch.allclose(apply_gate(p, "a", x, output)[0], wanted[output], atol=1e-12)


def test_residual_adapter_starts_as_the_frozen_feature() -> None:
    tree = gate_adapter("a", 8, "residual", generator())
    x = torch.randn(2, 3, 8, generator=generator(1))
    assert torch.equal(apply_gate(expand(tree, 2), "a", x, "residual"), x)
    assert float(tree["a.fc1.weight"].abs().min()) > 0  # or it could never be trained


def test_fusion_weights_sum_to_one_and_the_key_bias_cancels() -> None:
    p = {n: v[None].double() for n, v in fusion_weights("f", 6, 4, True, generator()).items()}
    views = [normal(1, 5, 6, seed=s) for s in (1, 2, 3)]
    fused, weights = fuse(p, "f", views[0], views)
    assert weights.shape == (1, 5, 3)
    assert torch.allclose(weights.sum(-1), torch.ones(1, 5, dtype=torch.float64), atol=1e-14)
    q = views[0][0] @ p["f.query.weight"][0].T + p["f.query.bias"]
    scores = torch.stack([((v[0] @ p["f.key.weight"][0].T) * q).sum(1) for v in views], 1)
    assert torch.allclose(weights[0], torch.softmax(scores, 1), atol=1e-12)
    mixed = sum(weights[0, :, j, None] * views[j][0] for j in range(3))
    assert torch.allclose(fused[0], mixed, atol=1e-12)
    moved = p | {"f.key.bias": p["f.key.bias"] + 5}
    assert torch.allclose(fuse(moved, "f", views[0], views)[1], weights, atol=1e-12)
    without = {n: v for n, v in p.items() if n != "f.key.bias"}
    assert torch.allclose(fuse(without, "f", views[0], views)[1], weights, atol=1e-12)
    turned = p | {"f.query.bias": p["f.query.bias"] + 5}
    assert float((fuse(turned, "f", views[0], views)[1] - weights).abs().max()) > 1e-2
    scaled = torch.softmax(scores / 2, 1)  # sqrt(hidden) = 2
    assert torch.allclose(fuse(p, "f", views[0], views, scaled=True)[1][0], scaled, atol=1e-12)


def test_fixed_variant_starts_from_the_frozen_feature(world: CheckWorld) -> None:
    trainer, model = fedtv(world, VARIANT="fixed"), world.model()
    p = expand(cast(trainer.trainables(model, generator()), torch.float64, "cpu"), 1)
    x = {"features": world.features[None, :6]}
    assert torch.allclose(trainer.image_features(model, p, x), x["features"], atol=1e-12)


# ---- sizes, options, server --------------------------------------------------------------------
def test_parameter_counts_of_vit_b16(world: CheckWorld) -> None:
    trainer = fedtv(world)
    tree = trainer.trainables(SimpleNamespace(text_width=512, embed_dim=512), generator())
    groups = resolve_groups(tree, trainer.groups, "FedTV")
    assert numel(tree) == 1_126_664
    assert numel(pick(tree, groups.shared)) == 532_480
    assert {n: tuple(v.shape) for n, v in tree.items() if n.startswith("text.")} == {
        "text.sigma": (1, 16, 512), "text.U": (1, 16, 8), "text.S": (1, 8), "text.V": (1, 8, 512),
    }
    assert set(groups.shared) == {
        "text.sigma", "image.shared_adapter.fc1.weight", "image.shared_adapter.fc2.weight",
    }


def test_feature_width_is_that_of_the_joint_embedding(world: CheckWorld) -> None:
    """RN50: text width 512, joint embedding 1024."""
    tree = fedtv(world).trainables(SimpleNamespace(text_width=512, embed_dim=1024), generator())
    assert tree["image.shared_adapter.fc1.weight"].shape == (1024, 1024)
    assert tree["image.fusion.query.weight"].shape == (64, 1024)
    assert tree["text.sigma"].shape == (1, 16, 512)


@pytest.mark.parametrize("variant", ["published", "fixed"])
def test_trains_on_a_resnet_whose_embedding_is_not_the_text_width(variant: str) -> None:
    resnet = CheckWorld(["TRAINER.FEDTV.VARIANT", variant], RESNET)
    assert resnet.backbone.text_width != EMBED == resnet.backbone.embed_dim
    run = resnet.record(FedTV, Setup(splits=resnet.splits[:2], rounds=1, decay=0.0))
    first, last = run.fed.p0, run.states[1].clients[0]["w"] | run.events[0].updates.messages()[0]
    still = {n for n in first if torch.equal(first[n], last[n])}
    assert still <= {"image.fusion.key.bias"}  # it cancels, see above


@pytest.mark.parametrize(
    ("own", "expected"),
    [({}, PUBLISHED), ({"VARIANT": "fixed"}, FIXED),
     *[({"VARIANT": "fixed", k: v}, FIXED | {k: v}) for k, v in PUBLISHED.items()],
     *[({k: v}, PUBLISHED | {k: v}) for k, v in FIXED.items()]],
)
def test_switches(world: CheckWorld, own: dict[str, Any], expected: dict[str, Any]) -> None:
    """VARIANT bundles what is left at auto; each switch given by hand wins over it."""
    trainer = fedtv(world, **own)
    assert trainer.mode == expected
    p = start(trainer, world.model())
    assert ("image.fusion.key.bias" in p) == (expected["KEY_BIAS"] == "yes")
    assert torch.isfinite(trainer.loss(world.model(), p, batch_of(world, range(4)))[0]).all()


def test_each_numeric_switch_of_the_variants_changes_the_loss(world: CheckWorld) -> None:
    model, b = world.model(), batch_of(world, range(4))
    p = start(fedtv(world), model)
    base = float(fedtv(world).loss(model, p, b)[0])
    for key in ("ADAPTER", "ORTHO", "ANCHOR", "SCORES"):
        other = float(fedtv(world, **{key: FIXED[key]}).loss(model, p, b)[0])
        assert abs(other - base) > 1e-9, key


@pytest.mark.parametrize(("rank", "n_ctx"), [(17, 16), (5, 4), (17, 20)])
def test_rank_too_large_is_a_sentence(world: CheckWorld, rank: int, n_ctx: int) -> None:
    """At most the smaller of N_CTX and the text width (16 here)."""
    trainer = fedtv(world, RANK=rank, N_CTX=n_ctx)
    limit = min(n_ctx, 16)
    with pytest.raises(ConfigError, match=rf"TRAINER\.FEDTV\.RANK {rank} is above {limit}"):
        trainer.trainables(world.model(), generator())
    fedtv(world, RANK=limit, N_CTX=n_ctx).trainables(world.model(), generator())


@pytest.mark.parametrize(("variant", "temperature"), [("published", 1.0), ("fixed", 0.1)])
def test_server_is_plain_in_round_1_then_similarity_aware(
    world: CheckWorld, variant: str, temperature: float
) -> None:
    fed = world.federation(FedTV, Setup(opts={"VARIANT": variant}))
    trainer = fed.trainer
    old = {"text.sigma": torch.tensor([1.0, 0.0], dtype=torch.float64)}
    sent = [[2.0, 0.0], [0.0, 2.0]]
    updates = Updates(
        (0, 1), {"text.sigma": torch.tensor(sent, dtype=torch.float64)},
        torch.tensor([1.0, 3.0]).double(),
    )
    one, two = (fed.server_context(round_, Held()) for round_ in (1, 2))
    assert trainer.aggregate(one, {"w": old}, updates)["w"]["text.sigma"].tolist() == [0.5, 1.5]
    assert one.report == {}
    found = trainer.aggregate(two, {"w": old}, updates)["w"]["text.sigma"]
    share = torch.tensor([1.0, 3.0]) * torch.softmax(torch.tensor([1.0, 0.0]) / temperature, 0)
    assert found.tolist() == pytest.approx((2 * share / share.sum()).tolist(), rel=1e-6)
    weights = two.report["aggregation_weights"]["text.sigma"]
    assert sum(weights) == pytest.approx(1.0, abs=1e-15)
