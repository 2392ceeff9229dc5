"""SAGE: pseudo-labels of the local and the received model for a client's images without a label.

Paper: Liu et al., Mind the Gap: Confidence Discrepancy Can Guide Federated Semi-Supervised Learning
    Across Pseudo-Mismatch, CVPR 2025.
Equations: of an image u without a label, with p the local model's probabilities and q those of the
    model received this round, neither with a gradient: c = max p, d = max q,
    l = exp(-(ln 2 / HALF) |c - d|), pseudo-label t = l onehot(argmax p) + (1 - l) onehot(argmax q)
    if c >= TAU, else onehot(argmax q); it counts if c >= TAU or d >= TAU. Client k: min_w
    mean over labelled of -log p_y + mean over unlabelled of counts * (-sum_c t_c log p_c);
    server w = sum_k p_k w_k.
Shared: all of PEFT
Personal: none
Frozen: both towers, the logit scale.
Defaults: TAU 0.95, HALF 0.05 as the authors' code; both means weigh 1.
Knobs: TAU 0.5 to 0.99; HALF 0.01 to 0.5 log.
Departures from the paper: PEFT tensors are trained, not the model; an image is seen in one view of
    the run's augmentation (INPUT.VIEWS), from which pseudo-label and prediction come (there a weak
    and a strong one); labelled and unlabelled images are shuffled together, and each mean is that
    of a batch's own; clients are weighted by all images that they train on.
Departures from the authors' code: the cross-entropy with t (there KL(t | p), equal up to a constant
    without a gradient); no warm start on labels at the server.
Extra data: clients' training images without a label, where they have any; without, its loss is
    FedAvg's.
Cost: as FedAvg, and one pass of the received model for each batch.
Claim: none.
Command: python federated_main.py --demo --trainer SAGE
"""

from __future__ import annotations

import math

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
)


@TRAINER_REGISTRY.register("SAGE")
class SAGE(PeftTrainer):
    """See the module's card."""

    name = "SAGE"
    unlabelled = True
    unweighted = "counts images without a label, whose class nobody knows"
    options = {
        "TAU": Option(0.95, "confidence from which a prediction is a pseudo-label", low=0.0,
                      high=1.0),
        "HALF": Option(0.05, "difference in confidence at which both models' pseudo-labels count "
                       "the same", low=1e-6),
    }

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Fit on labels and pseudo-labels."""
        def loss(model: VLModel, params: Tree, batch: Batch) -> Tensor:
            return self.loss(model, params, batch, batch.cut(received))

        w = ctx.fit(state["w"] | received, loss).params
        return state | {"w": w}, ctx.upload(w)

    def loss(
        self, model: VLModel, params: Tree, batch: Batch, received: Tree | None = None
    ) -> Tensor:
        """Return the loss ``[K]``; without ``received`` (fine-tuning) the local model is both."""
        logits = other = self.predict(model, params, batch.x)
        if received is not None:
            with torch.no_grad():
                other = self.predict(model, params | received, batch.x)
        return self.mixed(logits, other.detach(), batch)

    def mixed(self, logits: Tensor, other: Tensor, batch: Batch) -> Tensor:
        """Return the sum of both means of each client, ``[K]``; one without images is 0.

        Args:
            logits, other: of the local and the received model, ``[K, B, C]``.
        """
        bare = batch.y < 0
        logs = logits.log_softmax(-1)
        c, own = logits.detach().softmax(-1).max(-1)
        d, theirs = other.softmax(-1).max(-1)
        share = torch.exp(-(math.log(2) / self.cfg.HALF) * (c - d).abs())
        share = torch.where(c >= self.cfg.TAU, share, torch.zeros_like(share))
        t = share * logs.gather(-1, own[..., None])[..., 0] + (
            1 - share) * logs.gather(-1, theirs[..., None])[..., 0]
        counts = ((c >= self.cfg.TAU) | (d >= self.cfg.TAU)).to(logs.dtype)
        y = F.nll_loss(logs.flatten(0, 1), batch.y.clamp_min(0).flatten(), reduction="none")
        labelled, unlabelled = batch.w * ~bare, batch.w * bare
        return ((y.view_as(c) * labelled).sum(1) / labelled.sum(1).clamp_min(1)
                - (t * counts * unlabelled).sum(1) / unlabelled.sum(1).clamp_min(1))
