"""PromptFL: a CoOp context averaged over clients.

Paper: Guo et al., PromptFL: Let Federated Participants Cooperatively Learn Prompts Instead of
    Models, IEEE Transactions on Mobile Computing 2023.
Equations: min_v sum_k p_k CE(scale x/|x| . T(v), y), v the context; server v = sum_k p_k v_k.
Shared: text.ctx
Personal: none
Frozen: both towers, the logit scale.
Defaults: 16 context tokens, SGD lr 0.005, 10 rounds x 2 local epochs (this project's budget; the
    authors' scripts use 20 rounds x 5 epochs at 0.001).
Knobs: none.
Departures from the paper: none known.
Departures from the authors' code: the average is an average (there live tensors are appended, so
    that it equals the last client's weights); a fresh optimiser per client and round.
Extra data: none.
Cost: ViT-B/16: 8,192 numbers trained and sent each way; one packed text pass per step.
Claim: personal is higher than LocalOnly's in setting dirichlet.
Command: python federated_main.py --demo --trainer PromptFL
"""

from __future__ import annotations

from fedvlm.method import TRAINER_REGISTRY, PeftTrainer


@TRAINER_REGISTRY.register("PromptFL")
class PromptFL(PeftTrainer):
    """FedAvg over whatever ``PEFT`` builds; by default a context (see the card)."""

    name = "PromptFL"
    label_sets = True
    image_fits = (0,)
    must_train = "prompt"
