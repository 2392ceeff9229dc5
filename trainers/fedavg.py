"""FedAvg: all trained tensors are averaged; with a final fine-tuning it is FedAvg-FT.

Paper: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
    AISTATS 2017.
Equations: min_w sum_k p_k F_k(w), p_k = n_k / sum n; clients take E epochs of SGD from the received
    w, the server sets w = sum_k p_k w_k.
Shared: all that PEFT builds (by default text.ctx, image.adapter.*)
Personal: none
Frozen: both towers, the logit scale.
Defaults: a context of 16 tokens and the feature adapter, this project's budget and optimiser;
    no final fine-tuning. FedAvg-FT: --finetune-epochs N (all tensors, constant OPTIM.LR).
Knobs: none.
Departures from the paper: what is trained is PEFT of a frozen CLIP; the learning rate's clock is
    the whole run.
Departures from the authors' code: none was published.
Extra data: none.
Cost: ViT-B/16 with defaults: 8,192 + 32,768 numbers trained and sent each way; one packed text pass
    per step, images from the feature cache.
Claim: personal is higher than LocalOnly's in setting dirichlet.
Command: python federated_main.py --demo --trainer FedAvg --finetune-epochs 5
"""

from __future__ import annotations

from fedvlm.method import TRAINER_REGISTRY, PeftTrainer


@TRAINER_REGISTRY.register("FedAvg")
class FedAvg(PeftTrainer):
    """The base class with every role shared (see the card)."""

    name = "FedAvg"
    label_sets = True
    image_fits = (0,)
    captions = True
    classic = True
