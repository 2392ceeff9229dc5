"""MOON: features are drawn to those of the received model, away from one's own last model's.

Paper: Li et al., Model-Contrastive Federated Learning, CVPR 2021.
Equations: CE + mu l, l = -log(e^{cos(z, z_g)/tau} / (e^{cos(z, z_g)/tau} + e^{cos(z, z_p)/tau})),
    z the image feature of the model at work, z_g of the received, z_p of the client's last one;
    server w = sum_k p_k w_k.
Shared: all of PEFT
Personal: none (the last local model stays with the client)
Frozen: both towers, the logit scale.
Defaults: mu 5, tau 0.5 (the paper's for CIFAR-10); a prompt and a feature adapter.
Knobs: MU 0.0 | 0.01 | 0.1 | 1.0 | 5.0 | 10.0; TAU 0.1 to 1 log.
Departures from the paper: no projection head: z is CLIP's adapted image feature.
Departures from the authors' code: none known in what is trained: one previous model per client, as
    in the paper's algorithm. In a client's first round it is the common start (there it has none):
    the loss is mu log 2 more, its gradient the same.
Extra data: none.
Cost: FedAvg's bytes; three image sides per step (with cached features: three adapters).
Claim: global is higher than FedAvg's in setting dirichlet.
Command: python federated_main.py --demo --trainer MOON
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.method import (
    TRAINER_REGISTRY,
    Batch,
    Context,
    Option,
    PeftTrainer,
    State,
    Tree,
    Upload,
    VLModel,
    peft,
)


@TRAINER_REGISTRY.register("MOON")
class MOON(PeftTrainer):
    """See the module's card. The last local model is what slot ``w`` holds between rounds."""

    name = "MOON"
    classic = True
    reads_old = True
    metrics = (r"(.+/)?loss", r"cls_loss", r"con_loss")
    needs = (peft.BODY,)
    options = {
        "MU": Option(5.0, "weight of the contrastive term", low=0.0),
        "TAU": Option(0.5, "its temperature", low=0.0, low_open=True),
    }

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Train against the received and the previous model."""
        both = partial(
            self.contrastive_loss, received=state["w"] | received, previous=state["w"]
        )
        w = ctx.fit(state["w"] | received, both).params
        return state | {"w": w}, ctx.upload(w)

    def contrastive_loss(
        self, model: VLModel, p: Tree, b: Batch, *, received: Tree, previous: Tree
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return cross-entropy plus the contrastive term, ``[K]``, and both parts.

        Args:
            received, previous: the received and the last local model of all clients.
        """
        cls, z = self.supervised(model, p, b)
        with torch.no_grad():
            near = self.representation(model, b.cut(received), b.x)
            far = self.representation(model, b.cut(previous), b.x)
        con = (contrast(z, near, far, self.cfg.TAU) * b.w).sum(1) / b.w.sum(1)
        return cls + self.cfg.MU * con, {"cls_loss": cls, "con_loss": con}


def contrast(z: Tensor, near: Tensor, far: Tensor, tau: float) -> Tensor:
    """Return -log(e^{cos(z, near)/tau} / (e^{cos(z, near)/tau} + e^{cos(z, far)/tau}))."""
    gap = F.cosine_similarity(z, far, dim=-1) - F.cosine_similarity(z, near, dim=-1)
    return F.softplus(gap / tau)
