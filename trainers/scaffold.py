"""SCAFFOLD: control variates take the client drift out of local steps.

Paper: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning,
    ICML 2020.
Equations:
    option II: y <- y - eta (grad F_k(y) - c_k + c), K local steps from y = x;
    c_k+ = c_k - c + (x - y) / (K eta); send y and c_k+ - c_k;
    x <- x + eta_g mean_S(y - x); c <- c + 1/N sum_S (c_k+ - c_k).
Shared: all of PEFT
Personal: none
Frozen: both towers, the logit scale.
Defaults: eta_g 1; SGD without momentum at 0.05, the step that 0.005 with momentum 0.9 comes to.
Departures from the paper: K eta is the sum of the rates of the steps taken, so that a schedule
    within the round stays exact; weight decay is part of F_k.
Departures from the authors' code: none known. The mean over clients is uniform, as there: with
    unequal clients compare with a FedAvg that is uniform too.
Extra data: none; a control variate travels both ways beside the model.
Cost: twice FedAvg's bytes each way; its compute.
Command: python federated_main.py --demo --trainer SCAFFOLD
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedvlm.config.option import Option
from fedvlm.core.trees import State, Tree, map_leaves, per_client, pick
from fedvlm.federation.aggregate import Update, weighted_mean
from fedvlm.federation.batches import Batch
from fedvlm.federation.context import Context, Upload
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.federation.toolbox.regularise import UNIFORM, client_weights
from fedvlm.federation.trainer import TRAINER_REGISTRY

PREFIX = "control."


@TRAINER_REGISTRY.register("SCAFFOLD")
class SCAFFOLD(PeftTrainer):
    """See the module's card. Slot ``c`` holds the control variate, on clients and server."""

    name = "SCAFFOLD"
    same_basis = True
    extras = (r"control\..*",)
    options = {"SERVER_LR": Option(1.0, "step of the server along the clients' mean", low=0.0)}

    def init(self, ctx: Context, p0: Tree) -> State:
        """Return the start with a control variate of zero."""
        return {"w": p0, "c": map_leaves(torch.zeros_like, pick(p0, ctx.groups.shared))}

    def init_server(self, ctx: Context, p0: Tree) -> State:
        """Return the start with a control variate of zero.

        Raises:
            ConfigError: not plain SGD; (x - y) / (K eta) would be no mean of gradients.
        """
        spec = ctx.optim
        self.require(
            spec.name == "sgd" and not spec.momentum,
            f"SCAFFOLD needs plain SGD (OPTIM.NAME is {spec.name}, OPTIM.MOMENTUM "
            f"{spec.momentum:g}): set OPTIM.NAME sgd and OPTIM.MOMENTUM 0",
        )
        start = super().init_server(ctx, p0)
        return start | {"c": map_leaves(torch.zeros_like, start["w"])}

    def down(self, server: State, client: int) -> Tree:
        """Return the model and the server's control variate."""
        return server["w"] | {PREFIX + n: v for n, v in server["c"].items()}

    def local(self, ctx: Context, c: State, d: Tree) -> tuple[State, Upload]:
        """Train with corrected gradients, then renew the control variate."""
        x = pick(d, ctx.groups.shared)
        fix = map_leaves(torch.sub, {n: d[PREFIX + n] for n in x}, c["c"])
        steps = torch.zeros(ctx.k, dtype=torch.float64)

        def correct(p: Tree, g: Tree, b: Batch) -> Tree:
            steps[: len(b.y)] += 1
            return {n: v + b.const["fix"][n] if n in fix else v for n, v in g.items()}

        w = ctx.fit(c["w"] | x, self.loss, edit=correct, const={"fix": fix})
        rates = [ctx.schedule(ctx.clock(e)) for e in range(ctx.epochs)]
        way = steps * sum(rates) / max(len(rates), 1)
        new = {n: _renewed(v, fix[n], x[n] - w[n], way) for n, v in c["c"].items()}
        change = {PREFIX + n: v - c["c"][n] for n, v in new.items()}
        return c | {"w": w, "c": new}, ctx.upload(w, client_weights(ctx, UNIFORM), change)

    def personal(self, ctx: Context, c: State, d: Tree) -> Tree:
        """Return the shared model."""
        return c["w"] | pick(d, ctx.groups.shared)

    def server(self, ctx: Context, server: State, updates: Sequence[Update]) -> State:
        """Step along the uniform mean; add the clients' changes to the control variate."""
        ordered = sorted(updates, key=lambda u: u.client)
        mean, eta = self.mean(ordered), self.cfg.SERVER_LR
        share = sum(u.weight > 0 for u in ordered) / self.root.FED.CLIENTS
        changes = [Update(u.client, u.extras, u.weight) for u in ordered]
        shift = weighted_mean(changes)
        w = mean if eta == 1 else map_leaves(lambda x, y: x + eta * (y - x), server["w"], mean)
        c = {n: v + share * shift[PREFIX + n] for n, v in server["c"].items()}
        return server | {"w": w, "c": c}


def _renewed(c: Tensor, fix: Tensor, gap: Tensor, way: Tensor) -> Tensor:
    """Return c_k - c + (x - y) / (K eta); c_k where no way was gone (no sample, or a rate of 0)."""
    moved = per_client(way.to(gap.device, gap.dtype), gap)
    new = gap / moved.clamp_min(torch.finfo(gap.dtype).tiny) - fix
    return torch.where(moved > 0, new, c)
