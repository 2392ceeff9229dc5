"""ClippedSamples: no single image moves a client's context by more than a given length.

Equations: g = 1/B sum_i g_i min(1, CLIP / |g_i|), g_i the gradient of image i, |.| over all trained
    tensors (Abadi et al. 2016, algorithm 1, without noise); server v = sum_k p_k v_k.
Shared: text.ctx (v)
Personal: none
Command: fedvlm run --demo --rounds 2 --trainer docs/cookbook/per_sample.py:ClippedSamples
"""

import torch

from fedvlm.method import Option, Trainer, optimise


class ClippedSamples(Trainer):
    """A loop of its own: ``ctx.grad_each`` has the gradients, ``optimise`` takes the step."""

    name = "ClippedSamples"
    groups = ((r"text\.ctx", "shared"),)
    trains_by = "loop"  # keys that only ctx.fit reads are refused
    options = {
        "N_CTX": Option(4, "context tokens", low=1),
        "CLIP": Option(0.1, "longest gradient of an image", low=0.0, low_open=True),
    }
    exempt = {"G5": "centralised SGD does not clip the gradients of single images"}

    def trainables(self, model, generator):
        """Return the context."""
        shape = (self.cfg.N_CTX, model.text_width)
        return {"text.ctx": torch.randn(shape, generator=generator) * 0.02}

    def client_update(self, ctx, state, received):
        """Train K clients at once; who has no step left drops out of the slots by itself."""

        def body(slots, batches, step):
            (batch,) = batches
            _, each = ctx.grad_each(slots["w"], self.loss, batch)  # [K, B, ...], 0 for padding
            length = sum(g.flatten(2).square().sum(2) for g in each.values()).sqrt()  # [K, B]
            share = (self.cfg.CLIP / length.clamp(min=self.cfg.CLIP)) * batch.w
            share = share / batch.w.sum(1, keepdim=True)
            grads = {n: torch.einsum("kb,kb...->k...", share, g) for n, g in each.items()}
            return slots | optimise(ctx, slots, "w", grads, step)

        w = ctx.loop({"w": state["w"] | received}, body)["w"]
        return state | {"w": w}, ctx.upload(w)
