"""FedCLIP: an attention over the channels of the image feature, averaged.

Paper: Lu et al., FedCLIP: Fast Generalization and Personalization for CLIP in Federated Learning,
    IEEE Data Engineering Bulletin 2023.
Equations: a(x) = softmax(W2 tanh(W1 x + b1) + b2); x' = a(x) x; CLIP's symmetric cross-entropy over
    a batch's images x' and the texts "a picture of a c" of their classes; server: mean_k W_k,
    under VARIANT fixed sum_k p_k W_k.
Shared: image.adapter.fc1.*, image.adapter.fc2.*
Personal: none
Frozen: both towers, the logit scale.
Defaults: Adam, lr 5e-5, ADAM_BETA2 0.98, ADAM_EPS 1e-6, weight decay 0.2 (the authors'), which adds
    to the gradient as in torch.optim.Adam.
Knobs: none.
Departures from the paper: VARIANT published: the released words, and every client weighs the same;
    fixed: the data set's templates, and p_k.
Departures from the authors' code: none known in what a step computes; there a batch of one image is
    left out (here its loss is 0 and the weight decay acts). A fresh optimiser per client and round,
    as there. The model of the last round counts, not the best on validation.
Extra data: none.
Cost: ViT-B/16: 525,312 trained and sent each way (published: 5.3e5); no text pass in a step.
Claim: personal is higher than PromptFL's in setting dirichlet.
Command: python federated_main.py --demo --trainer FedCLIP
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedvlm.method import (
    TRAINER_REGISTRY,
    Batch,
    Option,
    TemplateTrainer,
    Tree,
    VLModel,
    contrast,
    layers,
)

FIRST, SECOND = "image.adapter.fc1", "image.adapter.fc2"


@TRAINER_REGISTRY.register("FedCLIP")
class FedCLIP(TemplateTrainer):
    """See the module's card."""

    name = "FedCLIP"
    published_weighting = "uniform"
    code_words = ("a picture of a {}",)
    unweighted = "contrasts the images of a batch with each other, and no class with the others"
    groups = ((r"image\.adapter\.fc[12]\.(weight|bias)", "shared"),)
    options = {
        "VARIANT": Option("published", "words of the class texts and weights of the clients: see "
                                       "the card",
                          choices=("published", "fixed"), neutral="fixed"),
    }

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return both square layers with biases."""
        d = model.embed_dim
        return {**layers.layer(FIRST, (d, d), generator), **layers.layer(SECOND, (d, d), generator)}

    def image_features(self, model: VLModel, p: Tree, x: Mapping[str, Tensor]) -> Tensor:
        """Return ``a(x) x``, ``[K, B, d]``."""
        z = model.image(x)
        return layers.linear(p, SECOND, torch.tanh(layers.linear(p, FIRST, z))).softmax(-1) * z

    def loss(self, model: VLModel, p: Tree, b: Batch) -> Tensor:
        """Return the in-batch loss ``[K]``: an image's text is that of its class."""
        texts = self.text_features(model, p)[0][b.y]  # [K, B, d]
        return contrast.symmetric_contrast(
            model.logits(self.image_features(model, p, b.x), texts), b.w
        )
