"""FedRep: heads are trained first, then the shared representation, never both at once.

Paper: Collins et al., Exploiting Shared Representations for Personalized Federated Learning,
    ICML 2021.
Equations: round: l_k <- HEAD_EPOCHS epochs of SGD on F_k(g, .) with g frozen, then
    g_k <- REP_EPOCHS epochs of SGD on F_k(., l_k) with l_k frozen; server g = sum_k p_k g_k.
    After the last round every client trains l_k alone, without upload.
Shared: the body of PEFT, image.*
Personal: the head, text.* or head.*
Frozen: both towers, the logit scale.
Defaults: REP_EPOCHS 1; HEAD_EPOCHS 0, which means FED.LOCAL_EPOCHS - REP_EPOCHS as in the authors'
    code, so that the budget is that of the other methods; final phase of
    max(FINAL_EPOCHS, HEAD_EPOCHS) head epochs, FINAL_EPOCHS 10, at constant OPTIM.LR.
    --finetune-epochs N sets another length, 0 leaves it out.
    The body's epochs go on with the schedule's clock and the views where the head's ended.
Knobs: FINAL_EPOCHS 2 to 20 log.
Departures from the paper: body and head are adapter and prompt (or linear head) of a frozen CLIP;
    the paper's head phase runs 10 epochs from a random head, here the head starts at CLIP's.
Departures from the authors' code: weights are samples (WEIGHTING uniform is theirs on CIFAR, where
    all lens are one); weight decay on all trained tensors (there on weights, not on biases); the
    last round is reported before and after the final phase (there the mean of ten rounds before
    it). Plato's snapshot and newer file disagree on head epochs (4 + 1 against 1 + 4).
Extra data: none.
Cost: ViT-B/16 with defaults: 32,768 numbers sent each way; one packed text pass per step; the final
    phase adds 10 head epochs per client, once.
Claim: personal is higher than FedPer's in setting disjoint.
Command: python federated_main.py --demo --trainer FedRep
"""

from __future__ import annotations

from fedvlm.method import (
    PERSONAL,
    SHARED,
    TRAINER_REGISTRY,
    CfgNode,
    Context,
    Finetune,
    Option,
    PeftTrainer,
    State,
    Tree,
    Upload,
    peft,
    weighting,
)


@TRAINER_REGISTRY.register("FedRep")
class FedRep(PeftTrainer):
    """Head epochs, then body epochs (see the card)."""

    name = "FedRep"
    label_sets = True
    classic = True
    roles = {peft.BODY: "shared", peft.HEAD: "personal"}
    needs = (peft.BODY, peft.HEAD)
    phases = True
    options = {
        "HEAD_EPOCHS": Option(0, "head epochs per round; 0 is LOCAL_EPOCHS - REP_EPOCHS", low=0),
        "REP_EPOCHS": Option(1, "body epochs per round, after the head's", low=1),
        "FINAL_EPOCHS": Option(10, "head epochs after the last round, at least HEAD_EPOCHS", low=0),
        "WEIGHTING": weighting("samples"),
    }
    exempt = {"G5": "head and body are trained in turns, not together"}

    def __init__(self, cfg: CfgNode) -> None:
        """Resolve the number of head epochs."""
        super().__init__(cfg)
        local, rep = int(cfg.FED.LOCAL_EPOCHS), int(self.cfg.REP_EPOCHS)
        self.head_epochs = int(self.cfg.HEAD_EPOCHS) or local - rep
        self.require(
            self.head_epochs >= 1,
            f"FedRep has FED.LOCAL_EPOCHS {local} and REP_EPOCHS {rep}, which leaves no epoch for "
            "the head; raise --local-epochs or set TRAINER.FEDREP.HEAD_EPOCHS",
        )

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Train the head on the received body, then the body under that head."""
        w = ctx.fit(
            state["w"] | received, self.loss, train=(PERSONAL,), epochs=self.head_epochs, tag="head"
        ).params
        w = ctx.fit(
            w, self.loss, train=(SHARED,), epochs=int(self.cfg.REP_EPOCHS), after=self.head_epochs
        ).params
        return state | {"w": w}, ctx.upload(w)

    def own_finetune(self) -> Finetune:
        """Return the paper's final phase: the head alone."""
        final = int(self.cfg.FINAL_EPOCHS)
        return Finetune(max(final, self.head_epochs) if final else 0, (PERSONAL,))
