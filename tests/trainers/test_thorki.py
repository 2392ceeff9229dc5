"""Thorki: what travels, who trains on what, the gate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedvlm.core.trees import State, Tree
from fedvlm.federation.batches import Batch, IndexSplit, Step, stratify
from fedvlm.federation.rounds import Federation
from fedvlm.federation.server import Held
from tests.trainers.small_clip import Recorded, federation, shares

LORA = {"PEFT.VISUAL": "lora", "PEFT.TEXT": "none", "PEFT.RANK": 2}
FEATURE = {"PEFT.VISUAL": "feature", "PEFT.TEXT": "none", "PEFT.WIDTH": 4}


def thorki(options: dict[str, Any] | None = None, **more: Any) -> Federation:
    keys = more.pop("keys", LORA)
    return federation("Thorki", {"SMALL_HIDDEN": 6} | (options or {}), keys, **more)


def watched(fed: Federation) -> list[Any]:
    events: list[Any] = []
    fed.subscribers.append(lambda e: events.append(e) if getattr(e, "updates", ()) else None)
    return events


def parted(fed: Federation, client: int, share: float = 0.2) -> IndexSplit:
    """A client's training samples as Thorki parts them: ``train`` is fit, ``val`` adapts."""
    whole = fed.batcher.splits[client]
    train = torch.as_tensor(whole.train)
    fit, held = stratify(fed.batcher.source.labels[train], share, fed.plan.seed)
    return IndexSplit(train[fit].numpy(), train[held].numpy(), whole.test)


def same(one: Tree, two: Tree) -> bool:
    return all(torch.equal(v, two[n]) for n, v in one.items())


def personal(fed: Federation, state: Any) -> dict[int, Tree]:
    found = {}
    for ids, p in fed.personal(fed.adopt(state.whole), sorted(state.clients)):
        found |= {c: {n: v[k : k + 1] for n, v in p.items()} for k, c in enumerate(ids)}
    return found


# ---- what travels ----------------------------------------------------------------------------
def test_only_the_large_model_travels() -> None:
    fed = thorki(rounds=2, frac=0.4, first_round_all=False)
    events = watched(fed)
    state = fed.start()
    small = [n for n in fed.p0 if n.startswith("small.")]
    assert set(fed.groups.personal) == set(small) and len(small) == 4
    assert all(".lora." in n for n in fed.groups.shared)
    for round_ in (1, 2):
        before, state = state, fed.round(state, round_)
        sent = events[-1].updates
        assert set(sent.params) == set(fed.groups.shared) and not sent.extras
        assert len(sent) == 1
        for client in sent.clients:
            moved = state.clients[client]["w"]
            assert all(not torch.equal(moved[n], before.clients[client]["w"][n]) for n in small)
        for c in set(state.clients) - set(sent.clients):
            assert same(before.clients[c]["w"], state.clients[c]["w"])
        assert not [n for n in state.server["w"] if n.startswith(("small", "gate"))]
    assert all(set(s) == {"w"} and set(s["w"]) == set(small) for s in state.clients.values())


@pytest.mark.parametrize("options", [{"SMALL_LR": 0.0}, {"FUSION": "average"},
                                     {"SMALL_HIDDEN": 3, "DISTILL_BETA": 2.0}])
def test_the_large_model_does_not_depend_on_the_others(options: dict[str, Any]) -> None:
    plain, other = thorki().run(), thorki(options).run()
    lora = [n for n in plain.server["w"] if ".lora." in n]
    if "SMALL_HIDDEN" in options:  # it draws other initial numbers, after the large model's
        assert set(lora) == set(plain.server["w"])
    assert same(plain.server["w"], other.server["w"])


