"""Tip-Adapter: the cache of a client against its definition; the global model is zero-shot."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fedvlm.check.world import Setup
from fedvlm.federation.discovery import load_trainer
from tests.trainers.small_world import batch, model, world


def test_cache_is_the_clients_training_images() -> None:
    fed = world().federation(load_trainer("Tip-Adapter"), Setup(rounds=1, chunk=4))
    x = batch(1).x
    z, text = F.normalize(x["features"][0], dim=-1), model().anchor("template", 0)
    state = fed.start()
    zero = fed.trainer.predict(fed.model, {}, x)[0]
    assert torch.allclose(zero, model().logits(z, text), atol=1e-9)
    for ids, p in fed.personal(state, range(4)):
        for k, client in enumerate(ids):
            own = torch.as_tensor(world().splits[client].train)
            keys = F.normalize(world().features[own], dim=-1)
            near = torch.exp(-5.5 * (1 - z @ keys.T)) @ F.one_hot(world().labels[own], 4).double()
            one = {n: v[k : k + 1] for n, v in p.items()}
            got = fed.trainer.predict(fed.model, one, x)[0]
            assert torch.allclose(got, model().scale * z @ text.T + near, atol=1e-9)
