"""TwoPrompts: a context that all clients train together beside one that never leaves its client.

Equations: T = (1 - OWN) T(v) + OWN T(u_k); logits = scale z . T; server v = sum_k p_k v_k.
Shared: text.ctx (v)
Personal: text.own (u_k)
Command: fedvlm run --demo --rounds 2 --trainer docs/cookbook/two_prompts.py:TwoPrompts
"""

import torch

from fedvlm.method import Option, Trainer


class TwoPrompts(Trainer):
    """Names decide: ``groups`` sends the one and keeps the other, no hook is needed for it."""

    name = "TwoPrompts"
    groups = ((r"text\.ctx", "shared"), (r"text\.own", "personal"))
    options = {
        "N_CTX": Option(4, "context tokens of each prompt", low=1),
        "OWN": Option(0.5, "share of the client's own prompt", low=0.0, high=1.0),
    }

    def prompt_sets(self, batch_size):
        """Return the passes through the text tower in a step; it sizes the chunk of clients."""
        return 2

    def trainables(self, model, generator):
        """Return both contexts, without client axis: what every client starts from."""
        shape = (self.cfg.N_CTX, model.text_width)
        return {n: torch.randn(shape, generator=generator) * 0.02 for n in ("text.ctx", "text.own")}

    def text_features(self, model, params):
        """Return the mixed text features ``[K, C, d]``; both contexts go through at once."""
        both = torch.stack([params["text.ctx"], params["text.own"]], 1)  # [K, 2, n, width]
        shared, own = model.text(both).unbind(1)
        return shared.lerp(own, self.cfg.OWN)