def test_weights_are_the_fit_samples() -> None:
    """16 of a class: 13 train; phi 1 (n 13) and phi 3 (n 39) average to 2.5."""
    parts = [IndexSplit(np.arange(0, 16), np.arange(0), np.arange(64, 66)),
             IndexSplit(np.arange(16, 64), np.arange(0), np.arange(66, 68))]
    labels = torch.cat([torch.zeros(16), torch.arange(3).repeat(16), torch.zeros(4)]).long()
    fed = thorki(splits=parts, labels=labels, rounds=1, keys=FEATURE, batch=64)
    events = watched(fed)
    fed.run()
    updates = events[0].updates
    assert updates.weight.tolist() == [13.0, 39.0]
    phi = {n: torch.stack([torch.full_like(v, x) for x in (1.0, 3.0)]) for n, v in fed.p0.items()
           if n in fed.groups.shared}
    sent = replace(updates, params=phi)
    got = fed.trainer.aggregate(fed.server_context(1, Held()), fed.start().server, sent)["w"]
    assert all(torch.allclose(v, torch.tensor(2.5).double()) for v in got.values())


# ---- who trains on what ------------------------------------------------------------------------
def test_training_never_sees_the_adaptation_part() -> None:
    fed = thorki(rounds=2, keys=FEATURE)
    source = fed.batcher.source
    assert isinstance(source, Recorded)
    parts = [parted(fed, c) for c in range(3)]
    fed.run()
    fit = {int(i) for p in parts for i in p.train}
    ada = {int(i) for p in parts for i in p.val}
    assert source.seen == fit and len(ada) >= 5 and not fit & ada
    for split_, part in zip(shares(), parts, strict=True):
        assert sorted([*part.train, *part.val]) == split_.train.tolist()
    source.seen.clear()
    personal(fed, fed.start())
    assert ada <= source.seen <= ada | fit  # a client without any takes its scale from training


def test_the_other_order_of_sizes_is_undone() -> None:
    """Eight of one class fit two, seven of four classes fit four: the order of sizes turns."""
    parts = [IndexSplit(np.arange(0, 8), np.arange(0), np.arange(15, 16)),
             IndexSplit(np.arange(8, 15), np.arange(0), np.arange(15, 16))]
    labels = torch.tensor([0] * 8 + [0, 1, 2, 3, 1, 2, 3] + [0])
    fed = thorki(splits=parts, labels=labels, keys=FEATURE)
    ctx = fed.context([0, 1], 1)
    assert ctx.sizes.tolist() == [8, 7]
    odd = ctx.subset("fit", 0.8)
    assert odd.sizes.tolist() == [2, 4] and list(odd.clients) == [0, 1]
    seen: list[Any] = []
    ids = torch.tensor([0.0, 1.0])

    def body(slots: State, batches: tuple[Batch, ...], step: Step) -> State:
        (b,) = batches
        seen.append((b.cut(ids).tolist(), slots["a"]["x"].tolist(), b.y.shape[0]))
        return {"a": {"x": slots["a"]["x"] * 10}}

    out = odd.loop({"a": {"x": torch.tensor([1.0, 2.0])}}, body)
    assert seen == [([1.0, 0.0], [2.0, 1.0], 2)]  # batch 4: one step each, the larger part first
    assert out["a"]["x"].tolist() == [10.0, 20.0]


def test_stacked_is_sequential() -> None:
    labels = torch.arange(49) % 4
    labels[:12] = 0  # a client of one class, another of four
    feds = [thorki({"ADAPT_RATIO": 0.7}, chunk=c, labels=labels) for c in (1, 8)]
    ends = [f.run() for f in feds]
    for c in ends[0].clients:
        for n, v in ends[0].clients[c]["w"].items():
            assert torch.allclose(v, ends[1].clients[c]["w"][n], atol=1e-10)
    one, many = (personal(f, e) for f, e in zip(feds, ends, strict=True))
    for c, tree in one.items():
        assert all(torch.allclose(v, many[c][n], atol=1e-8) for n, v in tree.items())


# ---- evaluation --------------------------------------------------------------------------------
@pytest.mark.parametrize("keys", [LORA, FEATURE], ids=["lora", "feature"])
def test_the_gate_is_trained_at_evaluation_and_changes_nothing_else(keys: dict[str, Any]) -> None:
    fed = thorki(rounds=1, keys=keys)
    state = fed.run()
    first, again = personal(fed, state), personal(fed, state)
    for c, p in first.items():
        assert same(p, again[c])
        own = state.clients[c]["w"] | state.server["w"]
        assert own.keys() == fed.p0.keys()
        assert all(torch.equal(p[n][0], v) for n, v in own.items())
        assert float(p["gate.on"]) == 1 and bool((p["gate.spread"] > 0).all())
        assert float(p["gate.a"].abs().max()) > 0
        assert sum(v.numel() for n, v in p.items()
                   if n.startswith("gate.") and n not in ("gate.on", "gate.spread")) == 65 + 4


