"""PromptFolio: the text features of a shared and of a personal context, mixed in fixed shares.

Paper: Pan et al., Federated Learning from Vision-Language Foundation Models: Theoretical Analysis
    and Method, NeurIPS 2024.
Equations: T = (1 - FRAC) T(v_g) + FRAC T(v_k), each T of length 1; logits = scale z . T; CE; server
    v_g = sum_k p_k v_g,k.
Shared: text.ctx.global
Personal: text.ctx.local
Frozen: both towers, the logit scale.
Defaults: N_CTX 16, FRAC 0.4, SGD lr 0.001 (the authors' command line has 8 tokens; other toolkits
    run FRAC at 0.2).
Knobs: FRAC 0.1 to 0.9.
Departures from the paper: none known; a client that never trained, and the global model, use v_g
    alone.
Departures from the authors' code: a fresh optimiser per client and round.
Extra data: none.
Cost: ViT-B/16: 16,384 trained, 8,192 sent each way; two packed text passes per step.
Claim: personal is higher than PromptFL's in setting disjoint.
Command: python federated_main.py --demo --trainer PromptFolio
"""

from __future__ import annotations

from torch import Tensor

from fedvlm.method import TRAINER_REGISTRY, Option, PairTrainer


@TRAINER_REGISTRY.register("PromptFolio")
class PromptFolio(PairTrainer):
    """See the module's card."""

    name = "PromptFolio"
    options = {
        **PairTrainer.options,
        "FRAC": Option(0.4, "share of the client's own context", low=0.0, high=1.0),
    }

    def blend(self, shared: Tensor, own: Tensor) -> Tensor:
        """Return the mixed text features, which are not normalised again."""
        return shared.lerp(own, self.cfg.FRAC)
