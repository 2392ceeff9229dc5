"""A shared context beside an own one: what final training does for who never trained."""

from __future__ import annotations

import torch

from fedvlm.check.world import Setup
from fedvlm.core.trees import stack
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.groups import Finetune
from fedvlm.federation.local.sent import WHOLE
from fedvlm.federation.trainer import Trainer
from fedvlm.models.adapt.contexts import GLOBAL, LOCAL, TRAINED
from tests.trainers.small_world import world


def test_final_training_of_a_newcomer_starts_at_the_shared_context_and_counts() -> None:
    opts = {"N_CTX": 3, "LOCAL_LENGTHS": (2,)}
    fed = world().federation(load_trainer("FedPHA"), Setup(opts=opts))
    start = {n: v.double() for n, v in fed.p0.items()}
    start[LOCAL] = start[LOCAL][:2]
    w, how = stack([start] * 2), Finetune(epochs=1, lr=0.5)
    received = {GLOBAL: w[GLOBAL] + 0.1}
    ctx = fed.context([0, 1], 1, {1}, WHOLE)  # client 1 has worked, 0 has not
    tuned = fed.trainer.finetune(ctx, {"w": w}, received, how)
    assert tuned[TRAINED].tolist() == [1.0, 1.0]
    both = w[LOCAL].clone()
    both[0] = received[GLOBAL][0, :2]
    plain = Trainer.finetune(fed.trainer, ctx, {"w": w | {LOCAL: both}}, received, how)
    assert all(torch.equal(tuned[n], plain[n]) for n in (GLOBAL, LOCAL))
    assert not torch.equal(tuned[LOCAL][0], both[0])  # it has learnt