def test_adaptation_loss_falls_and_the_scale_is_that_of_the_adaptation_part() -> None:
    trained, start = thorki(rounds=1), thorki({"FUSION_STEPS": 0}, rounds=1)
    state = trained.run()
    for c in range(3):
        part = parted(trained, c)
        x = {"pixels": trained.batcher.source.images[part.val][None]}
        y = trained.batcher.source.labels[part.val]
        loss = []
        for fed in (start, trained):
            p = personal(fed, state)[c]
            z = fed.trainer.predict(fed.model, p, x)[0]
            loss.append(float(torch.nn.functional.cross_entropy(z, y)))
        assert loss[1] < loss[0]
        z_g = trained.trainer.large(trained.model, p)(x)
        z_s = trained.trainer.small(trained.model, p, x)
        std = [float(z.std(correction=0)) for z in (z_g, z_s)]
        assert p["gate.spread"].flatten().tolist() == pytest.approx(std)


def test_untrained_gate_is_the_average_of_scaled_logits() -> None:
    fed = thorki({"FUSION_STEPS": 0}, rounds=1)
    p = personal(fed, fed.run())[0]
    x = {"pixels": fed.batcher.source.images[:3][None]}
    z_g, z_s = fed.trainer.large(fed.model, p)(x), fed.trainer.small(fed.model, p, x)
    scale = p["gate.spread"].flatten()
    want = (z_g / scale[0] + z_s / scale[1]) / 2
    assert torch.allclose(fed.trainer.predict(fed.model, p, x), want, atol=1e-12)


@pytest.mark.parametrize("kind", ["conf_gate", "concat_mlp"])
def test_a_client_without_adaptation_samples_is_averaged(kind: str) -> None:
    parts = [IndexSplit(np.arange(0, 8), np.arange(0), np.arange(11, 12)),
             IndexSplit(np.arange(8, 11), np.arange(0), np.arange(11, 12))]
    labels = torch.arange(12) % 4
    fed = thorki({"FUSION": kind}, splits=parts, labels=labels, rounds=1)
    events = watched(fed)
    state = fed.run()
    assert events[0].updates.weight.tolist()[1] == 3
    p = personal(fed, state)
    assert [float(p[c]["gate.on"]) for c in (0, 1)] == [1.0, 0.0]
    x = {"pixels": fed.batcher.source.images[:3][None]}
    z = [fed.trainer.large(fed.model, p[1])(x), fed.trainer.small(fed.model, p[1], x)]
    scale = p[1]["gate.spread"].flatten()
    want = (z[0] / scale[0] + z[1] / scale[1]) / 2
    assert torch.allclose(fed.trainer.predict(fed.model, p[1], x), want, atol=1e-12)


@pytest.mark.parametrize("kind", ["gate_mlp", "gate_scalar", "concat_mlp", "classwise", "average"])
def test_every_fusion_predicts(kind: str) -> None:
    fed = thorki({"FUSION": kind, "LOGIT_NORM": "none"}, rounds=1, keys=FEATURE)
    p = personal(fed, fed.run())[0]
    z = fed.trainer.predict(fed.model, p, {"pixels": fed.batcher.source.images[:3][None]})
    assert z.shape == (1, 3, 4) and bool(torch.isfinite(z).all())
    assert p["gate.spread"].tolist() == [[1.0, 1.0]]


def test_the_global_model_is_the_large_one() -> None:
    fed = thorki(rounds=1)
    state = fed.run()
    x = {"pixels": fed.batcher.source.images[:3][None]}
    p = fed.shared(state)
    assert torch.equal(fed.trainer.predict(fed.model, p, x), fed.trainer.large(fed.model, p)(x))
    assert not fed.trainer.open_vocabulary


