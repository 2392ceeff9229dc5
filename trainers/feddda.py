"""FedDDA: a shared and a personal half of the prompt, a shared and a personal adapter, and a gate.

Paper: Yang et al., FedDDA, ICML 2025 (public repository MoratalYang/FedDDA; the paper's text was
    not available).
Equations: text of class c: "v_g c with a style of v_k."; A(x) = relu(W2 relu(W1 x)); w = softmax(W
    x); x' = w_1 x + w_2 A_k(x) + w_3 A_g(x); logits = scale x'/|x'| . T; CE; server: sum_k p_k of
    v_g, A_g.
Shared: text.ctx.global, image.shared_adapter.*
Personal: text.ctx.local, image.personal_adapter.*, gate.weight
Frozen: both towers, the logit scale.
Defaults: N_CTX 4 for each half (16 there), REDUCTION 4, SGD lr 0.001.
Knobs: none.
Departures from the paper: not known (its text was not available).
Departures from the authors' code: none known beside a fresh optimiser per client and round (there
    one goes through all clients). The global model has the personal parts of the start.
Extra data: none.
Cost: ViT-B/16: 267,776 trained, 133,120 sent each way. The text tower at every step; the second
    half stands behind every class name, so that a class has 4 + N_CTX tokens more than PromptFL's.
Claim: personal is higher than PromptFL's in setting disjoint.
Command: python federated_main.py --demo --trainer FedDDA
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.method import TRAINER_REGISTRY, Option, Trainer, Tree, VLModel, contexts, layers

SHARED, OWN = "image.shared_adapter", "image.personal_adapter"
BETWEEN = "with a style of"


@TRAINER_REGISTRY.register("FedDDA")
class FedDDA(Trainer):
    """See the module's card."""

    name = "FedDDA"
    groups = (
        (r"text\.ctx\.global|image\.shared_adapter\.fc[12]\.weight", "shared"),
        (r"text\.ctx\.local|image\.personal_adapter\.fc[12]\.weight|gate\.weight", "personal"),
    )
    options = {
        "N_CTX": Option(4, "context tokens of each half", low=1),
        "REDUCTION": Option(4, "ratio of feature width to the adapters' hidden width", low=1),
    }

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return both halves, both adapters and the gate, without biases."""
        d = model.embed_dim
        hidden = max(1, d // int(self.cfg.REDUCTION))
        tree = {n: contexts.random_context((self.cfg.N_CTX, model.text_width), generator)
                for n in (contexts.GLOBAL, contexts.LOCAL)}
        for name in (SHARED, OWN):
            tree |= layers.layer(f"{name}.fc1", (hidden, d), generator, bias=False)
            tree |= layers.layer(f"{name}.fc2", (d, hidden), generator, bias=False)
        return tree | layers.layer("gate", (3, d), generator, bias=False)

    def prompt_sets(self, batch_size: int) -> int:
        """Return 2 for short halves: the rest of a prompt is as long as another one."""
        return 2 + int(self.cfg.N_CTX) // 6

    def text_features(self, model: VLModel, p: Tree) -> Tensor:
        """Return T, ``[K, C, d]``."""
        return model.text_around(p[contexts.GLOBAL], p[contexts.LOCAL], BETWEEN)

    def image_features(self, model: VLModel, p: Tree, x: Mapping[str, Tensor]) -> Tensor:
        """Return x', ``[K, B, d]``."""
        z = model.image(x)
        views = [z] + [F.relu(layers.linear(p, f"{n}.fc2", F.relu(layers.linear(p, f"{n}.fc1", z))))
                       for n in (OWN, SHARED)]
        share = layers.linear(p, "gate", z).softmax(-1)  # [K, B, 3]
        return (torch.stack(views, -1) * share.unsqueeze(-2)).sum(-1)
