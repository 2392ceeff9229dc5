"""FeatureGate: each client scales the channels of the image feature; the context is everybody's.

Equations: x' = 2 sigmoid(g_k) x, element by element; logits = scale x'/|x'| . T(v);
    server v = sum_k p_k v_k.
Shared: text.ctx (v)
Personal: gate.channels (g_k)
Command: fedvlm run --demo --rounds 2 --trainer docs/cookbook/feature_gate.py:FeatureGate
"""

import torch

from fedvlm.method import Option, Trainer


class FeatureGate(Trainer):
    """``image_features`` is the door: what it returns is compared with the texts."""

    name = "FeatureGate"
    groups = ((r"text\.ctx", "shared"), (r"gate\.channels", "personal"))
    options = {"N_CTX": Option(4, "context tokens", low=1)}

    def trainables(self, model, generator):
        """Return the context, and a gate of zeros, which lets the feature through as it is."""
        return {
            "text.ctx": torch.randn(self.cfg.N_CTX, model.text_width, generator=generator) * 0.02,
            "gate.channels": torch.zeros(model.embed_dim),
        }

    def image_features(self, model, params, x):
        """Return ``[K, B, d]``: row k of the batch meets row k of the gates."""
        gate = 2 * params["gate.channels"].sigmoid()  # [K, d]
        return model.image(x) * gate[:, None]