def test_final_fine_tuning_trains_both_on_the_fit_part() -> None:
    keys = FEATURE | {"FED.FINETUNE_EPOCHS": 2}
    fed, plain = thorki(rounds=1, keys=keys), thorki(rounds=1, keys=FEATURE)
    state = fed.run()
    fed.batcher.source.seen.clear()
    tuned, before = personal(fed, state), personal(plain, state)
    for n in ("small.fc1.weight", "image.adapter.up"):
        assert not torch.equal(tuned[0][n], before[0][n])
    fit = {int(i) for c in range(3) for i in parted(fed, c).train}
    ada = {int(i) for c in range(3) for i in parted(fed, c).val}
    assert fed.batcher.source.seen == fit | ada


def test_distillation_adds_a_kl_that_leaves_the_large_model_alone() -> None:
    free, drawn = thorki(keys=FEATURE).trainer, thorki({"DISTILL_BETA": 2.0}, keys=FEATURE)
    p = {n: v[None].detach().requires_grad_() for n, v in drawn.p0.items()}
    b = next(iter(drawn.batcher.steps([0], 1, 1, 1, "small"))).batches[0]
    loss = drawn.trainer.small_loss(drawn.model, p, b)
    z: list[Tensor] = [drawn.trainer.large(drawn.model, p)(b.x),
                       drawn.trainer.small(drawn.model, p, b.x)]
    log_g, log_s = (v.detach().log_softmax(-1) for v in z)
    kl = (log_g.exp() * (log_g - log_s)).sum(-1).mean()
    plain = free.small_loss(drawn.model, p, b)
    assert float(loss.detach()) == pytest.approx(float(plain.detach()) + 2 * float(kl), abs=1e-12)
    grads = torch.autograd.grad(loss.sum(), list(p.values()), allow_unused=True)
    reached = {n for n, g in zip(p, grads, strict=True) if g is not None}
    assert reached == {n for n in p if n.startswith("small.")}


# ---- the small tower ---------------------------------------------------------------------------
TOWER = {"SMALL": "tower"}


def test_the_small_tower_sees_pixels_and_stays_at_home() -> None:
    fed = thorki(TOWER, rounds=1)
    assert fed.trainer.streams(fed.model) == ("tokens.0", "pixels")
    assert thorki(rounds=1).trainer.streams(fed.model) == ("tokens.0", "features")
    events = watched(fed)
    state = fed.run()
    small = {n for n in fed.p0 if n.startswith("small.")}
    assert {n.split(".")[1] for n in small} == {"conv1", "conv2", "conv3", "fc"}
    assert set(fed.groups.personal) == small and not small & set(events[0].updates.params)
    for n in small:
        assert not torch.equal(state.clients[0]["w"][n], fed.p0[n])
    p, x = personal(fed, state)[0], {"pixels": fed.batcher.source.images[:3][None]}
    z = fed.trainer.predict(fed.model, p, x)
    assert bool(torch.isfinite(z).all())
    other = p | {n: torch.zeros_like(p[n]) for n in small}
    assert float((z - fed.trainer.predict(fed.model, other, x)).abs().max()) > 1e-3


def test_the_large_model_does_not_depend_on_the_kind_of_the_small_one() -> None:
    ends = [thorki(o, rounds=2).run().server["w"] for o in ({}, TOWER)]
    assert all(torch.allclose(v, ends[1][n], 0, 1e-10) for n, v in ends[0].items())


def test_the_small_tower_stacked_is_sequential() -> None:
    ends = [thorki(TOWER, chunk=c, rounds=1).run() for c in (1, 8)]
    for c in ends[0].clients:
        for n, v in ends[0].clients[c]["w"].items():
            assert torch.allclose(v, ends[1].clients[c]["w"][n], atol=1e-10)


def test_seeds() -> None:
    ends = [thorki(rounds=1, seed=s).run().server["w"] for s in (1, 1, 2)]
    assert same(ends[0], ends[1]) and not same(ends[0], ends[2])
    labels = torch.arange(4).repeat(5)
    one, two = stratify(labels, 0.2, 1)[1], stratify(labels.clone(), 0.2, 1)[1]
    assert one.tolist() == two.tolist()
