"""FedDyn: a linear and a quadratic term that make the clients' optima agree with the server's.

Paper: Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021.
Equations:
    client: min F_k(w) - <h_k, w> + alpha/2 |w - w_t|^2, then h_k <- h_k - alpha (w_k - w_t);
    server: h <- h - alpha/N sum_S (w_k - w_t); w <- mean_S(w_k) - h / alpha.
Shared: all of PEFT
Personal: none (h_k stays with the client)
Frozen: both towers, the logit scale.
Defaults: alpha 1 (the paper searches 0.001 to 0.1 with far more local steps: over rounds the linear
    term acts as a momentum of about 1 - alpha eta K, which must not come near 1 in ten rounds).
Knobs: ALPHA 0.001 to 1 log.
Departures from the paper: none; the uniform mean over clients is the paper's, whatever their sizes.
Departures from the authors' code: weight decay as OPTIM says. The quadratic term is squared (in
    PFLlib it is not, which makes its pull alpha/2 whatever the distance).
Extra data: none; the server has w_t, so nothing travels beside the model.
Cost: FedAvg's bytes and compute; one more tree per client.
Claim: global is higher than FedAvg's in lane rivals.
Command: python federated_main.py --demo --trainer FedDyn
"""

from __future__ import annotations

import torch

from fedvlm.method import (
    TRAINER_REGISTRY,
    Batch,
    Context,
    Option,
    PeftTrainer,
    ServerContext,
    State,
    Tree,
    Updates,
    Upload,
    map_leaves,
    pick,
    pull,
    rules,
)


@TRAINER_REGISTRY.register("FedDyn")
class FedDyn(PeftTrainer):
    """See the module's card. Slot ``h`` holds the linear term, on clients and server."""

    name = "FedDyn"
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
    }
    exempt = {
        "G5": "even a single client is pulled to the received model",
        "G6": "the server moves beyond the mean, by its own linear term over alpha",
    }

    def init_client(self, ctx: Context, start: Tree) -> State:
        """Return the start with a linear term of zero."""
        return {"w": start, "h": map_leaves(torch.zeros_like, pick(start, ctx.groups.shared))}

    def init_server(self, ctx: ServerContext, start: Tree) -> State:
        """Return the start with a linear term of zero."""
        server = super().init_server(ctx, start)
        return server | {"h": map_leaves(torch.zeros_like, server["w"])}

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Train on the regularised loss, then renew the linear term."""
        alpha = self.cfg.ALPHA

        def regularise(params: Tree, grads: Tree, batch: Batch) -> Tree:
            near = pull(params, grads, batch.cut(received), alpha)
            h = batch.cut(state["h"])
            return {n: v - h[n] if n in h else v for n, v in near.items()}

        w = ctx.fit(state["w"] | received, self.loss, edit=regularise).params
        h = {n: v - alpha * (w[n] - received[n]) for n, v in state["h"].items()}
        return state | {"w": w, "h": h}, ctx.upload(w)

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        """Move the linear term by what the clients moved, and the model beyond their mean."""
        mean, alpha = self.combine(ctx, updates), self.cfg.ALPHA
        share = alpha * int((updates.weight > 0).sum()) / len(ctx.roster.members)
        h = map_leaves(lambda h, m, w: h - share * (m - w), server["h"], mean, server["w"])
        return server | {"h": h, "w": map_leaves(lambda m, h: m - h / alpha, mean, h)}
