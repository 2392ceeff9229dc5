"""FedMGP: groups as clients of their own, what is drawn, and where it comes back."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedvlm.check.world import Setup
from fedvlm.core.errors import ConfigError
from fedvlm.federation.discovery import load_trainer
from fedvlm.models.adapt.contexts import TRAINED
from tests.trainers.small_world import batch, method, model, tree, world

OPTS = {"GROUPS": 3, "SENT": 2}


def test_groups_are_models_of_their_own() -> None:
    trainer, fixed = (method("FedMGP", **OPTS, VARIANT=v) for v in ("published", "fixed"))
    vpt = method("VPT", DEPTH=1, TOKENS=2)
    p, b = tree(trainer), batch(names=("pixels",))
    logits, losses, views = [], [], []
    for g in range(3):
        rows = {"image.prompt.0": p["image.prompt.groups"][:, g]}
        text = model().text(p["text.prompt.groups"][:, g], words="a photo of a")
        z = vpt.image_features(model(), rows, b.x)
        logits.append(model().logits(z, text))
        views.append((F.normalize(z, dim=-1), text))
        losses.append(torch.stack([
            F.cross_entropy(logits[-1][k, : int(b.w[k].sum())], b.y[k, : int(b.w[k].sum())])
            for k in range(2)
        ]))
    got = trainer.predict(model(), p | {TRAINED: torch.ones(2).double()}, b.x)
    assert torch.allclose(got, torch.stack(logits).mean(0), atol=1e-9)
    _, parts = trainer.loss(model(), p, b)
    assert torch.allclose(parts["cls_loss"], torch.stack(losses).mean(0), atol=1e-9)
    _, ours = fixed.loss(model(), p, b)
    pairs = ((0, 1), (0, 2), (1, 2))
    k, n = 1, int(b.w[1].sum())
    cosine = [sum((views[i][side][k][:m] * views[j][side][k][:m]).sum(-1).mean() for i, j in pairs)
              for side, m in ((0, n), (1, 4))]
    assert torch.allclose(ours["div_loss"][k], (cosine[0] + cosine[1]) / 6, atol=1e-9)


def test_the_drawn_groups_travel_and_the_mean_takes_their_place() -> None:
    run = world().record(load_trainer("FedMGP"), Setup(rounds=2, opts=OPTS | {"TEMP": 1e-6}))
    for before, after, event in zip(run.states[:-1], run.states[1:], run.events, strict=True):
        for client, message in event.updates.messages().items():
            state = after.clients[client]
            ranks = {}
            for side in ("text", "image"):
                groups = state["w"][f"{side}.prompt.groups"]
                rank = ranks[side] = state["rank"][f"rank.{side}"].long()
                assert torch.equal(message[f"{side}.prompt.sent"], groups[rank])
                assert len(set(rank.tolist())) == 2
                if event.round == 2:  # at no temperature: the nearest to the last round's
                    home = before.server["w"][f"{side}.prompt.sent"].flatten(1)
                    near = F.cosine_similarity(groups.flatten(1)[:, None], home[None], dim=-1)
                    assert set(rank.tolist()) == set(near.amax(1).topk(2).indices.tolist())
            if event.round == 1:
                assert torch.equal(ranks["text"], ranks["image"])
    models = {c: {n: v[k] for n, v in p.items()} for ids, p in
              run.fed.personal(run.fed.adopt(run.states[2]), range(4)) for k, c in enumerate(ids)}
    for client, p in models.items():
        rank = run.states[2].clients[client]["rank"]["rank.text"].long()
        sent = run.states[2].server["w"]["text.prompt.sent"]
        assert torch.equal(p["text.prompt.groups"][rank], sent)


def test_words_cut_and_weights_by_samples_are_what_older_runs_had() -> None:
    old = {name: option.neutral for name, option in load_trainer("FedMGP").options.items()
           if option.neutral is not None}
    assert old == {"WORDS": "cut", "DRAW": "near", "WEIGHTING": "samples"}
    trainer = method("FedMGP", **OPTS, **old)
    p = tree(trainer)
    got = trainer.text_groups(model(), p, "{}.prompt.groups")
    assert torch.equal(got, model().text(p["text.prompt.groups"]))
    assert trainer.weighting == "samples"


def test_far_draws_the_groups_far_from_the_last_rounds() -> None:
    run = world().record(
        load_trainer("FedMGP"), Setup(rounds=2, opts=OPTS | {"TEMP": 1e-9, "DRAW": "far"}))
    home = run.states[1].server["w"]["text.prompt.sent"].flatten(1)
    for state in run.states[2].clients.values():
        groups = state["w"]["text.prompt.groups"].flatten(1)
        near = F.cosine_similarity(groups[:, None], home[None], dim=-1).amax(1)
        assert set(state["rank"]["rank.text"].long().tolist()) == set(
            (-near).topk(2).indices.tolist())


def test_a_client_keeps_something() -> None:
    trainer = method("FedMGP", GROUPS=2, SENT=2)
    with pytest.raises(ConfigError, match="SENT 2 is not below GROUPS 2"):
        trainer.trainables(model(), torch.Generator())


def test_a_client_that_never_drew_predicts_by_what_was_sent() -> None:
    trainer = method("FedMGP", **OPTS)
    p, b = tree(trainer), batch(names=("pixels",))
    rank = torch.tensor([[-1.0, -1.0], [2.0, 0.0]]).double()
    state = {"w": p, "rank": {f"rank.{s}": rank for s in ("text", "image")}}
    received = {n: v + 1 for n, v in p.items() if n.endswith(".sent")}
    got = trainer.personalize(world().federation(type(trainer)).context([0, 1]), state, received)
    for side in ("text", "image"):
        old, new = p[f"{side}.prompt.groups"], received[f"{side}.prompt.sent"]
        want = [torch.stack([new[0, 0], new[0, 1], old[0, 2]]),
                torch.stack([new[1, 1], old[1, 1], new[1, 0]])]
        assert torch.equal(got[f"{side}.prompt.groups"], torch.stack(want))
    assert got[TRAINED].tolist() == [0.0, 1.0]
    logits, shared = trainer.predict(model(), got, b.x), trainer.predict(model(), received, b.x)
    every = trainer.predict(model(), got | {TRAINED: torch.ones(2).double()}, b.x)
    assert torch.allclose(logits[0], shared[0], atol=1e-9)
    assert torch.equal(logits[1], every[1])
