"""Ditto: a private model beside FedAvg's, pulled to the global model as it was received.

Paper: Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021.
Equations: w by FedAvg; client k: min_v F_k(v) + LAMBDA/2 |v - w_t|^2, w_t the model received this
    round, by steps with the gradient grad F_k(v) + LAMBDA (v - w_t); server w = sum_k p_k w_k.
Shared: all of PEFT (w)
Personal: a copy v of all of PEFT; it is what is evaluated.
Frozen: both towers, the logit scale.
Defaults: LAMBDA 1, as many epochs for v as for w; v starts where w starts.
Knobs: LAMBDA 0.01 to 10 log.
Departures from the paper: PEFT tensors are trained, distances are between them (of LoRA: between
    the factors); the server weights clients by samples (there evenly, clients drawn by samples;
    WEIGHTING uniform).
Departures from the authors' code: v is trained over whole epochs, then w (there v and w take turns
    on each batch; their results do not depend on each other); no choice of LAMBDA per client on
    validation data (their dynamic_lam).
Extra data: none.
Cost: twice FedAvg's local work, FedAvg's traffic.
Claim: personal_worst is higher than FedAvg's in setting dirichlet.
Command: python federated_main.py --demo --trainer Ditto
"""

from __future__ import annotations

from collections.abc import Sequence

from fedvlm.method import (
    TAG,
    TRAINER_REGISTRY,
    Context,
    Edit,
    Finetune,
    Option,
    PeftTrainer,
    State,
    Tree,
    Upload,
    fill_newcomers,
    pull,
    weighting,
)


@TRAINER_REGISTRY.register("Ditto")
class Ditto(PeftTrainer):
    """See the module's card."""

    name = "Ditto"
    label_sets = True
    captions = True
    classic = True
    losses = ("softmax", "sigmoid")
    metrics = (r"(v/)?loss",)
    same_basis = True
    options = {
        "LAMBDA": Option(1.0, "strength of the private model's pull to the global one", low=0.0),
        "P_EPOCHS": Option(0, "local epochs of the private model; 0 is FED.LOCAL_EPOCHS", low=0),
        "WEIGHTING": weighting("samples", neutral="samples"),
    }

    @property
    def image_fits(self) -> Sequence[int]:
        """The private model's fit, and the shared one's."""
        return (int(self.cfg.P_EPOCHS), 0)

    def init_client(self, ctx: Context, start: Tree) -> State:
        """Return both models at the common start."""
        return {"w": start, "v": start}

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Train v against the model received, then w."""
        v = ctx.fit(
            state["v"], self.loss, epochs=self.cfg.P_EPOCHS or None, tag="v",
            edit=self.near(received),
        ).params
        return super().client_update(ctx, state | {"v": v}, received)

    def near(self, received: Tree) -> Edit:
        """Return the edit that pulls v to the model received."""
        return lambda params, grads, batch: pull(
            params, grads, batch.cut(received), self.cfg.LAMBDA
        )

    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        """Return v; the model received where the client never worked."""
        return fill_newcomers(ctx, state["v"], received)

    def finetune(self, ctx: Context, state: State, received: Tree, how: Finetune) -> Tree:
        """Train a copy of v as in a round, against the last global model."""
        return ctx.fit(
            self.personalize(ctx, state, received), self.loss, train=how.train,
            epochs=how.epochs, lr=how.lr or ctx.optim.lr, tag=TAG, edit=self.near(received),
        ).params
