"""Neighbour: a client reads images with its own context and with the last one of its neighbour.

Equations: T = (T(v) + T(v_j)) / 2, v_j what client j = k + 1 (mod N) sent last, fixed in a round;
    server v = sum_k p_k v_k. Until j has sent something, v_j = v.
Shared: text.ctx (v), which the server also hands on to one other client
Personal: none
Command: fedvlm run --demo --rounds 2 --trainer docs/cookbook/other_upload.py:Neighbour
"""

import torch

from fedvlm.method import Option, Trainer

CTX, PEER = "text.ctx", "peer.ctx"


class Neighbour(Trainer):
    """The server keeps a place per client in ``ctx.held``, which is saved and resumed."""

    name = "Neighbour"
    groups = ((r"text\.ctx", "shared"),)
    extras_down = (r"peer\.ctx",)  # what a download carries beside the shared group
    options = {"N_CTX": Option(4, "context tokens", low=1)}
    exempt = {"G5": "a client alone is its own neighbour, and reads with two rounds' contexts"}

    def prompt_sets(self, batch_size):
        """Return 2: the own context and the neighbour's."""
        return 2

    def trainables(self, model, generator):
        """Return the context."""
        return {CTX: torch.randn(self.cfg.N_CTX, model.text_width, generator=generator) * 0.02}

    def download(self, ctx, server, client):
        """Return the mean and the neighbour's last upload; all clients receive equal names."""
        neighbour = (client + 1) % len(ctx.roster)
        return server["w"] | {PEER: ctx.held.get(neighbour).get("sent", server["w"])[CTX]}

    def aggregate(self, ctx, server, updates):
        """Keep what each client sent, then average as FedAvg does."""
        for k, client in enumerate(updates.clients):
            ctx.held.put(client, {"sent": {CTX: updates.params[CTX][k]}})
        return super().aggregate(ctx, server, updates)

    def text_features(self, model, params):
        """Return ``[K, C, d]``; the global model, which is nobody's, has no neighbour."""
        both = torch.stack([params[CTX], params.get(PEER, params[CTX])], 1)  # [K, 2, n, width]
        return model.text(both).mean(1)
