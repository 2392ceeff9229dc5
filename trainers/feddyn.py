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
Departures from the paper: none; the uniform mean over clients is the paper's, whatever their sizes.
Departures from the authors' code: weight decay as OPTIM says. The quadratic term is squared (in
    PFLlib it is not, which makes its pull alpha/2 whatever the distance).
Extra data: none; the server has w_t, so nothing travels beside the model.
Cost: FedAvg's bytes and compute; one more tree per client.
Command: python federated_main.py --demo --trainer FedDyn
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedvlm.config.option import Option
from fedvlm.core.trees import State, Tree, map_leaves, pick
from fedvlm.federation.aggregate import Update
from fedvlm.federation.batches import Batch
from fedvlm.federation.context import Context, Upload
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.federation.toolbox.regularise import UNIFORM, client_weights, pull
from fedvlm.federation.trainer import TRAINER_REGISTRY


@TRAINER_REGISTRY.register("FedDyn")
class FedDyn(PeftTrainer):
    """See the module's card. Slot ``h`` holds the linear term, on clients and server."""

    name = "FedDyn"
    same_basis = True
    options = {
        "ALPHA": Option(1.0, "weight of the quadratic term", low=0.0, low_open=True),
    }
    exempt = {
        "G5": "one client alone is pulled to the received model as well",
        "G6": "the server moves beyond the mean, by its own linear term over alpha",
    }

    def init(self, ctx: Context, p0: Tree) -> State:
        """Return the start with a linear term of zero."""
        return {"w": p0, "h": map_leaves(torch.zeros_like, pick(p0, ctx.groups.shared))}

    def init_server(self, ctx: Context, p0: Tree) -> State:
        """Return the start with a linear term of zero."""
        start = super().init_server(ctx, p0)
        return start | {"h": map_leaves(torch.zeros_like, start["w"])}

    def local(self, ctx: Context, c: State, d: Tree) -> tuple[State, Upload]:
        """Train on the regularised loss, then renew the linear term."""
        alpha = self.cfg.ALPHA
        near = pull("d", alpha)

        def regularise(p: Tree, g: Tree, b: Batch) -> Tree:
            h = b.const["h"]
            return {n: v - h[n] if n in h else v for n, v in near(p, g, b).items()}

        w = ctx.fit(c["w"] | d, self.loss, edit=regularise, const={"h": c["h"], "d": d})
        h = {n: v - alpha * (w[n] - d[n]) for n, v in c["h"].items()}
        return c | {"w": w, "h": h}, ctx.upload(w, client_weights(ctx, UNIFORM))

    def server(self, ctx: Context, server: State, updates: Sequence[Update]) -> State:
        """Move the linear term by what the clients moved, and the model beyond their mean."""
        mean, alpha = self.mean(updates), self.cfg.ALPHA
        share = alpha * sum(u.weight > 0 for u in updates) / self.root.FED.CLIENTS
        h = map_leaves(lambda h, m, w: h - share * (m - w), server["h"], mean, server["w"])
        return server | {"h": h, "w": map_leaves(lambda m, h: m - h / alpha, mean, h)}
