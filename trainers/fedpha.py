"""FedPHA: a shared context of fixed length beside personal ones of any length.

Paper: Fang et al., FedPHA: Federated Prompt Learning for Heterogeneous Client Adaptation, ICML
    2025.
Equations: v_g = A S B' (singular values falling), B2 the right singular vectors behind the first (1
    - RATIO) share; proj(v) = v B2 B2'; L = CE(z . T(v_k)) + CE(z . T(v_g)) + mean |T(v_k) -
    T(proj(v_k))|^2 + mean_c relu(ALPHA - |T_c(v_k) - T_c(v_g)|); prediction by T(v_k); server v_g =
    sum_k p_k v_g,k.
Shared: text.ctx.global
Personal: text.ctx.local
Frozen: both towers, the logit scale.
Defaults: N_CTX 16 for both, RATIO 0.8, ALPHA 1, SGD lr 0.001. LOCAL_LENGTHS (4, 8, 16) gives client
    i the (i mod 3)-th length, the paper's heterogeneous setting.
Knobs: RATIO 0.5 to 1; ALPHA 0.1 to 10 log.
Departures from the paper: known from its abstract and public code, not from its text. A client that
    never trained, and the global model, predict by v_g.
    VARIANT published: the gradient also runs through the decomposition, as released; fixed: B2 is
    a constant of the step, since the decomposition has no gradient where singular values meet, and
    a share that rounding moved below a whole number is that number (10 (1 - 0.8) is 1.99..).
Departures from the authors' code: the decomposition is in the run's precision (float32 there). In
    the heterogeneous setting a text ends behind its own context; there at the place where the
    longest one ends.
Extra data: none.
Cost: ViT-B/16: 16,384 trained, 8,192 sent each way; three packed text passes per step.
Claim: personal is higher than PromptFL's in setting disjoint.
Command: python federated_main.py --demo --trainer FedPHA
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.method import (
    TRAINER_REGISTRY,
    Batch,
    Context,
    Option,
    PairTrainer,
    State,
    Tree,
    VLModel,
    contexts,
    cross_entropy,
)


@TRAINER_REGISTRY.register("FedPHA")
class FedPHA(PairTrainer):
    """See the module's card."""

    name = "FedPHA"
    metrics = (r"(.+/)?loss", r"(own|global|pull|push)_loss")
    options = {
        **PairTrainer.options,
        "LOCAL_LENGTHS": Option((), "numbers of tokens of the clients' own contexts, in turn; "
                                    "(): N_CTX"),
        "RATIO": Option(0.8, "share of v_g's singular vectors that own contexts keep", low=0.0,
                        high=1.0, low_open=True),
        "ALPHA": Option(1.0, "margin between own and shared text features", low=0.0),
        "VARIANT": Option("published", "gradient through the singular vectors (published) or not "
                                       "(fixed)",
                          choices=("published", "fixed"), neutral="fixed"),
    }

    def __init__(self, cfg: Any) -> None:
        """Refuse a length that is no number from 1 to N_CTX, before any image is encoded."""
        super().__init__(cfg)
        for length in self.cfg.LOCAL_LENGTHS:
            self.require(
                str(length).isdecimal() and 1 <= int(length) <= self.cfg.N_CTX,
                f"TRAINER.FEDPHA.LOCAL_LENGTHS holds {length!r}; lengths are whole numbers from 1 "
                f"to N_CTX {self.cfg.N_CTX}",
            )

    def prompt_sets(self, batch_size: int) -> int:
        """Return 3."""
        return 3

    def init_client(self, ctx: Context, start: Tree) -> State:
        """Return the start with a context of the client's own length."""
        lengths = self.cfg.LOCAL_LENGTHS
        if not lengths:
            return super().init_client(ctx, start)
        length = lengths[ctx.clients[0] % len(lengths)]
        return {"w": start | {contexts.LOCAL: start[contexts.LOCAL][: int(length)]}}

    def loss(self, model: VLModel, p: Tree, b: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss ``[K]`` and its parts."""
        keep = projector(p[contexts.GLOBAL], self.cfg.RATIO, self.cfg.VARIANT == "fixed")
        local = p[contexts.LOCAL]
        own, cut = model.text(torch.stack([local, local @ keep], 1)).unbind(1)
        general, z = model.text(p[contexts.GLOBAL]), self.image_features(model, p, b.x)
        parts = {
            "own_loss": cross_entropy(model.logits(z, own), b),
            "global_loss": cross_entropy(model.logits(z, general), b),
            "pull_loss": (own - cut).square().mean((-2, -1)),
            "push_loss": F.relu(self.cfg.ALPHA - distance(own, general)).mean(-1),
        }
        return torch.stack(list(parts.values())).sum(0), parts


def projector(context: Tensor, ratio: float, fixed: bool) -> Tensor:
    """Return B2 B2', ``[K, w, w]``, of contexts ``[K, n, w]``.

    What is not finite is taken as 0: the loss names it, a decomposition would only fail.

    Args:
        context: v_g of each client.
        ratio: RATIO.
        fixed: without a gradient, and with the share rounded.
    """
    context = context.detach() if fixed else context
    right = torch.linalg.svd(context.nan_to_num(0, 0, 0), full_matrices=False).Vh
    first = int(right.shape[1] * (1 - ratio) + (1e-9 if fixed else 0.0))
    kept = right[:, first:]
    return kept.mT @ kept


def distance(a: Tensor, b: Tensor) -> Tensor:
    """Return |a - b| along the last axis; its gradient is zero where they are equal."""
    square = (a - b).square().sum(-1)
    apart = square > 0
    return torch.where(apart, torch.where(apart, square, 1.0).sqrt(), 0.0)
