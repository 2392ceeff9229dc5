"""APFL: a private model mixed with the global one; the mixing weight is learnt too.

Paper: Deng et al., Adaptive Personalized Federated Learning, 2020 (arXiv 2003.13461).
Equations: deployed model m = a v + (1 - a) w, a in [0, 1]; on each batch, all three from the
    values before it:
        w <- w - lr grad F(w);  v <- v - lr a grad F(m);
        a <- clip(a - ALPHA_LR (<v - w, grad F(m)> + ALPHA_L2 a)) to [ALPHA_MIN, 1]   (Eq. 10 with
        ALPHA_L2 0 and ALPHA_MIN 0);
    server w = sum_k p_k w_k. VARIANT published: w steps first, then v on the logits
    a f_v + (1 - a) f_w, then a by <v - w, a grad_v + (1 - a) grad_w> + ALPHA_L2 a, v and w after
    their steps; server w = mean_k w_k.
Shared: all of PEFT (w)
Personal: a copy v of all of PEFT and the number a; evaluated is m with the aggregated w.
Frozen: both towers, the logit scale.
Defaults: a starts at 0.5, ALPHA_LR 0.01 in every step, ALPHA_MIN 0.01; v starts where w starts.
Knobs: ALPHA 0.1 to 0.9; ALPHA_LR 0.001 to 0.1 log.
Departures from the paper: PEFT tensors are trained, with the run's optimiser for w and for v; the
    server weights clients by samples; of LoRA the products are mixed, not the factors: both
    branches run, as one of twice the rank. A learnt a stays at ALPHA_MIN or above: v's gradient
    carries the factor a, so that at 0 v would stand still.
Departures from the authors' code: VARIANT fixed is the default, since a model whose tensors are
    mixed is one model, which every format can hold, and its derivative for a is Eq. 10's; published
    is that code, with ALPHA_L2 0.02, EVERY round, ALPHA_LR the learning rate and ALPHA_MIN 0, if
    its switch for a learnt a is on. Evaluated is the mixture with the aggregate (there with the
    client's own w).
Extra data: none.
Cost: twice FedAvg's local work, FedAvg's traffic.
Claim: personal is higher than FedAvg's in setting dirichlet.
Command: python federated_main.py --demo --trainer APFL
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedvlm.method import (
    TRAINER_REGISTRY,
    Batch,
    ConfigError,
    Context,
    Option,
    PeftTrainer,
    Predictor,
    State,
    Step,
    Tree,
    Upload,
    VLModel,
    adapters,
    optimise,
    per_client,
    pick,
)

ALPHA = "alpha"
OWN = "private."  # of v's tensors beside w's, where logits are mixed


@TRAINER_REGISTRY.register("APFL")
class APFL(PeftTrainer):
    """See the module's card."""

    name = "APFL"
    published_weighting = "uniform"
    label_sets = True
    classic = True
    metrics = (r"(mixture/)?loss",)
    trains_by = "loop"
    options = {
        "ALPHA": Option(0.5, "share of the private model at the start", low=0.0, high=1.0),
        "ALPHA_LR": Option(0.01, "learning rate of that share; 0: fixed", low=0.0),
        "ALPHA_MIN": Option(
            0.01, "lower bound of the learnt share, since at 0 the private model does not train "
            "(Eq. 10: 0)", low=0.0, high=1.0, neutral=0.0,
        ),
        "ALPHA_L2": Option(0.0, "weight decay of that share (the authors' code: 0.02)", low=0.0),
        "EVERY": Option("step", "how often the share is updated", choices=("step", "round")),
        "VARIANT": Option(
            "fixed", "mixed are the logits of both models (published) or their tensors (fixed)",
            choices=("published", "fixed"), neutral="fixed",
        ),
    }

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return what ``PEFT`` asks for, or a network's tensors.

        Raises:
            ConfigError: logits are to be mixed, of a network that computes its own loss.
        """
        if self.network and self.published:
            raise ConfigError(
                f"{self.name} with VARIANT published mixes the logits of two models, and a network "
                "is one with a loss of its own: use VARIANT fixed, which mixes their tensors"
            )
        return super().trainables(model, generator)

    def predictor(self, model: VLModel, p: Tree) -> Predictor:
        """Return ``x -> logits``: of both models where ``p`` holds both, mixed by its share."""
        if ALPHA not in p:
            return super().predictor(model, p)
        own = {n.removeprefix(OWN): v for n, v in p.items() if n.startswith(OWN)}
        v, w = super().predictor(model, own), super().predictor(model, pick(p, own))

        def mixed(x: Mapping[str, Tensor]) -> Tensor:
            one, other = v(x), w(x)
            share = per_client(p[ALPHA], one)
            return share * one + (1 - share) * other

        return mixed

    def init_client(self, ctx: Context, start: Tree) -> State:
        """Return both models at the common start, and the share."""
        alpha = torch.tensor(self.cfg.ALPHA, dtype=ctx.model.dtype, device=ctx.model.device)
        return {"w": start, "v": start, "mix": {ALPHA: alpha}}

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Train w, v and the share in one loop."""
        start = {"w": state["w"] | received, "v": state["v"], "mix": state["mix"]}
        new = ctx.loop(start, partial(self.step, ctx))
        return state | new, ctx.upload(new["w"])

    def step(
        self, ctx: Context, slots: State, batches: tuple[Batch, ...], step: Step
    ) -> State:
        """Take one step on all three and return the new slots."""
        if self.published:
            return self.published_step(ctx, slots, batches[0], step)
        w, v, alpha, batch = slots["w"], slots["v"], slots["mix"][ALPHA], batches[0]
        at = f"local step {step.index}"

        def mixed(model: VLModel, p: Tree, b: Batch) -> Any:
            return self.loss(model, adapters.mix_peft(p[ALPHA], pick(p, v), w), b)

        names = ctx.trained(v, ("shared", "personal"))
        gw = ctx.grad(w, self.loss, batch, what=f"the global model, {at}").grads
        g = ctx.grad(
            v | {ALPHA: alpha}, mixed, batch, [*names, ALPHA], what=f"the mixture, {at}",
            log="mixture/",
        ).grads
        alpha = self.pushed(alpha, g.pop(ALPHA), step)
        new = optimise(ctx, slots, "w", gw, step) | optimise(ctx, slots, "v", g, step)
        return new | {"mix": {ALPHA: alpha}}

    def pushed(self, alpha: Tensor, slope: Tensor, step: Step) -> Tensor:
        """Return the share ``[K]`` after a step, where it takes one."""
        if not self.cfg.ALPHA_LR or (step.index > 1 and self.cfg.EVERY == "round"):
            return alpha
        pushed = alpha - self.cfg.ALPHA_LR * (slope + self.cfg.ALPHA_L2 * alpha)
        return pushed.clamp(self.cfg.ALPHA_MIN, 1)

    def published_step(self, ctx: Context, slots: State, batch: Batch, step: Step) -> State:
        """Take the authors' code's step: w, then v on the mixed logits, then the share."""
        alpha, at = slots["mix"][ALPHA], f"local step {step.index}"
        gw = ctx.grad(slots["w"], self.loss, batch, what=f"the global model, {at}").grads
        new = optimise(ctx, slots, "w", gw, step)
        both = self.beside(slots["v"], new["w"], alpha)
        names = ctx.trained(slots["v"], ("shared", "personal"))
        g = ctx.grad(
            both, self.loss, batch, [*names, *(OWN + n for n in names)],
            what=f"the mixture, {at}", log="mixture/",
        ).grads
        new |= optimise(ctx, slots, "v", {n: g[OWN + n] for n in names}, step)
        slope = torch.zeros_like(alpha)
        for n in names:
            share = per_client(alpha, g[n])
            mean = share * g[OWN + n] + (1 - share) * g[n]
            slope = slope + ((new["v"][n] - new["w"][n]) * mean).flatten(1).sum(1)
        return new | {"mix": {ALPHA: self.pushed(alpha, slope, step)}}

    def beside(self, v: Tree, w: Tree, alpha: Tensor) -> Tree:
        """Return both models and the share in one tree."""
        return w | {OWN + n: t for n, t in v.items()} | {ALPHA: alpha}

    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        """Return the mixture with the aggregated model, or both models where logits are mixed."""
        if self.published:
            return self.beside(state["v"], state["w"] | received, state["mix"][ALPHA])
        return adapters.mix_peft(state["mix"][ALPHA], state["v"], state["w"] | received)
