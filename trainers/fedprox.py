"""FedProx: FedAvg whose clients are pulled back to the model they received.

Paper: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.
Equations: client k: min_w F_k(w) + MU/2 |w - w_t|^2, w_t the received model, by adding
    MU (w - w_t) to each gradient; server w = sum_k p_k w_k.
Shared: all of PEFT
Personal: none
Frozen: both towers, the logit scale.
Defaults: MU 0.1; the rest as every method here.
Knobs: MU 0.001 to 10 log.
Departures from the paper: PEFT tensors are trained, not the model; every client does all of its
    local epochs (the paper's gamma-inexact solutions let slow ones stop early); clients are drawn
    evenly and weighted by samples (there drawn by samples and weighted evenly).
Departures from the authors' code: a fresh optimiser per client and round, with the run's momentum
    (there a perturbed SGD step without).
Extra data: none.
Cost: as FedAvg; one copy of the trained tensors more.
Claim: global is higher than FedAvg's in setting participation.
Command: python federated_main.py --demo --trainer FedProx
"""

from __future__ import annotations

from fedvlm.method import (
    TRAINER_REGISTRY,
    Batch,
    Context,
    Option,
    PeftTrainer,
    State,
    Tree,
    Upload,
    pull,
)


@TRAINER_REGISTRY.register("FedProx")
class FedProx(PeftTrainer):
    """See the module's card."""

    name = "FedProx"
    label_sets = True
    image_fits = (0,)
    captions = True
    classic = True
    losses = ("softmax", "sigmoid")
    options = {"MU": Option(0.1, "strength of the pull to the received model", low=0.0)}
    exempt = {"G5": "the proximal term slows every step after the first of a round"}

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Fit with the pull to the download."""
        def near(params: Tree, grads: Tree, batch: Batch) -> Tree:
            return pull(params, grads, batch.cut(received), self.cfg.MU)

        w = ctx.fit(state["w"] | received, self.loss, edit=near).params
        return state | {"w": w}, ctx.upload(w)
