"""CoCoOp: a context that every image shifts by a small network, averaged over clients.

Paper: Zhou et al., Conditional Prompt Learning for Vision-Language Models, CVPR 2022; here with
    FedAvg, as the federated papers run it.
Equations: v(x) = v + W2 relu(W1 z + b1) + b2, z = x/|x|; logits_c = scale z . T_c(v(x)); CE;
    server: sum_k p_k of both.
Shared: text.ctx, text.net.fc1.*, text.net.fc2.*
Personal: none
Frozen: both towers, the logit scale.
Defaults: the context starts as "a photo of a", hidden width d / 16, SGD lr 0.002.
Knobs: none.
Departures from the paper: batches of the run's size (there of one image); FedAvg around it.
Departures from the authors' code: none known.
Extra data: none.
Cost: ViT-B/16: 35,360 numbers each way; a text pass per image and step, so that a batch of 32 costs
    32 times PromptFL's.
Claim: new is higher than PromptFL's in setting rivals.
Command: python federated_main.py --demo --trainer CoCoOp
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.method import TRAINER_REGISTRY, ContextTrainer, Predictor, Tree, VLModel, layers

REDUCTION = 16


@TRAINER_REGISTRY.register("CoCoOp")
class CoCoOp(ContextTrainer):
    """See the module's card."""

    name = "CoCoOp"
    title = "CoCoOp (FedAvg)"
    groups = ((r"text\.ctx|text\.net\.fc[12]\.(weight|bias)", "shared"),)

    def prompt_sets(self, batch_size: int) -> int:
        """Return one for each image."""
        return batch_size

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return the context and the network that shifts it."""
        d, hidden = model.embed_dim, max(1, model.embed_dim // REDUCTION)
        return {
            **super().trainables(model, generator),
            **layers.layer("text.net.fc1", (hidden, d), generator),
            **layers.layer("text.net.fc2", (model.text_width, hidden), generator),
        }

    def predictor(self, model: VLModel, p: Tree) -> Predictor:
        """Return ``x -> logits [K, B, C]``, with a text pass for every image."""

        def logits(x: Mapping[str, Tensor]) -> Tensor:
            z = F.normalize(model.image(x), dim=-1)
            hidden = F.relu(layers.linear(p, "text.net.fc1", z))
            shift = layers.linear(p, "text.net.fc2", hidden)  # [K, B, w]
            text = model.text(p["text.ctx"].unsqueeze(1) + shift.unsqueeze(2))  # [K, B, C, d]
            return model.scale * (text @ z.unsqueeze(-1)).squeeze(-1)

        return logits
