"""BestPatch: a query that all clients learn picks the patches that an image is judged by.

Equations: a_m = softmax_m(q . x_m / sqrt(d)) over the patch features x_m; x' = x + sum_m a_m x_m, x
    the feature of the class token; logits = scale x'/|x'| . T0; server q = sum_k p_k q_k.
Shared: image.query (q)
Personal: none
Command: fedvlm run --demo --rounds 2 --trainer docs/cookbook/patches.py:BestPatch
"""

import torch

from fedvlm.method import Trainer


class BestPatch(Trainer):
    """``streams`` says what is computed once per image and kept; the tower does not run again."""

    name = "BestPatch"

    def streams(self, model):
        """Return both: the feature of the class token and those of the patches."""
        return ("features", "patches")

    def prompt_sets(self, batch_size):
        """Return 0: no prompt goes through the text tower."""
        return 0

    def trainables(self, model, generator):
        """Return the query; without ``groups`` everything is shared."""
        return {"image.query": torch.randn(model.embed_dim, generator=generator) * 0.02}

    def text_features(self, model, params):
        """Return the template's text features for each client, ``[K, C, d]``."""
        return model.anchor("template", 0).expand(len(params["image.query"]), -1, -1)

    def image_features(self, model, params, x):
        """Return ``[K, B, d]``: the class token's feature and the patches that fit the query."""
        rows = model.patches(x)  # [K, B, M, d], projected as the class token is
        query = params["image.query"][:, None, :, None] * model.embed_dim**-0.5
        share = (rows @ query).softmax(2)  # [K, B, M, 1]
        return model.image(x) + (share * rows).sum(2)
