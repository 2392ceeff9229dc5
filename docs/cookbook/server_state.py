"""ServerMomentum: the server moves on in the direction of the rounds before.

Equations: m = BETA m + (sum_k p_k w_k - w); w = w + m (FedAvgM, Hsu et al. 2019, with server rate
    1).
Shared: text.ctx (w)
Personal: none
Command: fedvlm run --demo --rounds 2 --trainer docs/cookbook/server_state.py:ServerMomentum
"""

import torch

from fedvlm.method import Option, Trainer


class ServerMomentum(Trainer):
    """A slot of the server's state beside ``w``; what lay on ``self`` would be refused."""

    name = "ServerMomentum"
    groups = ((r"text\.ctx", "shared"),)
    options = {
        "N_CTX": Option(4, "context tokens", low=1),
        "BETA": Option(0.9, "momentum of the server", low=0.0, high=1.0, high_open=True),
    }
    server_rules = {  # what `fedvlm check` compares `aggregate` with, in float64
        "momentum/.*": lambda s: s.trainer.cfg.BETA * s.old + s.mean() - s.server["w"][s.name],
        "w/.*": lambda s: s.old + s.after("momentum", s.name),
    }
    exempt = {
        "G5": "momentum from round to round: centralised SGD has none",
        "G6": "the server goes further than what clients sent",
    }

    def trainables(self, model, generator):
        """Return the context."""
        shape = (self.cfg.N_CTX, model.text_width)
        return {"text.ctx": torch.randn(shape, generator=generator) * 0.02}

    def init_server(self, ctx, start):
        """Return the start, and a momentum of zeros."""
        server = super().init_server(ctx, start)
        return server | {"momentum": {n: torch.zeros_like(v) for n, v in server["w"].items()}}

    def aggregate(self, ctx, server, updates):
        """Return the new state: both slots are saved after the round and resumed to the bit."""
        mean, w, m = self.combine(ctx, updates), server["w"], server["momentum"]
        m = {n: self.cfg.BETA * m[n] + mean[n] - w[n] for n in w}
        return server | {"w": {n: w[n] + m[n] for n in w}, "momentum": m}
