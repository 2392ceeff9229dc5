"""Tip-Adapter-F: starts as Tip-Adapter, trains keys alone; places beyond a client's images rest."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedvlm.check.world import Setup
from fedvlm.core.errors import ConfigError
from fedvlm.federation.discovery import load_trainer
from tests.trainers.small_world import batch, model, world

CLS = load_trainer("Tip-Adapter-F")


def test_without_a_rate_it_is_tip_adapter() -> None:
    x, z = batch(1).x, F.normalize(batch(1).x["features"][0], dim=-1)
    plain, trained = (
        world().federation(load_trainer(name), Setup(rounds=1, chunk=4, lr=0.0))
        for name in ("Tip-Adapter", "Tip-Adapter-F")
    )
    zero = trained.trainer.predict(model(), trained.shared(trained.start()), x)[0]
    assert torch.allclose(zero, model().logits(z, model().anchor("template", 0)), atol=1e-9)
    caches = plain.personal(plain.run(), range(4))
    want = {c: (p, k) for ids, p in caches for k, c in enumerate(ids)}
    for ids, p in trained.personal(trained.run(), range(4)):
        for k, client in enumerate(ids):
            other, at = want[client]
            got = trained.trainer.predict(model(), {n: v[k : k + 1] for n, v in p.items()}, x)
            cache = plain.trainer.predict(model(), {n: v[at : at + 1] for n, v in other.items()}, x)
            assert torch.allclose(got, cache, atol=1e-9)


def test_keys_of_images_are_trained_and_free_places_are_not() -> None:
    fed = world().federation(CLS, Setup(rounds=2, chunk=4))
    for ids, p in fed.personal(fed.run(), range(4)):
        for k, client in enumerate(ids):
            own = torch.as_tensor(world().splits[client].train)
            n, start = len(own), F.normalize(world().features[own], dim=-1)
            labels = F.one_hot(world().labels[own], 4).double()
            assert torch.equal(p["tip.values"][k, :n], labels)
            assert float(p["tip.values"][k, n:].abs().sum() + p["tip.keys"][k, n:].abs().sum()) == 0
            assert float((p["tip.keys"][k, :n] - start).abs().max()) > 1e-6


def test_a_client_with_more_images_than_places_is_refused() -> None:
    fed = world().federation(CLS, Setup(rounds=1))
    fed.trainer.cfg.defrost()
    fed.trainer.cfg.CAPACITY = 1
    start = {"tip.keys": torch.zeros(1, 1, model().embed_dim).double()}
    ctx = fed.context([0], 1)
    with pytest.raises(ConfigError, match=r"CAPACITY 1: a client has \d+ training images"):
        fed.trainer.filled(ctx, start["tip.keys"], torch.zeros(1, 1, 4).double())
