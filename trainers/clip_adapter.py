"""CLIP-Adapter: every client trains a bottleneck on the image feature by itself; nothing is sent.

Paper: Gao et al., CLIP-Adapter: Better Vision-Language Models with Feature Adapters, International
    Journal of Computer Vision 2024 (arXiv 2021); here as a local reference.
Equations: A(x) = relu(W2 relu(W1 x)); x' = RATIO A(x) + (1 - RATIO) x; logits = scale x'/|x'| . T0;
    CE.
Shared: none
Personal: image.adapter.fc1.weight, image.adapter.fc2.weight
Frozen: both towers, the logit scale.
Defaults: RATIO 0.2, hidden width d / REDUCTION, REDUCTION 4, SGD lr 0.002.
Knobs: RATIO 0.1 to 1.
Departures from the paper: none known; the visual adapter alone, which is the paper's choice.
Departures from the authors' code: none known.
Extra data: none.
Cost: ViT-B/16: 131,072 trained, no byte travels; no text pass in a step. `global` is the untrained
    start.
Claim: personal is higher than logistic regression's in setting disjoint.
Command: python federated_main.py --demo --trainer CLIP-Adapter
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.method import TRAINER_REGISTRY, Option, TemplateTrainer, Tree, VLModel, layers

FIRST, SECOND = "image.adapter.fc1", "image.adapter.fc2"


@TRAINER_REGISTRY.register("CLIP-Adapter")
class CLIPAdapter(TemplateTrainer):
    """See the module's card."""

    name = "CLIP-Adapter"
    label_sets = True
    groups = ((r"image\.adapter\.fc[12]\.weight", "personal"),)
    options = {
        "RATIO": Option(0.2, "weight of the adapter's output", low=0.0, high=1.0),
        "REDUCTION": Option(4, "ratio of feature width to hidden width", low=1),
    }

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return both layers, without biases."""
        d = model.embed_dim
        hidden = max(1, d // int(self.cfg.REDUCTION))
        return {
            **layers.layer(FIRST, (hidden, d), generator, bias=False),
            **layers.layer(SECOND, (d, hidden), generator, bias=False),
        }

    def image_features(self, model: VLModel, p: Tree, x: Mapping[str, Tensor]) -> Tensor:
        """Return x', ``[K, B, d]``."""
        z = model.image(x)
        out = F.relu(layers.linear(p, SECOND, F.relu(layers.linear(p, FIRST, z))))
        return z.lerp(out, self.cfg.RATIO)
