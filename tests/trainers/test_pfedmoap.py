"""pFedMoAP: the gate against torch's attention; whose contexts are sent to whom."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fedvlm.check.world import Setup
from fedvlm.core.rng import stream
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.groups import Finetune
from fedvlm.federation.server import Held
from tests.trainers.small_world import batch, method, model, tree, world


def test_gate_is_torchs_attention_over_contexts() -> None:
    trainer = method("pFedMoAP", N_CTX=2, D_GATE=6, HEADS=3, LAMBDA=0.4, VARIANT="published",
                     SCALING=2**-0.5)  # of a head of two channels: torch's factor
    p, b = tree(trainer, 1), batch(1)
    others = torch.randn(3, *p["text.ctx"].shape[1:], generator=torch.Generator().manual_seed(5))
    p |= {f"expert.{i}.ctx": v[None].double() for i, v in enumerate(others)}
    got = trainer.predict(model(), p, b.x)[0]
    z = F.normalize(b.x["features"][0], dim=-1)
    own = model().text(p["text.ctx"])[0]
    texts = torch.cat([own[None], model().text(others.double())])[..., ::2]  # [E, C, 6]
    mha = torch.nn.MultiheadAttention(6, 3, dtype=torch.float64)
    mha.load_state_dict({
        "in_proj_weight": torch.cat([p[f"gate.{s}.weight"][0] for s in "qkv"]),
        "in_proj_bias": torch.cat([p[f"gate.{s}.bias"][0] for s in "qkv"]),
        "out_proj.weight": p["gate.o.weight"][0], "out_proj.bias": p["gate.o.bias"][0],
    })
    for c in range(texts.shape[1]):
        key = texts[:, c].unsqueeze(1).expand(-1, len(z), -1)  # experts by images
        out = mha(z[None, :, ::2], key, key)[0][0]
        want = model().scale * ((z[:, ::2] * out).sum(-1) + 0.4 * z @ own[c])
        assert torch.allclose(got[:, c], want, atol=1e-9)


def test_nobody_gets_its_own_context_and_the_nearest_come_first() -> None:
    cls = load_trainer("pFedMoAP")
    setup = Setup(rounds=1, opts={"N_CTX": 2, "SELECT": "nearest", "EXPERTS": 2})
    fed = world().federation(cls, setup)
    state = fed.run()
    held = fed.clients.read(list(range(4)), state.versions)
    assert all(not s["gate"]["mixture.trained"] for s in held.values())  # no experts in round 1
    last = {c: fed.server_context(2, Held(fed.held, state.held)).held.get(c)["own"]["text.ctx"]
            for c in range(4)}
    for client, down in fed.downloads(state, 2, range(4)).items():
        experts = [v for n, v in down.items() if n.startswith("expert.")]
        far = sorted((float((v - last[client]).norm()), c) for c, v in last.items() if c != client)
        assert all(torch.equal(v, last[c]) for v, (_, c) in zip(experts, far[:2], strict=True))


def test_the_mean_weighs_clients_by_their_samples() -> None:
    cls = load_trainer("pFedMoAP")
    run = world().record(cls, Setup(rounds=2, opts={"N_CTX": 2}))
    for event, after in zip(run.events, run.states[1:], strict=True):
        assert event.updates is not None
        sizes, want = [len(s.train) for s in world().splits], torch.zeros(())
        for size, context in zip(sizes, event.updates.params["text.ctx"], strict=True):
            want = want + size / sum(sizes) * context
        assert torch.allclose(after.server["w"]["text.ctx"], want, atol=1e-12)


def test_a_gate_counts_once_it_has_trained_with_experts() -> None:
    trainer = method("pFedMoAP", N_CTX=2, EXPERTS=1)
    fed = world().federation(type(trainer), Setup(opts={
        "N_CTX": 2, "EXPERTS": 1, "DRAW": "round"}))
    p, b = tree(trainer), batch()
    on = torch.tensor([1.0, 0.0]).double()
    state = {"w": p, "gate": {"mixture.trained": on}}
    down = {"text.ctx": p["text.ctx"], "expert.0.ctx": p["text.ctx"].flip(0)}
    ctx = fed.context([0, 1], 1)
    models = fed.trainer.personalize(ctx, state, down)
    got = trainer.predict(model(), models, b.x)
    assert torch.equal(got[0], trainer.predict(model(), p | down, b.x)[0])
    own = model().logits(b.x["features"], model().text(p["text.ctx"]))
    assert torch.allclose(got[1], own[1], atol=1e-9)
    for came, flags in ((down, [1, 1]), ({"text.ctx": down["text.ctx"]}, [1, 0])):
        new, _ = fed.trainer.client_update(ctx, state, came)
        tuned = fed.trainer.finetune(ctx, state, came, Finetune(epochs=1, lr=0.5))
        assert new["gate"]["mixture.trained"].tolist() == flags
        assert tuned["mixture.trained"].tolist() == flags
        assert torch.equal(tuned["gate.v.weight"][1], p["gate.v.weight"][1]) == (not flags[1])


def test_one_order_of_experts_for_the_run_and_none_in_the_first_round_of_a_client() -> None:
    cls = load_trainer("pFedMoAP")
    fed = world().federation(cls, Setup(rounds=2, opts={"N_CTX": 2, "EXPERTS": 2}))
    state = fed.run()
    order = torch.randperm(4, generator=stream(1, "expert-order")).tolist()
    last = {c: fed.server_context(2, Held(fed.held, state.held)).held.get(c)["own"]["text.ctx"]
            for c in range(4)}
    for round_ in (3, 4):
        for client, down in fed.downloads(state, round_, range(4)).items():
            want = [last[c] for c in order if c != client][:2]
            got = [v for n, v in down.items() if n.startswith("expert.")]
            assert all(torch.equal(*pair) for pair in zip(got, want, strict=True))
    p = tree(method("pFedMoAP", N_CTX=2, EXPERTS=1))
    start = {"w": p, "gate": {"mixture.trained": torch.zeros(2).double()}}
    down = {"text.ctx": p["text.ctx"], "expert.0.ctx": p["text.ctx"].flip(0)}
    ctx = fed.context([0, 1], 1)
    assert ctx.fresh.all()
    new, _ = fed.trainer.client_update(ctx, start, down)
    assert not new["gate"]["mixture.trained"].any()
    assert torch.equal(new["w"]["gate.v.weight"], p["gate.v.weight"])
    alone, _ = fed.trainer.client_update(ctx, start, {"text.ctx": p["text.ctx"]})
    assert torch.allclose(new["w"]["text.ctx"], alone["w"]["text.ctx"], atol=1e-12)
