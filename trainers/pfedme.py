"""pFedMe: personal models inside a Moreau envelope around the global one.

Paper: Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020.
Equations: min_w sum_k p_k min_t F_k(t) + LAMBDA/2 |t - w|^2. Per batch: STEPS times
    t <- t - PERSONAL_LR (grad F_k(t) + LAMBDA (t - w)), then w <- w - lr LAMBDA (w - t);
    server w <- (1 - BETA) w + BETA sum_k p_k w_k.
    VARIANT published: in each round t starts at the w received, its gradient carries 0.001 t more,
    and evaluated is the client's w_k; fixed: t goes on from the client's own last one, without
    decay, and is what is evaluated.
Shared: all of PEFT (w)
Personal: a copy of all of PEFT that is evaluated: w_k (VARIANT published) or t (fixed).
Frozen: both towers, the logit scale.
Defaults: LAMBDA 15, STEPS 5, PERSONAL_LR 0.01, BETA 1, lr the run's OPTIM.LR on its schedule (0.05:
    plain steps, ten times the rate of those with momentum 0.9).
Knobs: OPTIM.NAME sgd; LAMBDA 1 to 100 log; PERSONAL_LR 0.001 to 1 log.
Departures from the paper: PEFT tensors are trained; the server weights clients by samples. The
    paper evaluates t; the released code keeps no copy of t, so that its personal numbers are w_k's.
Departures from the authors' code: none known under VARIANT published. Plain steps without optimiser
    state for t and w, so OPTIM's momentum and weight decay are not used, as there. BETA 0 (the
    default of a well-known port) would leave the global model at its start for ever and is refused.
Extra data: none.
Cost: STEPS times FedAvg's local work, FedAvg's traffic.
Claim: personal is higher than Per-FedAvg's in setting rivals.
Command: python federated_main.py --demo --trainer pFedMe
"""

from __future__ import annotations

from fedvlm.method import (
    TRAINER_REGISTRY,
    Batch,
    Context,
    Option,
    PeftTrainer,
    ServerContext,
    State,
    Step,
    Tree,
    Updates,
    Upload,
    descend,
    fill_newcomers,
    map_leaves,
    pick,
    pull,
    rates,
    rules,
)

DECAY = 0.001  # of the personal model, in the released optimiser


@TRAINER_REGISTRY.register("pFedMe")
class PFedMe(PeftTrainer):
    """See the module's card."""

    name = "pFedMe"
    label_sets = True
    classic = True
    same_basis = True
    aggregators = rules.EVERY
    server_optim = False  # BETA is the server's step
    linear = True
    server_rules = {"w/.*": lambda s: s.old + s.trainer.cfg.BETA * (s.mean() - s.old)}
    trains_by = "descent"
    options = {
        "LAMBDA": Option(
            15.0, "pull between personal and global model", low=0.0, low_open=True
        ),
        "STEPS": Option(5, "steps of the personal model per batch", low=1),
        "PERSONAL_LR": Option(0.01, "learning rate of the personal model", low=0.0),
        "BETA": Option(
            1.0, "share of the clients' mean in the new global model; 0 would never change it",
            low=0.0, low_open=True,
        ),
        "VARIANT": Option(
            "published", "start, weight decay and evaluation of the personal model: of the "
            "released code, or of the paper", choices=("published", "fixed"), neutral="fixed",
        ),
    }
    exempt = {"G5": "the global model follows the personal one, not the loss"}

    def init_client(self, ctx: Context, start: Tree) -> State:
        """Return both models at the common start."""
        return {"w": start, "theta": start}

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Per batch: bring t near its optimum around w, then w a step towards t."""
        strength, inner = self.cfg.LAMBDA, self.cfg.PERSONAL_LR
        released = self.published

        def body(slots: State, batches: tuple[Batch, ...], step: Step) -> State:
            w, theta = slots["w"], slots["theta"]
            for _ in range(self.cfg.STEPS):
                what = f"the personal model, local step {step.index}"
                grads = ctx.grad(theta, self.loss, batches[0], what=what).grads
                grads = pull(theta, grads, w, strength)
                if released:
                    grads = {n: g + DECAY * theta[n] for n, g in grads.items()}
                theta = descend(theta, grads, inner)
            names = ctx.trained(w, ("shared", "personal"))
            gap = map_leaves(lambda w, t: strength * (w - t), pick(w, names), theta)
            return {"w": descend(w, gap, rates(ctx, step)), "theta": theta}

        w = state["w"] | received
        new = ctx.loop({"w": w, "theta": w if released else state["theta"]}, body)
        own = {"theta": new["w"]} if released else {}
        return state | new | own, ctx.upload(new["w"])

    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        """Return t, or w_k as released; the model received where the client never worked."""
        return fill_newcomers(ctx, state["theta"], received)

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        """Go the share BETA of the way to the clients' mean."""
        mean, beta = self.combine(ctx, updates), self.cfg.BETA
        if beta == 1:
            return server | {"w": mean}
        return server | {"w": map_leaves(lambda w, m: (1 - beta) * w + beta * m,
                                         server["w"], mean)}
