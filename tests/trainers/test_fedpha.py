"""FedPHA: the projector, own lengths, and who predicts by which context."""

from __future__ import annotations

import sys

import pytest
import torch

from fedvlm.check.world import Setup
from fedvlm.core.errors import ConfigError
from fedvlm.federation.discovery import load_trainer
from fedvlm.models.adapt.contexts import GLOBAL, LOCAL
from tests.trainers.small_world import method, world


def test_projector_keeps_the_directions_behind_the_first_share() -> None:
    projector = sys.modules[type(method("FedPHA")).__module__].projector
    context = torch.diag(torch.tensor([5.0, 4, 3, 2, 1], dtype=torch.float64))[None, :, :]
    assert torch.allclose(
        projector(context, 0.6, True)[0], torch.diag(torch.tensor([0.0, 0, 1, 1, 1]).double()),
        atol=1e-12,
    )
    assert int(projector(context, 1.0, True)[0].diagonal().sum().round()) == 5
    ten = torch.diag(torch.arange(10.0, 0, -1, dtype=torch.float64))[None].requires_grad_()
    kept = projector(ten, 0.8, True)[0]
    assert int(kept.diagonal().sum().round()) == 8  # no direction by rounding
    assert not kept.requires_grad
    released = projector(ten, 0.8, False)[0]
    assert int(released.diagonal().sum().round()) == 9  # the released code rounds 1.99.. down
    assert released.requires_grad


def test_every_client_has_a_context_of_its_own_length() -> None:
    cls = load_trainer("FedPHA")
    opts = {"N_CTX": 3, "LOCAL_LENGTHS": (1, 3)}
    fed = world().federation(cls, Setup(rounds=1, chunk=4, opts=opts))
    state = fed.run()
    lengths = {c: fed.clients.read([c], state.versions)[c]["w"][LOCAL].shape[0] for c in range(4)}
    assert lengths == {0: 1, 1: 3, 2: 1, 3: 3} and state.server["w"][GLOBAL].shape[0] == 3
    models = list(fed.personal(state, range(4)))
    assert sorted(c for ids, _ in models for c in ids) == [0, 1, 2, 3]
    assert all(p[LOCAL].shape[1] == lengths[ids[0]] for ids, p in models)
    for length in (9, "\u00b2"):  # a superscript two is a digit, and no number
        with pytest.raises(ConfigError, match=f"LOCAL_LENGTHS holds {length!r}; lengths are"):
            method("FedPHA", N_CTX=3, LOCAL_LENGTHS=(2, length))  # before an image is encoded
