"""FedDyn: a linear and a quadratic term that make the clients' optima agree with the server's.

Paper: Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021.
Equations:
    client: min F_k(w) - <h_k, w> + a_k/2 |w - w_t|^2, then h_k <- h_k - a_k (w_k - w_t), with
        a_k = alpha (mean_j n_j) / n_k (VARIANT published) or alpha for all (fixed);
    server: h <- h - alpha/N sum_S (w_k - w_t); w <- mean_S(w_k) - h / alpha.
Shared: all of PEFT
Personal: none (h_k stays with the client)
Frozen: both towers, the logit scale.
Defaults: alpha 1 (the paper searches 0.001 to 0.1 with far more local steps: over rounds the linear
    term acts as a momentum of about 1 - alpha eta K, which must not come near 1 in ten rounds).
Knobs: ALPHA 0.001 to 1 log.
Departures from the paper: VARIANT published, as released: a client of n_k images has alpha over
    its share; fixed: the paper's one alpha (with equal clients both are the same). The uniform
    mean over clients is the paper's, whatever their sizes.
Departures from the authors' code: none known but the protocol's: weight decay and clipping as OPTIM
    says (there a norm of 10). The quadratic term is squared (in PFLlib it is not, which makes its
    pull alpha/2 whatever the distance).
Extra data: none; under VARIANT published a client receives its a_k, so that it can tell the mean
    number of images.
Cost: FedAvg's bytes and compute; one more tree per client.
Claim: global is higher than FedAvg's in setting rivals.
Command: python federated_main.py --demo --trainer FedDyn
"""

from __future__ import annotations

import re

import torch

from fedvlm.method import (
    TRAINER_REGISTRY,
    Batch,
    CfgNode,
    Context,
    Option,
    PeftTrainer,
    ServerContext,
    State,
    Tree,
    Updates,
    Upload,
    map_leaves,
    per_client,
    pick,
    rules,
)

OWN = "feddyn.alpha"  # download: a client's weight of the quadratic term


@TRAINER_REGISTRY.register("FedDyn")
class FedDyn(PeftTrainer):
    """See the module's card. Slot ``h`` holds the linear term, on clients and server."""

    name = "FedDyn"
    label_sets = True
    image_fits = (0,)
    classic = True
    same_basis = True
    weighting = "uniform"
    aggregators = (rules.MEAN,)  # the linear term follows the mean
    server_optim = False
    server_rules = {
        "h/.*": lambda s: s.old - s.trainer.cfg.ALPHA / s.members * s.total(
            s.sent() - s.server["w"][s.name], s.weight
        ),
        "w/.*": lambda s: s.mean() - s.after("h", s.name) / s.trainer.cfg.ALPHA,
    }
    options = {
        "ALPHA": Option(1.0, "weight of the quadratic term", low=0.0, low_open=True),
        "VARIANT": Option(
            "published", "the quadratic term of unequal clients: weighted by size as in the "
            "released code, or the same for all as in the paper", choices=("published", "fixed"),
            neutral="fixed",
        ),
    }
    exempt = {
        "G5": "even a single client is pulled to the received model",
        "G6": "the server moves beyond the mean, by its own linear term over alpha",
    }

    def __init__(self, cfg: CfgNode) -> None:
        """Let a client's own weight of the quadratic term travel with its download."""
        super().__init__(cfg)
        if self.published:
            self.extras_down = (re.escape(OWN),)

    def init_client(self, ctx: Context, start: Tree) -> State:
        """Return the start with a linear term of zero."""
        return {"w": start, "h": map_leaves(torch.zeros_like, pick(start, ctx.groups.shared))}

    def init_server(self, ctx: ServerContext, start: Tree) -> State:
        """Return the start with a linear term of zero."""
        server = super().init_server(ctx, start)
        return server | {"h": map_leaves(torch.zeros_like, server["w"])}

    def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
        """Return the model, and the client's weight of the quadratic term (VARIANT published)."""
        if self.cfg.VARIANT == "fixed":
            return server["w"]
        sizes = ctx.roster.train
        ratio = float(sizes[list(ctx.roster.members)].mean()) / max(int(sizes[client]), 1)
        like = next(iter(server["w"].values()))
        return server["w"] | {OWN: like.new_tensor(self.cfg.ALPHA * ratio)}

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Train on the regularised loss, then renew the linear term."""
        x = pick(received, ctx.groups.shared)
        like = next(iter(x.values()))
        alpha = received.get(OWN, like.new_full((ctx.k,), self.cfg.ALPHA))

        def regularise(params: Tree, grads: Tree, batch: Batch) -> Tree:
            at, h, a = batch.cut(x), batch.cut(state["h"]), batch.cut(alpha)
            return {n: v + per_client(a, v) * (params[n] - at[n]) - h[n] if n in h else v
                    for n, v in grads.items()}

        w = ctx.fit(state["w"] | x, self.loss, edit=regularise).params
        h = {n: v - per_client(alpha, v) * (w[n] - x[n]) for n, v in state["h"].items()}
        return state | {"w": w, "h": h}, ctx.upload(w)

    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        """Return the shared model."""
        return state["w"] | pick(received, ctx.groups.shared)

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        """Move the linear term by what the clients moved, and the model beyond their mean."""
        mean, alpha = self.combine(ctx, updates), self.cfg.ALPHA
        share = alpha * int((updates.weight > 0).sum()) / len(ctx.roster.members)
        h = map_leaves(lambda h, m, w: h - share * (m - w), server["h"], mean, server["w"])
        return server | {"h": h, "w": map_leaves(lambda m, h: m - h / alpha, mean, h)}
