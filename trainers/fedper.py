"""FedPer: a shared body and a personal head, trained together.

Paper: Arivazhagan et al., Federated Learning with Personalization Layers, 2019 (arXiv 1912.00818).
Equations: min_{g, l_1..l_N} sum_k p_k F_k(g, l_k); clients take E epochs of SGD on (g, l_k) jointly
    from the received g and their own l_k; server g = sum_k p_k g_k, p_k = n_k / sum n.
Shared: the body of PEFT, image.*
Personal: the head, text.* or head.*
Frozen: both towers, the logit scale.
Defaults: body = the feature adapter, head = a context of 16 tokens (PEFT.HEAD linear: rows of
    weights); no final fine-tuning, as in the paper. One that is asked for trains the head only.
Knobs: none.
Departures from the paper: the base and personalisation layers of a network become adapter and
    prompt of a frozen CLIP; the prompt starts as drawn (common to all), linear rows start as the
    template's text features.
Departures from the authors' code: none was published. Plato uploads and averages the heads too, so
    that a first-time client starts from others' heads; here no head leaves its client, and a
    first-time client starts from the common initial head.
Extra data: none.
Cost: ViT-B/16 with defaults: 32,768 numbers sent each way, 40,960 trained; one packed text pass per
    step, images from the feature cache.
Claim: personal is higher than FedAvg's in setting disjoint.
Command: python federated_main.py --demo --trainer FedPer
"""

from __future__ import annotations

from fedvlm.method import PERSONAL, TRAINER_REGISTRY, Finetune, PeftTrainer, peft


@TRAINER_REGISTRY.register("FedPer")
class FedPer(PeftTrainer):
    """Joint local training of both roles; the head stays (see the card)."""

    name = "FedPer"
    label_sets = True
    image_fits = (0,)
    classic = True
    roles = {peft.BODY: "shared", peft.HEAD: "personal"}
    needs = (peft.BODY, peft.HEAD)

    def own_finetune(self) -> Finetune:
        """None by default; the head where one is asked for."""
        return Finetune(train=(PERSONAL,))
