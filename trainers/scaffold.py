"""SCAFFOLD: control variates take the client drift out of local steps.

Paper: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning,
    ICML 2020.
Equations:
    option II: y <- y - eta (grad F_k(y) - c_k + c), K local steps from y = x;
    c_k+ = c_k - c + (x - y) / (K eta); send y and c_k+ - c_k;
    server: x <- x + eta_g mean_S(y - x); c <- c + 1/N sum_S (c_k+ - c_k).
Shared: all of PEFT
Personal: none
Frozen: both towers, the logit scale.
Defaults: eta_g 1; SGD without momentum at 0.05, the step that 0.005 with momentum 0.9 comes to.
Knobs: OPTIM.NAME sgd; SERVER_LR 0.3 to 1 log.
Departures from the paper: K eta is the sum of the rates of the steps taken, so that a schedule
    within the round stays exact; weight decay is part of F_k.
Departures from the authors' code: none was published; PFLlib's computes the same. The mean over
    clients is uniform, as there: with unequal clients compare with a FedAvg that is uniform too.
Extra data: none; a control variate travels both ways beside the model.
Cost: twice FedAvg's bytes each way; its compute.
Claim: global is higher than FedAvg's in setting participation.
Command: python federated_main.py --demo --trainer SCAFFOLD
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

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
    per_client,
    pick,
    rules,
    weighted_mean,
)

PREFIX = "control."


@TRAINER_REGISTRY.register("SCAFFOLD")
class SCAFFOLD(PeftTrainer):
    """See the module's card. Slot ``c`` holds the control variate, on clients and server."""

    name = "SCAFFOLD"
    label_sets = True
    classic = True
    same_basis = True
    extras_up = extras_down = (r"control\..*",)
    weighting = "uniform"
    aggregators = (rules.MEAN,)  # the control variates follow the mean
    server_optim = False  # SERVER_LR is the server's step
    server_rules = {
        "w/.*": lambda s: s.old + s.trainer.cfg.SERVER_LR * (s.mean() - s.old),
        "c/.*": lambda s: s.old + s.total(s.sent(PREFIX + s.name), s.weight) / s.members,
    }
    options = {"SERVER_LR": Option(1.0, "server step size along the clients' mean", low=0.0)}

    def init_client(self, ctx: Context, start: Tree) -> State:
        """Return the start with a control variate of zero."""
        return {"w": start, "c": map_leaves(torch.zeros_like, pick(start, ctx.groups.shared))}

    def init_server(self, ctx: ServerContext, start: Tree) -> State:
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
        self.require(
            not spec.roles and not spec.clip,
            "SCAFFOLD's control variates are means of gradients, all of one rate and none clipped: "
            "leave OPTIM.CLIP and the rates and rules by role at their defaults",
        )
        server = super().init_server(ctx, start)
        return server | {"c": map_leaves(torch.zeros_like, server["w"])}

    def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
        """Return the model and the server's control variate."""
        return server["w"] | {PREFIX + n: v for n, v in server["c"].items()}

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Train with corrected gradients, then renew the control variate."""
        x = pick(received, ctx.groups.shared)
        fix = map_leaves(torch.sub, {n: received[PREFIX + n] for n in x}, state["c"])

        def correct(params: Tree, grads: Tree, batch: Batch) -> Tree:
            here = batch.cut(fix)
            return {n: v + here[n] if n in here else v for n, v in grads.items()}

        fit = ctx.fit(state["w"] | x, self.loss, edit=correct)
        w = fit.params
        way = fit.way(lambda epoch: ctx.schedule(ctx.clock(epoch)))
        new = {n: _renewed(v, fix[n], x[n] - w[n], way) for n, v in state["c"].items()}
        change = {PREFIX + n: v - state["c"][n] for n, v in new.items()}
        return state | {"w": w, "c": new}, ctx.upload(w, extras=change)

    def extra_forms(self, ctx: Context, start: Tree) -> Tree:
        """See ``Trainer.extra_forms``: a control variate's change for each tensor."""
        return {PREFIX + n: start[n] for n in ctx.groups.shared}

    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        """Return the shared model."""
        return state["w"] | pick(received, ctx.groups.shared)

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        """Step along the uniform mean; add the clients' changes to the control variate."""
        mean, eta = self.combine(ctx, updates), self.cfg.SERVER_LR
        share = int((updates.weight > 0).sum()) / len(ctx.roster.members)
        shift = weighted_mean(replace(updates, params=updates.extras))
        w = mean if eta == 1 else map_leaves(lambda x, y: x + eta * (y - x), server["w"], mean)
        c = {n: v + share * shift[PREFIX + n] for n, v in server["c"].items()}
        return server | {"w": w, "c": c}


def _renewed(c: Tensor, fix: Tensor, gap: Tensor, way: Tensor) -> Tensor:
    """Return c_k - c + (x - y) / (K eta); c_k where no way was gone (no sample, or a rate of 0)."""
    moved = per_client(way.to(gap.device, gap.dtype), gap)
    new = gap / moved.clamp_min(torch.finfo(gap.dtype).tiny) - fix
    return torch.where(moved > 0, new, c)
