"""ProGrad: a CoOp context whose gradient may not go against zero-shot CLIP's, averaged.

Paper: Zhu et al., Prompt-aligned Gradient for Prompt Tuning, ICCV 2023; here with FedAvg, as the
    federated papers run it.
Equations: g_d = grad CE(p, y); g_g = grad KL(p0 || p), p0 of the template's text features at
    temperature TEMP; g = g_d where cos(g_d, g_g) >= 0, else g_d - LAMBDA (g_d . g_g / |g_g|^2) g_g;
    server v = sum_k p_k v_k.
Shared: text.ctx
Personal: none
Frozen: both towers, the logit scale.
Defaults: LAMBDA 1, TEMP 1, N_CTX 16 from a random start, SGD lr 0.002.
Knobs: LAMBDA 0.1 to 1; TEMP 0.5 to 2 log.
Departures from the paper: FedAvg around it.
Departures from the authors' code: none known.
Extra data: none.
Cost: ViT-B/16: 8,192 numbers each way; two packed text passes per step, one for each gradient.
Claim: new is higher than PromptFL's in setting unseen.
Command: python federated_main.py --demo --trainer ProGrad
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedvlm.method import (
    TRAINER_REGISTRY,
    Batch,
    Context,
    ContextTrainer,
    Option,
    State,
    Tree,
    Upload,
    VLModel,
    per_client,
)


@TRAINER_REGISTRY.register("ProGrad")
class ProGrad(ContextTrainer):
    """See the module's card."""

    name = "ProGrad"
    reads_templates = True
    title = "ProGrad (FedAvg)"
    metrics = (r"(.+/)?loss", r"guide/loss")
    options = {
        "N_CTX": Option(16, "number of context tokens with random initialisation", low=1),
        "CTX_INIT": Option("", "words that initialise the context; '' is random"),
        "LAMBDA": Option(1.0, "share of the conflicting gradient component that is "
                              "removed", low=0.0),
        "TEMP": Option(1.0, "temperature of both sides of KL", low=0.0, low_open=True),
    }

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Train on aligned gradients."""

        def aligned(params: Tree, grads: Tree, batch: Batch) -> Tree:
            guide = ctx.grad(params, self.guide, batch, list(grads), log="guide/").grads
            return {n: align(g, guide[n], self.cfg.LAMBDA) for n, g in grads.items()}

        w = ctx.fit(state["w"] | received, self.loss, edit=aligned).params
        return state | {"w": w}, ctx.upload(w)

    def guide(self, model: VLModel, p: Tree, b: Batch) -> Tensor:
        """Return KL(p0 || p) of each client, ``[K]``, times TEMP squared."""
        t, z = self.cfg.TEMP, self.image_features(model, p, b.x)
        ours = (model.logits(z, model.text(p["text.ctx"])) / t).log_softmax(-1)
        zero = (model.logits(z, model.anchor("template", 0)) / t).log_softmax(-1)
        each = (zero.exp() * (zero - ours)).sum(-1) * t**2
        return (each * b.w).sum(1) / b.w.sum(1)


def align(own: Tensor, guide: Tensor, share: float) -> Tensor:
    """Return ``own [K, ...]`` without ``share`` of its part against ``guide``, client by client."""
    dot = (own * guide).flatten(1).sum(1)
    size = guide.square().flatten(1).sum(1).clamp_min(torch.finfo(guide.dtype).tiny)
    return own - per_client(share * dot.clamp(max=0) / size, guide) * guide
