"""SignLora: LoRA's factors move only as far as clients agree on the direction.

Equations: for each number of A and B, a = |sum_k p_k sign(w_k - w)|; w = w + a sum_k p_k (w_k - w).
Shared: LoRA's A and B in the image tower, or what else PEFT says
Personal: none
Command: fedvlm run --demo --rounds 2 --peft lora --trainer docs/cookbook/lora_rule.py:SignLora
"""

from fedvlm.method import PeftTrainer, adapters


class SignLora(PeftTrainer):
    """``PEFT`` says what is trained, ``roles`` what of it travels; ``combine`` is the rule."""

    name = "SignLora"
    roles = {"body": "shared", "head": "shared"}
    lora_refused = dict.fromkeys(("product_svd", "RANKS"), "has a rule of its own")
    # What `fedvlm check` compares `combine` with, in float64: s.old is w, s.mean() by samples.
    server_rules = {
        r"w/.*\.lora\..*": lambda s: s.old
        + s.mean((s.sent() - s.old).sign()).abs() * (s.mean() - s.old)
    }

    def __init__(self, cfg):
        """Refuse a run without LoRA with one message, before any work."""
        super().__init__(cfg)
        self.require(self.spec.has_lora, "SignLora is a rule for LoRA: add --peft lora")

    def combine(self, ctx, updates):
        """Return the mean of what clients sent ``[K, ...]``, shortened where they disagree.

        A class with a rule of its own leaves ``FED.AGGREGATOR`` and a server optimiser refused.
        """
        tree = super().combine(ctx, updates)
        share = updates.weight / updates.weight.sum()  # [K]
        for name in filter(adapters.is_factor, tree):
            old = updates.received[name]  # [K, ...], equal for all
            signs = (updates.params[name] - old).sign().flatten(1)
            agreement = (share.to(signs) @ signs).abs().view_as(old[0])
            tree[name] = old[0] + agreement * (tree[name] - old[0])
        return tree
